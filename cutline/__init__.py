"""Cutline: consistent global checkpoints of running multi-agent systems."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
