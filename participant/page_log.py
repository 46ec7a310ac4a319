"""Pages copied ahead of a capture, so that the capture itself has little left to copy.

Theory of operation. A page is copied as it is at some generation of the page tracker, and the copy counts as
long as the page has not been found written later. The log is append-only: a page that is copied again gets
another row, the newest one counts, and rows that a capture refers to stay as they are. When all changed pages
of a span are copied, their rows are picked (`get_ready`), so that a capture soon after adds to them the few
pages that were written since, and nothing else; putting all in order is left to whoever writes the image
(`Picked`).

Nobody holds the memory that is copied: it may be gone. So the kernel copies (process_vm_readv(2) of this
process itself), which says so instead of ending the process; and what was copied counts only if at the
capture the region stands at the same place, where a page that was not written since holds what it held.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from cutline.storage.extents import Extents

from .gather import read_by_kernel
from .kernel_pages import PAGE
from .memory import Bytes, address
from .page_tracker import Span
from .runs import Runs, runs_of
from .shared_memory import room

__all__ = ("PageLog", "Picked")

_libc = ctypes.PyDLL(None)
_libc.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
Numbers = np.ndarray[Any, np.dtype[np.int64]]
_ROWS = 1024
# As many pages are copied in less time one by one than a call of the kernel takes to prepare.
_SINGLY = 48


class _Ready(NamedTuple):
    """The pages of a span written after generation `since`, until `generation`, and their copies' rows."""

    since: int
    generation: int
    pages: Numbers
    rows: Numbers


class _Copies:
    """Of one span: the generation at which each page was copied, and the row of the copy."""

    __slots__ = ("at", "ready", "row", "serial")

    def __init__(self, serial: int, pages: int) -> None:
        self.serial = serial
        self.at: Numbers = np.full(pages, -1, np.int64)
        self.row: Numbers = np.zeros(pages, np.int64)
        self.ready: _Ready | None = None


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

    def copy(self, span: Span, serial: int, pages: Numbers, generation: int, *, held: bool = False) -> bool:
        """Copies these pages, as they are at `generation`; false: not all of them could be.

        `held`: somebody keeps the memory from being given back.
        """
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
            if held and len(some) <= _SINGLY:
                _copy_singly(span[0], some, target)
            else:
                starts, stops = runs_of(some, PAGE)
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
        runs, skipped = _clipped(runs_of(pages, PAGE), inside[0] - span[0], inside[1] - inside[0])
        return Picked(tuple(self._chunks), self._spans[span].row[pages], runs, skipped)

    def get_ready(self, span: Span, since: int, generation: int, pages: Numbers) -> None:
        """These pages, all of them copied, are those written after `since` until `generation`."""
        copies = self._spans.get(span)
        if copies is not None:
            copies.ready = _Ready(since, generation, pages, copies.row[pages])

    def ready(self, span: Span, serial: int, since: int) -> int | None:
        """Until which generation all pages written after `since` are ready; None: they are not."""
        copies = self._spans.get(span)
        if copies is None or copies.serial != serial or copies.ready is None or copies.ready.since != since:
            return None
        return copies.ready.generation

    def pick_ready(self, span: Span, fresh: Numbers, inside: Span) -> Picked:
        """As `pick`: the pages that are ready, and `fresh` ones, copied since."""
        copies = self._spans[span]
        assert copies.ready is not None
        return _PickedReady(tuple(self._chunks), copies.ready, (fresh, copies.row[fresh]), span, inside)

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


class _PickedReady(Picked):
    """Pages that were ready and `fresh` ones, which count where a page is among both.

    Put in order when it is asked for: the handler waits while a capture makes this.
    """

    __slots__ = ("_fresh", "_inside", "_ready", "_span")

    def __init__(
        self,
        chunks: Sequence[Bytes],
        ready: _Ready,
        fresh: tuple[Numbers, Numbers],
        span: Span,
        inside: Span,
    ) -> None:
        # What the superclasses would set comes about in __getattr__.
        self.chunks, self._ready, self._fresh = chunks, ready, fresh
        self._span, self._inside = span, inside

    def __getattr__(self, name: str) -> Any:
        if name not in ("offsets", "lengths", "rows", "skipped"):
            raise AttributeError(name)
        fresh, rows = self._fresh
        pages, first = np.unique(np.concatenate((fresh, self._ready.pages)), return_index=True)
        self.rows = np.concatenate((rows, self._ready.rows))[first]
        start, stop = self._inside
        runs, self.skipped = _clipped(runs_of(pages, PAGE), start - self._span[0], stop - start)
        self.offsets, self.lengths = runs
        return getattr(self, name)

    @property
    def nbytes(self) -> int:
        """The bytes of all runs."""
        pages, fresh = self._ready.pages, self._fresh[0]
        count = len(pages) + len(fresh)
        if len(pages) and len(fresh):
            count -= int((pages[np.searchsorted(pages[:-1], fresh)] == fresh).sum())
        # The region need not begin and end where pages do.
        (start, stop), (low, high) = self._span, self._inside
        missing = 0
        if low > start and any(len(each) and not each[0] for each in (pages, fresh)):
            missing += low - start
        last = (stop - start) // PAGE - 1
        if high < stop and any(len(each) and each[-1] == last for each in (pages, fresh)):
            missing += stop - high
        return count * PAGE - missing


def _copy_singly(base: int, pages: Numbers, target: Bytes) -> None:
    at = address(target)
    for number in pages.tolist():
        _libc.memmove(at, base + number * PAGE, PAGE)
        at += PAGE


def _clipped(runs: Runs, skip: int, size: int) -> tuple[tuple[Numbers, Numbers], int]:
    """Offsets and lengths in a region that begins `skip` bytes into the pages; the bytes left out first."""
    starts, stops = runs
    low = np.maximum(starts - skip, 0)
    high = np.minimum(stops - skip, size)
    return (low, high - low), int(low[0] - (starts[0] - skip)) if len(low) else 0
