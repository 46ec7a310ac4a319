"""What changed in a region since an earlier capture: by the kernel's account, by hashes, or all of it.

Theory of operation. A `Mark` is what is known of a region's content at one moment: the generation of the
page tracker (`cutline.participant.page_tracker`), the hashes of its blocks (`cutline.participant.blocks`),
both, or nothing but its size. Two marks that have the same kind of knowledge tell what differs between them;
without it everything counts as changed. Marks are values and hold no memory.

Which way a region goes is found out as it is used:

- *kernel*, wherever the kernel gives an account and the memory is of the kind that it can be had for;
- *hash* elsewhere, and for a region that is at another address at each capture: an account is about
  addresses, hashes are about content;
- *whole*, for some captures, where nearly everything changes each time: knowing what did not costs more than
  writing it. A few blocks (`cutline.participant.sample`) tell when that is over.

`tracking` is "auto", or "kernel" or "hash" for one who wants to have it so; "whole" for a capture that is
looked at and thrown away.

Nobody may write while a capture is taken, but a thread of the program can. The second look, after the copies
(`RegionTracker.end`), finds that out in the way in which the changes were found: pages were written, hashes
differ, or the source is no longer what its copy is. Whatever is the same in all regions from before the first
copy until after the last one is so at one moment. Content that was written and put back in between is not
seen by the last two, nor in the first and the last page of a region that the kernel tracks if other memory
lies there too; what was copied is held against the hashes, as it could be such content.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cutline.errors import RefusedOption
from cutline.storage.extents import Extents

from .blocks import Hasher, Hashes, changed_runs
from .gather import gather, is_copy
from .kernel_pages import PAGE, KernelRefused
from .memory import Bytes, address
from .other_threads import others_run
from .page_log import PageLog
from .page_tracker import PageTracker, Span, process_pages, rounded
from .runs import Runs, runs_of
from .sample import Sample

__all__ = ("TRACKING", "Mark", "RegionTracker", "Taken", "chosen_tracking", "insist", "tracking_here")

TRACKING = ("auto", "kernel", "hash")
_VARIABLE = "CUTLINE_TRACKING"
# Above this part of a region, in per cent and averaged over some captures, it is written whole.
NEARLY_ALL = 85
_AVERAGED = 4
_WHOLE_FOR = 7
# Where less of the blocks that are looked at has changed, it is not written whole any more.
_NOT_ALL = 0.5
_MOVES = 2
LOG_BYTES = 128 << 20
_SETTLED = 16
# As many pages are worth less than a look at which of them are to be copied again.
_FEW = 256
# So many looks at a few pages each take less time than one at everything.
_LOOKS = 64


class PageMark(NamedTuple):
    """A moment of a watched span: its serial number, the tracker's generation, where in it the region began.

    One that begins elsewhere has other bytes at each place, though nobody wrote: `del raw[:16]` of a
    bytearray moves its beginning.
    """

    serial: int
    generation: int
    start: int


@dataclass(frozen=True, slots=True)
class Mark:
    """What is known of a region's content at one moment; `size` in bytes."""

    size: int
    pages: PageMark | None = None
    hashes: Hashes | None = None


class Taken(NamedTuple):
    """What a capture has of a region: the memory itself, what is known of it, and the copy."""

    memory: Bytes
    mark: Mark
    copied: Extents


@dataclass(slots=True)
class _Habit:
    """How a region has been used lately."""

    place: int = 0
    refused: int = 0
    moves: int = 0
    stayed: int = 0
    whole_for: int = 0
    sample: Sample = field(default_factory=Sample)
    changed: deque[float] = field(default_factory=lambda: deque(maxlen=_AVERAGED))

    def seen_at(self, place: int) -> None:
        if self.place == place:
            self.stayed += 1
            if self.stayed >= _SETTLED:
                self.moves = 0
        elif self.place:
            self.moves += 1
            self.stayed = 0
        self.place = place

    def is_written_whole(self, memory: Bytes) -> bool:
        if self.whole_for:
            self.whole_for -= 1
            if self.sample.look(memory) < _NOT_ALL:
                self.whole_for = 0
                return False
            if not self.whole_for:
                # One capture tells whether it is still so.
                self.changed.extend([1.0] * (_AVERAGED - 1))
            return True
        if len(self.changed) == _AVERAGED and 100 * sum(self.changed) > NEARLY_ALL * _AVERAGED:
            self.changed.clear()
            self.sample.look(memory)
            self.whole_for = _WHOLE_FOR
            return True
        return False


