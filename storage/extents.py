"""The changed runs of a memory region, without an object for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

__all__ = ("Extents", "in_order")

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Extents(Sequence[tuple[int, memoryview]]):
    """(offset, bytes) of each run. `offsets` ascend; `parts`, joined, have `lengths` bytes of each.

    A part holds whole runs.
    """

    __slots__ = ("_parts", "lengths", "offsets")

    def __init__(self, offsets: Numbers, lengths: Numbers, parts: Sequence[memoryview]) -> None:
        self.offsets, self.lengths, self._parts = offsets, lengths, parts

    @property
    def parts(self) -> Sequence[memoryview]:
        """The bytes. They may be put together at each call, so ask once."""
        return self._parts

    @property
    def nbytes(self) -> int:
        """The bytes of all runs."""
        return int(self.lengths.sum())

    @classmethod
    def of(cls, runs: Sequence[tuple[int, memoryview]]) -> Extents:
        """Each run a part."""
        count = len(runs)
        return cls(
            np.fromiter((offset for offset, _ in runs), np.int64, count),
            np.fromiter((run.nbytes for _, run in runs), np.int64, count),
            [run for _, run in runs],
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> tuple[int, memoryview]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, memoryview]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, memoryview] | list[tuple[int, memoryview]]:
        return list(self)[index]

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        parts = iter(self.parts)
        here, at = memoryview(b""), 0
        for offset, length in zip(self.offsets.tolist(), self.lengths.tolist(), strict=True):
            while at == here.nbytes:
                here, at = next(parts), 0
            yield offset, here[at : at + length]
            at += length


def in_order(extents: Sequence[tuple[int, bytes | bytearray | memoryview]]) -> Extents:
    """The runs that are not empty, ascending."""
    if isinstance(extents, Extents):
        return extents
    runs = sorted(((offset, memoryview(run)) for offset, run in extents), key=lambda item: item[0])
    return Extents.of([(offset, run) for offset, run in runs if run.nbytes])
