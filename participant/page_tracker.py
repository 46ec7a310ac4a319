"""Which pages of watched memory were written, and since when: one account per process, any number of askers.

Theory of operation. A scan of the kernel's account consumes it, so there is one reader (`KernelPages`), and
it writes down for each page the *generation*, the number of the scan that found it written. Who took a
capture remembers the generation it was taken at; what was written since is what has a higher one. So
overlapping and aborted captures, several participants in a process, and whoever looks in between, take
nothing from each other, and nothing needs to be given back.

Facts belong to addresses. Nothing refers to the owners of the memory: whoever asks names the spans that live
now (`watch`), all others are dropped. Memory that was freed and came again at the same address is another
mapping, and the kernel says so; then every page counts as written. A span has a serial number of its own, so
that what was known of one that came and went is never taken for what is known of the next.
"""

from __future__ import annotations

import bisect
import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .kernel_pages import PAGE, KernelPages, KernelRefused
from .mappings import count_mappings, eligible
from .runs import Runs, runs_of

__all__ = ("PageTracker", "Span", "process_pages", "rounded")

Span = tuple[int, int]
# What the kernel says of memory that cannot be tracked, or is not what it was.
_CANNOT = (errno.EPERM, errno.EINVAL, errno.ENOMEM, errno.EBUSY, errno.ENOENT, errno.EFAULT)
# At the limit of mappings the next one who pays would be the user's own allocation.
MAPPINGS_PER_SPAN = 8
# Of so many scans in a row that found so few pages each it is known at once what they found.
_SCANS, _FEW = 64, 1024
# Counting them means reading all of them.
_COUNTED_EVERY = 256
_MAX_MAP_COUNT = "/proc/sys/vm/max_map_count"


def rounded(start: int, stop: int) -> Span:
    """The whole pages that hold these addresses."""
    return start // PAGE * PAGE, -(-stop // PAGE) * PAGE


