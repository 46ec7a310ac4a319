"""When to begin a checkpoint, and of which kind: a pure decision, clock passed in.

* Periodic ones every `interval` seconds, counted from the beginning of the last one, and never sooner than
  `min_pause` after the end of any, a failed one too: where checkpoints take longer than the interval, or the
  store is full, the system still works for a while between two. Requests do not wait for that.
* At most `most_open` undecided at once. A request that finds no place waits; requests for a plain
  checkpoint that wait together are answered by one.
* *Early* ones, because an effect waits for a cut that holds it: at most one each `EARLY_PAUSE` seconds,
  shared by all who wait then. They do not put off periodic ones; where one of those is due, it is that one.
* While the system is being suspended none that nobody asks for: its savepoint is to be the last.
* A savepoint is always full and always its own. The first checkpoint is full, and every `full_every`-th if
  that is asked for; an aborted full does not count. Chains of deltas are kept short without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ("EARLY_PAUSE", "LONGEST_PAUSE", "Start", "Trigger", "Wanted", "usual_pause")

LONGEST_PAUSE = 1.0
# Seconds from the beginning of one early checkpoint to the next.
EARLY_PAUSE = 0.1


def usual_pause(interval: float | None) -> float:
    """The pause between periodic checkpoints, in seconds, unless another one is asked for."""
    return 0.0 if interval is None else min(interval / 2, LONGEST_PAUSE)


class Wanted(NamedTuple):
    """Somebody asked for a checkpoint; `label` makes it a savepoint. `ticket` is theirs."""

    ticket: Any
    label: str | None


class Start(NamedTuple):
    """Begin now; these tickets are answered by it."""

    full: bool
    label: str | None
    tickets: tuple[Any, ...]
    early: bool = False


@dataclass
class Trigger:
    """See the module's head. Times in seconds of one clock."""

    interval: float | None
    min_pause: float = 0.0
    full_every: int | None = None
    most_open: int = 2
    deltas: int = 0
    last_end: float = 0.0
    last_begin: float = 0.0
    had_full: bool = False
    early: bool = False
    last_early: float = float("-inf")
    # Whether only those are begun that somebody asks for.
    resting: bool = False
    queue: list[Wanted] = field(default_factory=list)

    def want(self, wanted: Wanted) -> None:
        """Queues a request."""
        self.queue.append(wanted)

    def want_early(self) -> None:
        """An effect waits for a checkpoint that is begun from now on."""
        self.early = True

    def next_start(self, now: float, open_count: int) -> Start | None:
        """What to begin at `now`, if anything; call again until None."""
        if open_count >= self.most_open:
            return None
        if self.queue:
            first = self.queue[0]
            if first.label is not None:
                self.queue.pop(0)
                return self._begun(now, True, first.label, (first.ticket,))
            plain = [wanted for wanted in self.queue if wanted.label is None]
            self.queue = [wanted for wanted in self.queue if wanted.label is not None]
            return self._begun(now, self._full_due(), None, tuple(wanted.ticket for wanted in plain))
        if self.resting:
            return None
        over = self.interval is not None and now - self.last_begin >= self.interval
        if self.early and now - self.last_early >= EARLY_PAUSE:
            self.last_early = now
            return self._begun(now, self._full_due(), None, (), early=not over)
        if open_count or not over or now - self.last_end < self.min_pause:
            return None
        return self._begun(now, self._full_due(), None, ())

    def _full_due(self) -> bool:
        periodic = self.full_every is not None and self.deltas + 1 >= self.full_every
        return periodic or not self.had_full

    def _begun(
        self, now: float, full: bool, label: str | None, tickets: tuple[Any, ...], *, early: bool = False
    ) -> Start:
        # Whatever begins now holds what was asked for before.
        self.early = False
        if not early:
            self.last_begin = now
        return Start(full, label, tickets, early)

    def ended(self, now: float, full: bool, committed: bool) -> None:
        """A checkpoint was decided."""
        self.last_end = now
        if committed:
            if full:
                self.deltas, self.had_full = 0, True
            else:
                self.deltas += 1

    def next_in(self, now: float) -> float | None:
        """Seconds until the next one begins if nobody asks for it; None: nobody knows."""
        return None if self.interval is None or self.queue else self.patience(now)

    def patience(self, now: float) -> float:
        """Seconds until `next_start` may have something to say by the clock alone."""
        if self.resting:
            return 3600.0
        early = max(0.0, self.last_early + EARLY_PAUSE - now) if self.early else 3600.0
        if self.interval is None:
            return early
        periodic = max(0.0, self.last_begin + self.interval - now, self.last_end + self.min_pause - now)
        return min(early, periodic)
