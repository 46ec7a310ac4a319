"""``python -m cutline``: the ``cutline`` command for environments whose scripts are not on the path."""

from __future__ import annotations

from cutline.coordinator.cli import main

__all__ = ()

if __name__ == "__main__":
    main()
