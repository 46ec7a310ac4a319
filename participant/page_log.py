"""Pages copied ahead of a capture, so that the capture itself has little left to copy.

Theory of operation. A page is copied as it is at some generation of the page tracker, and the copy counts as
long as the page has not been found written later. The log is append-only: a page that is copied again gets
another row, the newest one counts, and rows that a capture refers to stay as they are. At a capture the rows
of all changed pages are picked; putting them in order is left to whoever writes the image (`Picked.parts`).

Nobody holds the memory that is copied: it may be gone. So the kernel copies (process_vm_readv(2) of this
process itself), which says so instead of ending the process; and what was copied counts only if at the
capture the region stands at the same place, where a page that was not written since holds what it held.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from cutline.storage.extents import Extents

from .gather import read_by_kernel
from .kernel_pages import PAGE, Runs
from .memory import Bytes
from .page_tracker import Span, runs_of
from .shared_memory import room

__all__ = ("PageLog", "Picked")

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_ROWS = 1024


class _Copies:
    """Of one span: the generation at which each page was copied, and the row of the copy."""

    __slots__ = ("at", "row", "serial")

    def __init__(self, serial: int, pages: int) -> None:
        self.serial = serial
        self.at: Numbers = np.full(pages, -1, np.int64)
        self.row: Numbers = np.zeros(pages, np.int64)


class PageLog:
    """The copies of one participant. `budget`: bytes that they may take."""

    def __init__(self, budget: int) -> None:
        self._most = max(1, budget // (_ROWS * PAGE)) * _ROWS
        self._spans: dict[Span, _Copies] = {}
        self._chunks: list[Bytes] = []
        self._used = 0

    @property
    def room(self) -> int:
        """How many pages may still be copied."""
        return self._most - self._used

    def stale(self, span: Span, serial: int, pages: Numbers, last: Numbers) -> Numbers:
        """Those of `pages`, written last at the generations `last`, of which there is no copy that counts."""
        copies = self._spans.get(span)
        if copies is None or copies.serial != serial:
            return pages
        return pages[copies.at[pages] < last]

    def copy(self, span: Span, serial: int, pages: Numbers, generation: int) -> bool:
        """Copies these pages, as they are at `generation`; false: not all of them could be."""
        copies = self._spans.get(span)
        if copies is None or copies.serial != serial:
            copies = self._spans[span] = _Copies(serial, (span[1] - span[0]) // PAGE)
        done = 0
        while done < len(pages):
            number, at = divmod(self._used, _ROWS)
            if number == len(self._chunks):
                self._chunks.append(room(_ROWS * PAGE))
            some = pages[done : done + _ROWS - at]
            target = self._chunks[number][at * PAGE : (at + len(some)) * PAGE]
            starts, stops = runs_of(some)
            if not read_by_kernel(span[0], starts, stops - starts, target):
                return False
            copies.row[some] = np.arange(self._used, self._used + len(some))
            copies.at[some] = generation
            self._used += len(some)
            done += len(some)
        return True

    def warm(self) -> None:
        """Touches the memory that the next copies go to: the first touch of a page is dear."""
        if self._used // _ROWS == len(self._chunks):
            self._chunks.append(room(_ROWS * PAGE))
            self._chunks[-1][::PAGE] = 0

    def pick(self, span: Span, pages: Numbers, inside: Span) -> Picked:
        """The copies of these pages, all of them current, clipped to [start, stop) of `inside`."""
        runs, skipped = _clipped(runs_of(pages), inside[0] - span[0], inside[1] - inside[0])
        return Picked(tuple(self._chunks), self._spans[span].row[pages], runs, skipped)

    def tidy(self, living: Collection[Span]) -> None:
        """Forgets the copies of all other spans; everything, once half of the room is used or none lives."""
        if not living or self._used * 2 > self._most:
            self._spans.clear()
            self._chunks, self._used = [], 0
        else:
            self._spans = {span: copies for span, copies in self._spans.items() if span in living}


class Picked(Extents):
    """Rows of a log, by the pages that they are copies of. `runs`: (offsets, lengths) of the bytes in the
    region; `skipped`: bytes of the first row that come before them."""

    __slots__ = ("chunks", "rows", "skipped")

    def __init__(self, chunks: Sequence[Bytes], rows: Numbers, runs: Runs, skipped: int) -> None:
        super().__init__(*runs, ())
        self.chunks, self.rows, self.skipped = chunks, rows, skipped

    @property
    def needed(self) -> set[int]:
        """Which of the chunks the rows lie in."""
        return set(np.unique(self.rows // _ROWS).tolist())

    @property
    def parts(self) -> Sequence[memoryview]:
        """The bytes, put in order now."""
        rows = self.rows
        joined: Bytes = np.empty((len(rows), PAGE), np.uint8)
        for number in self.needed:
            here = np.flatnonzero(rows // _ROWS == number)
            joined[here] = self.chunks[number].reshape(_ROWS, PAGE)[rows[here] - number * _ROWS]
        flat = joined.reshape(-1)[self.skipped : self.skipped + self.nbytes]
        return [memoryview(flat.data)]


def _clipped(runs: Runs, skip: int, size: int) -> tuple[tuple[Numbers, Numbers], int]:
    """Offsets and lengths in a region that begins `skip` bytes into the pages; the bytes left out first."""
    starts, stops = runs
    low = np.maximum(starts - skip, 0)
    high = np.minimum(stops - skip, size)
    return (low, high - low), int(low[0] - (starts[0] - skip)) if len(low) else 0
