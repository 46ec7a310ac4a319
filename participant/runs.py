"""Parts of some memory: ranges in bytes, as two arrays, ascending and apart from each other."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ("Runs", "runs_of")

# Where they start, and where they stop.
Runs = tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]


def runs_of(blocks: Any, size: int) -> Runs:
    """The numbers of blocks of `size` bytes, ascending, as ranges."""
    if not len(blocks):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    breaks = np.flatnonzero(np.diff(blocks) != 1)
    starts = blocks[np.concatenate(([0], breaks + 1))]
    stops = blocks[np.concatenate((breaks, [len(blocks) - 1]))] + 1
    return starts * size, stops * size
