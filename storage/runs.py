"""Runs of bytes: where they lie in a stream, where they go in memory; as arrays, because there are many.

All runs of one set are in ascending order of their offsets and do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = ("Numbers", "Runs", "Spans", "merged", "packed_row", "shown", "unpacked_row")

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_WIDTHS = (1, 2, 4, 8)
_FAR = np.iinfo(np.int64).max


class Runs(NamedTuple):
    """Positions in a stream, offsets in memory, lengths; none is empty."""

    positions: Numbers
    offsets: Numbers
    lengths: Numbers

    @property
    def covered(self) -> int:
        """How many bytes."""
        return int(self.lengths.sum())

    def chosen(self, which: Any) -> Runs:
        """Some of them, by numbers or a slice."""
        return Runs(self.positions[which], self.offsets[which], self.lengths[which])

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int]]) -> Runs:
        """From rows of (position, offset, length)."""
        table = np.array(rows, np.int64).reshape(len(rows), 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])


class Spans(NamedTuple):
    """Ranges [start, stop) of memory."""

    starts: Numbers
    stops: Numbers

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int]]) -> Spans:
        table = np.array([row for row in rows if row[0] < row[1]], np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])


def shown(runs: Runs, lacking: Spans) -> tuple[Runs, Spans]:
    """(the parts of the runs that are inside of what is lacking, what is lacking still without them)."""
    which, starts, stops = _meets(runs.offsets, runs.offsets + runs.lengths, lacking)
    parts = Runs(runs.positions[which] + starts - runs.offsets[which], starts, stops - starts)
    holes = Spans(
        np.concatenate([np.zeros(1, np.int64), runs.offsets + runs.lengths]),
        np.concatenate([runs.offsets, np.full(1, _FAR, np.int64)]),
    )
    some = holes.starts < holes.stops
    _, starts, stops = _meets(holes.starts[some], holes.stops[some], lacking)
    return parts, Spans(starts, stops)


def _meets(starts: Numbers, stops: Numbers, others: Spans) -> tuple[Numbers, Numbers, Numbers]:
    """Where ranges meet others: (which one of the first, start, stop) for each pair that does."""
    first = np.searchsorted(others.stops, starts, "right")
    counts = np.maximum(np.searchsorted(others.starts, stops, "left") - first, 0)
    which = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    other = first[which] + within
    return (
        which,
        np.maximum(starts[which], others.starts[other]),
        np.minimum(stops[which], others.stops[other]),
    )


def merged(offsets: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
    """(offsets, lengths) of runs, those that touch put together."""
    if not len(offsets):
        return offsets, lengths
    ends = offsets + lengths
    apart = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    starts = offsets[np.concatenate([np.zeros(1, np.int64), apart])]
    stops = ends[np.concatenate([apart - 1, np.full(1, len(ends) - 1, np.int64)])]
    return starts, stops - starts


def packed_row(position: int, offsets: Numbers, lengths: Numbers) -> list[Any]:
    """[position, unit, width of gaps, gaps, width of lengths, lengths], the last four in units."""
    gaps = offsets.copy()
    gaps[1:] -= offsets[:-1] + lengths[:-1]
    unit = math.gcd(int(np.gcd.reduce(gaps)), int(np.gcd.reduce(lengths)))
    return [position, unit, *_narrow(gaps // unit), *_narrow(lengths // unit)]


def _narrow(values: Numbers) -> tuple[int, bytes]:
    largest = int(values.max())
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width))
    return width, values.astype(f"<u{width}").tobytes()


def unpacked_row(row: Sequence[Any], size: int) -> Runs:
    """The runs of a region of ``size`` bytes. Raises ValueError for what no writer wrote."""
    position, unit, gap_width, gaps, length_width, lengths = row
    if gap_width not in _WIDTHS or length_width not in _WIDTHS:
        raise ValueError("an unknown width of numbers")
    if type(unit) is not int or type(position) is not int or not 0 < unit or not 0 <= position:
        raise ValueError("an impossible unit or position")
    sizes = np.frombuffer(lengths, f"<u{length_width}")
    skips = np.frombuffer(gaps, f"<u{gap_width}")
    if len(sizes) != len(skips):
        raise ValueError("gaps and lengths of runs differ in number")
    # In Python's numbers, which do not overflow: what is within the region fits into 64 bits.
    end = sum(sizes.tolist()) + sum(skips.tolist())
    if end * unit > size:
        raise ValueError("runs that end outside the region")
    found = sizes.astype(np.int64) * unit
    ends = np.cumsum(skips.astype(np.int64) * unit + found)
    runs = Runs(position + np.cumsum(found) - found, ends - found, found)
    return runs if found.all() else runs.chosen(found > 0)