class _Watched:
    """One span of pages: when each was last found written."""

    __slots__ = ("askers", "last", "lately", "lately_from", "newest", "serial", "start", "stop")

    def __init__(self, span: Span, serial: int, generation: int) -> None:
        self.start, self.stop = span
        self.serial = serial
        self.last = np.full((self.stop - self.start) // PAGE, generation, np.int64)
        self.newest = generation
        self.askers = 0
        # The pages that each scan after generation `lately_from` found.
        self.lately: list[tuple[int, Any]] = []
        self.lately_from = generation

    def found(self, runs: Runs, generation: int) -> None:
        """Those pages that lie in here were written."""
        starts, stops = runs
        first = int(np.searchsorted(stops, self.start, side="right"))
        end = int(np.searchsorted(starts, self.stop, side="left"))
        if first >= end:
            return
        self.newest = generation
        low = np.maximum(starts[first:end], self.start)
        low -= self.start
        high = np.minimum(stops[first:end], self.stop)
        high -= self.start
        low //= PAGE
        high //= PAGE
        if end - first == 1 and high[0] - low[0] > _FEW:
            self.last[int(low[0]) : int(high[0])] = generation
            self._forget_lately(generation)
            return
        pages = _every(low, high)
        self.last[pages] = generation
        if len(pages) > _FEW or len(self.lately) == _SCANS:
            self._forget_lately(generation)
        else:
            self.lately.append((generation, pages))

    def _forget_lately(self, generation: int) -> None:
        self.lately, self.lately_from = [], generation

    def all_written(self, generation: int) -> None:
        self.last[:] = generation
        self.newest = generation
        self._forget_lately(generation)


def _every(low: Any, high: Any) -> Any:
    """All numbers of the ranges [low, high)."""
    lengths = high - low
    total = int(lengths.sum())
    if total == len(low):
        return low
    before = np.cumsum(lengths)
    before -= lengths
    return np.arange(total) + np.repeat(low - before, lengths)


class _Places:
    """Spans, ascending; which of them overlap another is found by halving, however many there are."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        # Of each span: how far it, or one before it, reaches.
        self._reach: list[int] = []

    def add(self, span: Span) -> None:
        at = bisect.bisect_left(self._spans, span)
        self._spans.insert(at, span)
        self._reach.insert(at, 0)
        self._settle(at)

    def remove(self, span: Span) -> None:
        at = bisect.bisect_left(self._spans, span)
        del self._spans[at], self._reach[at]
        self._settle(at)

    def _settle(self, at: int) -> None:
        reach = self._reach[at - 1] if at else 0
        for number in range(at, len(self._spans)):
            reach = max(reach, self._spans[number][1])
            if self._reach[number] == reach:
                return
            self._reach[number] = reach

    def around(self, start: int, stop: int) -> list[Span]:
        """Those that have a page of [start, stop)."""
        found = []
        for at in range(bisect.bisect_right(self._reach, start), len(self._spans)):
            span = self._spans[at]
            if span[0] >= stop:
                break
            if span[1] > start:
                found.append(span)
        return found


class PageTracker:
    """The account. Threads may share it.

    Raises:
        KernelRefused: there is none to be had here.
    """

    def __init__(self) -> None:
        self._kernel = KernelPages()
        self._lock = threading.RLock()
        self._generation = 0
        self._serial = 0
        self._spans: dict[Span, _Watched] = {}
        self._places = _Places()
        self._asked: weakref.WeakKeyDictionary[object, set[Span]] = weakref.WeakKeyDictionary()
        # What askers that are gone cared for. Their end may come in the middle of anything.
        self._orphans: deque[set[Span]] = deque()
        self._most = _mappings_allowed() // MAPPINGS_PER_SPAN
        # Mappings of the process when they were counted last, and spans that were to be watched since.
        self._mappings, self._uncounted = 0, _COUNTED_EVERY

    def watch(self, asker: object, spans: Sequence[Span]) -> list[bool]:
        """From now on `asker` cares for these spans (see `rounded`) alone; whether each is watched."""
        with self._lock:
            asked, wanted = self._cares(asker), dict.fromkeys(spans)
            if wanted.keys() != asked:
                self._add(asked, [span for span in wanted if span not in asked])
                self._leave([span for span in asked if span not in wanted])
                asked.intersection_update(wanted)
            return [span in self._spans for span in spans]

    def watch_too(self, asker: object, span: Span) -> tuple[int, int] | None:
        """From now on `asker` cares for this span too: its serial and the generation now, or None."""
        with self._lock:
            asked = self._cares(asker)
            if span not in asked:
                self._add(asked, [span])
            if span not in self._spans:
                return None
            self._generation += 1
            self._scan(*span)
            watched = self._spans.get(span)
            return None if watched is None else (watched.serial, self._generation)

    def is_watched(self, asker: object, span: Span) -> bool:
        """Whether `asker` cares for this span, so that its `look` sees all that was written there."""
        with self._lock:
            return span in self._asked.get(asker, ())

    def _cares(self, asker: object) -> set[Span]:
        """The watched spans that it cares for."""
        while self._orphans:
            self._leave(self._orphans.popleft())
        asked = self._asked.get(asker)
        if asked is None:
            asked = self._asked[asker] = set()
            weakref.finalize(asker, self._orphans.append, asked)
        return asked

    def _add(self, asked: set[Span], spans: list[Span]) -> None:
        self._begin([span for span in spans if span not in self._spans])
        for span in spans:
            if span in self._spans:
                self._spans[span].askers += 1
                asked.add(span)

    def _begin(self, spans: list[Span]) -> None:
        if not spans:
            return
        fit = eligible(spans)
        room = self._room(len(spans))
        for span, fits in zip(spans, fit, strict=True):
            if not fits or room <= 0:
                continue
            fresh = self._uncovered(span)
            try:
                # Only what nobody watches yet: to protect a page is to forget that it was written.
                for part in fresh:
                    self._kernel.protect(*part)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                # Some kinds of memory cannot be registered.
                for part in fresh:
                    self._kernel.release(*part)
                continue
            room -= 1
            self._serial += 1
            self._spans[span] = _Watched(span, self._serial, self._generation)
            self._places.add(span)

    def _room(self, more: int) -> int:
        """How many spans may still be watched: each may split mappings, of which there are not many."""
        self._uncounted += more
        if self._uncounted > _COUNTED_EVERY:
            self._uncounted, self._mappings = more, count_mappings()
        mappings = self._mappings + 2 * self._uncounted
        return self._most - len(self._spans) if mappings < 4 * self._most else 0

    def _leave(self, spans: Iterable[Span]) -> None:
        for span in spans:
            watched = self._spans.get(span)
            if watched is None:
                continue
            watched.askers -= 1
            if watched.askers <= 0:
                self._drop(span)

    def _drop(self, span: Span) -> None:
        del self._spans[span]
        self._places.remove(span)
        for part in self._uncovered(span):
            self._kernel.release(*part)

    def _uncovered(self, span: Span) -> list[Span]:
        """The parts of it that belong to no watched span."""
        parts = []
        at, stop = span
        for other_start, other_stop in self._places.around(*span):
            if other_start > at:
                parts.append((at, other_start))
            at = max(at, other_stop)
        if at < stop:
            parts.append((at, stop))
        return parts

    def look(self, asker: object, only: Sequence[Span] | None = None) -> int:
        """Scans what `asker` watches, or `only` these parts of it; the generation that it is now."""
        with self._lock:
            self._generation += 1
            for start, stop in _united(sorted(self._asked.get(asker, ()) if only is None else only)):
                self._scan(start, stop)
            return self._generation

    def _scan(self, start: int, stop: int) -> None:
        here = [self._spans[span] for span in self._places.around(start, stop)]
        try:
            runs = self._kernel.scan(start, stop)
            if len(runs[0]):
                for watched in here:
                    watched.found(runs, self._generation)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _CANNOT:
                # Other memory than was registered stands there, at least in part. Who has some of these pages
                # and others too has lost nothing of the others.
                for watched in here:
                    watched.found(_as_runs(start, stop), self._generation)
                for watched in here:
                    if start <= watched.start and watched.stop <= stop:
                        self._renew((watched.start, watched.stop))
                return
            # Too little memory, or a signal: what the kernel has said is lost, and it will not say it again.
            for watched in here:
                watched.all_written(self._generation)
            raise

    def _renew(self, span: Span) -> None:
        """Protects it anew. Who shares pages with it may have lost writes to them: they count as written."""
        self._generation += 1
        for other in self._places.around(*span):
            self._spans[other].found(_as_runs(*span), self._generation)
        if eligible([span])[0]:
            try:
                self._kernel.protect(*span)
                return
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
        for spans in self._asked.values():
            spans.discard(span)
        self._drop(span)

    def serial(self, span: Span) -> int | None:
        """The number of the watched span; None: it is not watched."""
        with self._lock:
            watched = self._spans.get(span)
            return None if watched is None else watched.serial

    def written(self, span: Span, since: int) -> Runs:
        """The pages of a watched span found written after generation `since`, as ranges from its start."""
        with self._lock:
            watched = self._spans[span]
            if watched.newest <= since:
                return _NOTHING
            return runs_of(np.flatnonzero(watched.last > since), PAGE)

    def pages_written(self, span: Span, since: int) -> tuple[Any, Any]:
        """The same as page numbers, and the generation in which each was last found written."""
        with self._lock:
            watched = self._spans[span]
            if watched.newest <= since:
                return _NOTHING
            pages = np.flatnonzero(watched.last > since)
            return pages, watched.last[pages]

    def written_lately(self, span: Span, since: int) -> Any | None:
        """The pages of a span written after `since`, ascending; None: `pages_written` has to be asked."""
        with self._lock:
            watched = self._spans[span]
            if since < watched.lately_from:
                return None
            found = [pages for generation, pages in watched.lately if generation > since]
            if not found:
                return _NOTHING[0]
            return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def written_inside(self, start: int, stop: int, since: int) -> bool:
        """Whether a page that lies wholly in [start, stop), all watched, was written after `since`."""
        span = rounded(start, stop)
        with self._lock:
            watched = self._spans.get(span)
            if watched is None or watched.newest <= since:
                return False
            first = (start - span[0]) > 0
            end = len(watched.last) - ((span[1] - stop) > 0)
            return bool((watched.last[int(first) : end] > since).any())

    def close(self) -> None:
        """Lets go of everything; nothing is watched any more."""
        with self._lock:
            self._spans.clear()
            self._places = _Places()
            self._asked.clear()
            self._kernel.close()


_NOTHING: Runs = (np.empty(0, np.int64), np.empty(0, np.int64))


def _as_runs(start: int, stop: int) -> Runs:
    return np.array([start]), np.array([stop])


def _united(spans: Sequence[Span]) -> list[Span]:
    """Overlapping ones as one."""
    found: list[Span] = []
    for start, stop in spans:
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _mappings_allowed() -> int:
    try:
        with open(_MAX_MAP_COUNT, "rb") as told:
            return int(told.read())
    except (OSError, ValueError):
        return 65_530


# -- the tracker of this process ---------------------------------------------------------------------------

_guard = threading.Lock()
_shared: PageTracker | KernelRefused | None = None


def process_pages() -> PageTracker | KernelRefused:
    """The tracker of this process, or why it has none."""
    global _shared
    with _guard:
        if _shared is None:
            try:
                _shared = PageTracker()
            except KernelRefused as error:
                _shared = error.with_traceback(None)
        return _shared


def _after_fork_in_child() -> None:
    """A scan through the parent's descriptors would clear the parent's account."""
    global _shared, _guard
    _guard = threading.Lock()
    if isinstance(_shared, PageTracker):
        _shared._kernel.close()
    _shared = None


os.register_at_fork(after_in_child=_after_fork_in_child)
