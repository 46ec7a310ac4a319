"""When to copy ahead: a pure decision, clock passed in.

The coordinator says, when a checkpoint is decided, in how many seconds it will begin the next one by itself.
Before that the pages that the next capture will have to write are copied in slices between messages: first
all of them, in time for it, then, shortly before it comes and until it has come, what was written since. A
slice takes about a millisecond, which is how long a message may have to wait for it. Nothing depends on what
was said: a checkpoint that comes unexpected copies what it finds.
"""

from __future__ import annotations

__all__ = ("SLICE_PAGES", "Ahead")

SLICE_PAGES = 256
# A capture that had fewer pages to write copies as many in less time than one look for them takes.
FEW_PAGES = 2 * SLICE_PAGES
# Seconds before the checkpoint in which new writes are looked for, and those before that for each slice that
# the last capture would have filled: a slice, messages in between, and other work on the processor.
LEAD, PER_SLICE = 0.012, 0.008
# How late a checkpoint may be until it is not waited for any more.
_LATE = 0.04
# Seconds after a slice that found as much as it may, and after one that found less.
_NEXT, _LOOK = 0.001, 0.003
# Of the time until the checkpoint, at most, in per cent.
SHARE = 25


class Ahead:
    """`at`: when the next slice is due, or None. Times in seconds of one clock."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._pages = 0
        self._near = self._until = 0.0

    def captured(self, pages: int) -> None:
        """A capture was taken. It wrote so many pages that could have been copied ahead."""
        self.at = None
        self._pages = pages

    def expect(self, now: float, seconds: float) -> None:
        """The next checkpoint begins in so many seconds."""
        if self._pages >= FEW_PAGES:
            lead = min(LEAD + PER_SLICE * self._pages / SLICE_PAGES, SHARE * seconds / 100)
            due = now + seconds
            self.at, self._near, self._until = due - lead, due - LEAD, due + _LATE

    def sliced(self, now: float, *, full: bool) -> None:
        """A slice was copied. `full`: there may be more."""
        self.at = now + _NEXT if full else max(now + _LOOK, self._near)
        if self.at > self._until:
            self.at = None

    def forget(self) -> None:
        """The state is another one."""
        self.at = None
        self._pages = 0
