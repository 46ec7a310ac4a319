"""When to copy ahead: a pure decision, clock passed in.

Checkpoints come in a rhythm, so the next one can be expected. From shortly before it on, a slice of the
pages that it will have to write is copied between messages, again and again until it has come; a slice takes
about a millisecond, which is how long a message may have to wait for it. Nothing depends on the
expectation: a checkpoint that comes unexpected copies what it finds.
"""

from __future__ import annotations

__all__ = ("SLICE_PAGES", "Ahead")

SLICE_PAGES = 256
LEAD = 0.03
# Seconds after a slice that found something, and after one that found nothing.
_NEXT, _LOOK = 0.001, 0.002
# Of the interval, at most.
_SHARE = 0.25


class Ahead:
    """`at`: when the next slice is due, or None. Times in seconds of one clock."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._last: float | None = None
        self._until = 0.0

    def captured(self, now: float, *, worth: bool) -> None:
        """A capture was taken. `worth`: it wrote pages that could have been copied ahead."""
        last, self._last = self._last, now
        self.at = None
        if worth and last is not None:
            period = now - last
            lead = min(LEAD, _SHARE * period)
            self.at, self._until = now + period - lead, now + period + lead

    def sliced(self, now: float, *, full: bool) -> None:
        """A slice was copied. `full`: there may be more."""
        self.at = now + (_NEXT if full else _LOOK)
        if self.at > self._until:
            self.at = None

    def forget(self) -> None:
        """The state is another one."""
        self.at = self._last = None
