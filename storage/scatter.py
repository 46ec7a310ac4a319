"""Which parts of a pack's stream go where in memory, sorted by the extents that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .runs import Numbers, Runs

__all__ = ("Memory", "Share", "Wanted", "copy_out", "shares")

Memory: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

# From so many runs on in one extent they are copied by numpy, in units of at least so many bytes.
_MANY = 8
_UNIT = 64


class Wanted(NamedTuple):
    """Runs of the stream, ascending in it, and the memory they go to."""

    target: Memory
    runs: Runs


class Share(NamedTuple):
    """What one extent has for one target; positions are counted from the extent's beginning."""

    target: Memory
    runs: Runs


def shares(plan: Sequence[Wanted], extent: int) -> dict[int, list[Share]]:
    """The plan by numbers of extents."""
    found: dict[int, list[Share]] = {}
    for wanted in plan:
        numbers, runs = _cut(wanted.runs, extent)
        if not len(numbers):
            continue
        edges = np.flatnonzero(np.diff(numbers)) + 1
        bounds = [0, *edges.tolist(), len(numbers)]
        inside = Runs(runs.positions - numbers * extent, runs.offsets, runs.lengths)
        for first, last in zip(bounds, bounds[1:], strict=False):
            share = Share(wanted.target, inside.chosen(slice(first, last)))
            found.setdefault(int(numbers[first]), []).append(share)
    return found


def _cut(runs: Runs, extent: int) -> tuple[Numbers, Runs]:
    """(number of the extent, run) with the runs cut where extents end."""
    first = runs.positions // extent
    counts = (runs.positions + runs.lengths - 1) // extent - first + 1
    if (counts == 1).all():
        return first, runs
    which = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = first[which] + within
    starts = np.maximum(runs.positions[which], numbers * extent)
    stops = np.minimum(runs.positions[which] + runs.lengths[which], (numbers + 1) * extent)
    return numbers, Runs(starts, runs.offsets[which] + starts - runs.positions[which], stops - starts)


def copy_out(share: Share, raw: memoryview) -> None:
    """Copies a share out of its extent."""
    positions, offsets, lengths = share.runs
    count = len(lengths)
    if count >= _MANY:
        unit = int(np.gcd.reduce(np.concatenate(share.runs)))
        if unit >= _UNIT:
            _copy_units(share.target, np.frombuffer(raw, np.uint8), share.runs, unit)
            return
    target = memoryview(share.target.data)
    for position, offset, length in zip(positions.tolist(), offsets.tolist(), lengths.tolist(), strict=True):
        target[offset : offset + length] = raw[position : position + length]


def _copy_units(target: Memory, raw: Memory, runs: Runs, unit: int) -> None:
    """All runs at once, as rows of ``unit`` bytes."""
    counts = runs.lengths // unit
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = target[: len(target) // unit * unit].reshape(-1, unit)
    source = raw[: len(raw) // unit * unit].reshape(-1, unit)
    rows[np.repeat(runs.offsets // unit, counts) + within] = source[
        np.repeat(runs.positions // unit, counts) + within
    ]
