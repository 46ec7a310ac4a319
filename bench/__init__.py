"""Ratios of Cutline to what it replaces, measured side by side: ``python -m bench``; see docs/bench.md."""

from __future__ import annotations

__all__ = ()