def chosen_tracking(option: object, environment: Mapping[str, str] = os.environ) -> str:
    """What a participant's option says, else the environment, else "auto".

    Raises:
        RefusedOption: no such way of tracking.
    """
    source, told = ("option tracking", option) if option else (_VARIABLE, environment.get(_VARIABLE, "auto"))
    if told not in TRACKING:
        raise RefusedOption(f"{source}={told!r}: choose one of {', '.join(TRACKING)}")
    return str(told)


def insist(tracking: str) -> None:
    """Raises RefusedOption if it is "kernel" and the kernel gives no account here."""
    if tracking == "kernel" and tracking_here()[0] != "kernel":
        raise RefusedOption(f"tracking='kernel' is not to be had: {tracking_here()[1]}. 'auto' uses hashes")


def tracking_here() -> tuple[str, str]:
    """("kernel", "") where the kernel gives an account of written pages, else ("hash", the reason)."""
    pages = process_pages()
    return ("hash", str(pages)) if isinstance(pages, KernelRefused) else ("kernel", "")


class RegionTracker:
    """The regions of one participant. `block`: the grain of hashing in bytes.

    Where the kernel gives no account, "kernel" is as good as "hash"; see `insist`.
    """

    def __init__(self, tracking: str = "auto", block: int = 4096) -> None:
        self.hasher = Hasher(block)
        self.tracking = tracking
        self.ways: dict[int, str] = {}
        self._whys: dict[int, str] = {}
        self._pages: PageTracker | None = None
        self._habits: dict[int, _Habit] = {}
        self._generation = 0
        self._log = PageLog(LOG_BYTES)
        self._looked: dict[int, Span] = {}
        # What this capture read of them after it had looked.
        self._read: list[Span] = []
        self._others = False
        # The ends of those regions that share pages with other memory, as they were.
        self._ends: dict[int, bytes] = {}
        if tracking in ("auto", "kernel"):
            pages = process_pages()
            self._pages = pages if isinstance(pages, PageTracker) else None

    # -- a capture -------------------------------------------------------------------------------------

    def begin(self, memories: Mapping[int, Bytes]) -> None:
        """A capture of these regions, by number, begins: nobody writes to them until it is over."""
        self._habits = {number: self._habits.get(number) or _Habit() for number in memories}
        found = {number: self._way(number, memory) for number, memory in memories.items()}
        self.ways = {number: way for number, (way, _) in found.items()}
        self._whys = {number: why for number, (_, why) in found.items() if why}
        self._looked, self._read = {}, []
        # One that writes and ends in the middle of it is not there to be seen after the copies.
        self._others, self._ends = others_run(), {}
        if self._pages is None:
            return
        asked = [number for number, way in self.ways.items() if way == "kernel"]
        spans = [_span(memories[number]) for number in asked]
        if self._others:
            self._ends = {number: _ends(memories[number]) for number in asked}
        for number, watched in zip(asked, self._pages.watch(self, spans), strict=True):
            if not watched:
                # Not asked again for this place: asking costs a look at all mappings of the process.
                self.ways[number], self._whys[number] = "hash", "memory"
                self._habits[number].refused = address(memories[number])
        self._generation = self._pages.look(self) if asked else 0

    def _way(self, number: int, memory: Bytes) -> tuple[str, str]:
        """How this capture finds what changed there, and why not by the kernel."""
        if self.tracking == "whole":
            return "whole", "chosen"
        habit = self._habits[number]
        habit.seen_at(address(memory))
        if self.tracking == "auto" and habit.is_written_whole(memory):
            return "whole", "changes"
        if self._pages is None:
            return "hash", "chosen" if self.tracking == "hash" else "account"
        if habit.refused == habit.place:
            return "hash", "memory"
        if self.tracking == "auto" and habit.moves >= _MOVES:
            return "hash", "moves"
        return "kernel", ""

    def reasons(self) -> dict[str, list[str]]:
        """By way, why this capture did not go by the kernel's account.

        "chosen", "account" (there is none here), "memory" (none of this memory), "moves" (from capture to
        capture), "changes" (nearly all of it does).
        """
        found = sorted({(self.ways[number], why) for number, why in self._whys.items()})
        return {way: [why for each, why in found if each == way] for way, _ in found}

    def mark(self, number: int, memory: Bytes, latest: Mark | None, base: Mark | None) -> Mark:
        """What is known of the region from now on. `latest`, `base`: its newest mark, and the delta's."""
        way, size = self.ways[number], memory.nbytes
        pages = hashes = None
        if way == "kernel":
            pages = self._page_mark(memory)
            self._looked[number] = (address(memory), address(memory) + size)
        if way == "hash" or (pages and base and base.hashes and not _comparable(base.pages, pages)):
            hashes = self._hash(memory, latest if latest and latest.hashes else base)
        return Mark(size, pages, hashes)

    def changed(self, number: int, memory: Bytes, base: Mark | None, now: Mark) -> Extents:
        """A copy of what differs between two moments of the region; of all of it, if that is not known."""
        extents = None
        if base is not None and base.size == now.size:
            extents = self._picked(memory, base, now)
        if extents is None:
            if number in self._looked:
                self._read.append(_span(memory))
            runs = None if base is None or base.size != now.size else self._between(memory, base, now)
            if runs is None:
                return _all_of(memory)
            extents = gather(memory, runs)
        self._habits[number].changed.append(extents.nbytes / now.size)
        return extents

    def _picked(self, memory: Bytes, base: Mark, now: Mark) -> Extents | None:
        """What was copied ahead, with what was not added to it; None: that is no use here."""
        if self._pages is None or not base.pages or not now.pages or not _comparable(base.pages, now.pages):
            return None
        span, start = _span(memory), address(memory)
        inside, log, since = (start, start + memory.nbytes), self._log, base.pages.generation
        ready = log.ready(span, now.pages.serial, since)
        fresh = None if ready is None else self._pages.written_lately(span, ready)
        if fresh is not None and len(fresh) <= min(_FEW, log.room):
            copied = self._copied(span, now.pages.serial, fresh)
            return log.pick_ready(span, fresh, inside) if copied else None
        pages, last = self._pages.pages_written(span, since)
        stale = log.stale(span, now.pages.serial, pages, last)
        if len(stale) * 2 > len(pages) or len(stale) > log.room:
            return None
        return log.pick(span, pages, inside) if self._copied(span, now.pages.serial, stale) else None

    def _copied(self, span: Span, serial: int, pages: Any) -> bool:
        starts, stops = runs_of(pages, PAGE)
        self._read += zip((span[0] + starts).tolist(), (span[0] + stops).tolist(), strict=True)
        return self._log.copy(span, serial, pages, self._generation, held=True)

    def end(self, taken: Mapping[int, Taken]) -> list[int]:
        """After the copies: the regions that somebody has written to since `begin`, as far as is known.

        Another look at content costs as much as the first one, and is spared where nobody is who could write.
        """
        pages = self._written_to()
        if self.tracking == "whole" or not (self._others or others_run()):
            # Of what is thrown away nothing can be torn. A participant is not refused for a thread's luck.
            return pages
        unlike = [number for number, region in taken.items() if not self._is_as_taken(number, region)]
        return [*pages, *unlike]

    def _is_as_taken(self, number: int, region: Taken) -> bool:
        """Whether the content is what was captured, as far as that is not told by its pages."""
        memory, mark, copied = region
        if mark.pages:
            # Somebody else may write to what else lies in the first page and in the last.
            return number not in self._ends or self._ends[number] == _ends(memory)
        if mark.hashes is None:
            return is_copy(copied, memory)
        with memory.data as view:
            return self.hasher.agree(mark.hashes, copied) and self.hasher.agree(mark.hashes, [(0, view)])

    def _written_to(self) -> list[int]:
        """The regions of which a page was written since `begin`.

        What the capture did not read since then is in it as it was then. So another look at that could only
        find out that somebody writes who should not, and is spared where nobody is who could.
        """
        self._log.tidy({rounded(*place) for place in self._looked.values()})
        if not self._looked or self._pages is None:
            return []
        few = len(self._read) <= _LOOKS and not others_run()
        self._pages.look(self, self._read if few else None)
        return [
            number
            for number, (start, stop) in self._looked.items()
            if self._pages.written_inside(start, stop, self._generation)
        ]

    # -- between captures ------------------------------------------------------------------------------

    def copy_ahead(self, places: Mapping[tuple[int, int], int], base: Mapping[int, Mark], most: int) -> int:
        """Copies up to `most` pages that were written since `base`; how many.

        `places`: the regions' numbers by address and size, as they were last.
        """
        if self._pages is None:
            return 0
        generation = self._pages.look(self)
        copied, most = 0, min(most, self._log.room)
        for (start, size), number in places.items():
            span, mark = rounded(start, start + size), base.get(number)
            serial = self._pages.serial(span)
            if serial is None or mark is None or not mark.pages or mark.pages[::2] != (serial, start):
                continue
            pages, last = self._pages.pages_written(span, mark.pages.generation)
            stale = self._log.stale(span, serial, pages, last)
            some = stale[: most - copied]
            if len(some) and not self._log.copy(span, serial, some, generation):
                continue
            copied += len(some)
            if len(some) == len(stale):
                self._log.get_ready(span, mark.pages.generation, generation, pages)
        self._log.warm()
        return copied

    # -- a restore -------------------------------------------------------------------------------------

    def first(self, memory: Bytes, known: Mark | None = None) -> Mark:
        """What is known of memory that was just filled. `known`: a mark of the same content."""
        if self._pages is not None:
            pages = self._pages.watch_too(self, _span(memory))
            if pages is not None:
                return Mark(memory.nbytes, PageMark(*pages, address(memory)))
        hashes = known.hashes if known and known.size == memory.nbytes else None
        return Mark(memory.nbytes, None, hashes or self._hash(memory, None))

    def since(self, memory: Bytes, mark: Mark) -> Runs | None:
        """What of `memory` differs from the moment of `mark`; None: that is not known."""
        now = Mark(memory.nbytes)
        if mark.size != memory.nbytes:
            return None
        if self._pages is not None and self._pages.is_watched(self, _span(memory)):
            self._generation = self._pages.look(self)
            now = Mark(memory.nbytes, self._page_mark(memory))
            if _comparable(mark.pages, now.pages):
                return self._between(memory, mark, now)
        if mark.hashes is not None:
            now = Mark(memory.nbytes, None, self._hash(memory, mark))
        return self._between(memory, mark, now)

    # -- knowledge -------------------------------------------------------------------------------------

    def _page_mark(self, memory: Bytes) -> PageMark | None:
        assert self._pages is not None
        serial = self._pages.serial(_span(memory))
        return None if serial is None else PageMark(serial, self._generation, address(memory))

    def _hash(self, memory: Bytes, before: Mark | None) -> Hashes:
        with memory.data as view:
            if before is None or before.hashes is None or before.size != memory.nbytes:
                return self.hasher.first(view)
            return self.hasher.next(before.hashes, view)

    def _between(self, memory: Bytes, base: Mark, now: Mark) -> Runs | None:
        if base.pages and now.pages and _comparable(base.pages, now.pages):
            assert self._pages is not None
            return _inside(self._pages.written(_span(memory), base.pages.generation), memory)
        if base.hashes and now.hashes:
            return changed_runs(base.hashes, now.hashes, self.hasher.block)
        return None


def _all_of(memory: Bytes) -> Extents:
    return gather(memory, (np.array([0]), np.array([memory.nbytes])))


def _span(memory: Bytes) -> Span:
    start = address(memory)
    return rounded(start, start + memory.nbytes)


def _ends(memory: Bytes) -> bytes:
    """What of it lies in pages that are not all its own."""
    start, size = address(memory), memory.nbytes
    head, tail = -start % PAGE, (start + size) % PAGE
    return memory[:head].tobytes() + memory[max(0, size - tail) :].tobytes()


def _comparable(one: PageMark | None, other: PageMark | None) -> bool:
    return one is not None and other is not None and (one.serial, one.start) == (other.serial, other.start)


def _inside(runs: Runs, memory: Bytes) -> Runs:
    """Runs of whole pages, relative to the first one, as runs of the region."""
    start = address(memory)
    skipped = start - _span(memory)[0]
    starts, stops = runs
    starts, stops = np.maximum(starts - skipped, 0), np.minimum(stops - skipped, memory.nbytes)
    return starts, stops
