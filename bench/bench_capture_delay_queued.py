"""From the trigger to the last capture, at a participant that is busy: 100,000 messages queued against 1.

Markers overtake what is queued, so the two must not differ: the time is that of the handler in hand. The
participant's handlers take some ten microseconds. With one message queued it tells itself to go on;
with many, a feeder fills its mailbox beforehand, and the round is checked to have ended before that ran low.
"""

from __future__ import annotations

import tempfile
import time
from statistics import quantiles
from typing import Any

import cutline
from bench.row import Row, interleave

__all__ = ("Busy", "Feeder", "measure")

HANDLER_SECONDS = 0.00001


class Busy:
    """Handlers that only take time."""

    def __init__(self) -> None:
        self.left = 0
        self.going = False

    def work(self) -> None:
        """One queued message."""
        until = time.perf_counter() + HANDLER_SECONDS
        while time.perf_counter() < until:
            self.left += 0
        self.left -= 1

    def go(self, going: bool) -> None:
        """Begins or ends to keep itself busy."""
        self.going = going
        if going:
            cutline.me().again.tell()

    def again(self) -> None:
        """The one queued message."""
        self.left += 1
        self.work()
        if self.going:
            cutline.me().again.tell()

    def expect(self, count: int) -> None:
        """So many messages will come."""
        self.left = count

    def remaining(self) -> int:
        """How many of them have not been handled."""
        return self.left


class Feeder:
    """Fills the mailbox of another."""

    def __init__(self, busy: Any) -> None:
        self.busy = busy
        self.left = 0

    def feed(self, count: int) -> None:
        """Tells it so many messages, a thousand per handler."""
        for _ in range(min(count, 1000)):
            self.busy.work.tell()
        self.left = max(0, count - 1000)
        if self.left:
            cutline.me().feed.tell(self.left)

    def is_done(self) -> bool:
        """Whether all are told."""
        return self.left == 0


class _Pair:
    def __init__(self, folder: str, triggers: int, queued: int) -> None:
        self.triggers, self.queued = triggers, queued
        self.system = cutline.start(
            folder, name="busy", interval=None, keep=4 * triggers, full_every=10_000, quiet=True
        )
        self.busy: Any = self.system.spawn("busy", Busy)
        self.feeder: Any = self.system.spawn("feeder", Feeder, self.busy)
        self.system.checkpoint()

    def _ask(self, method: Any, *args: Any) -> Any:
        return method.options(durable=False).remote(*args).result(timeout=120)

    def _delay(self) -> float:
        """The 99th percentile over the triggers of one round, in milliseconds."""
        numbers = {self.system.checkpoint() for _ in range(self.triggers)}
        delays = [
            row.summary["capture_delay_ms"] for row in self.system.checkpoints() if row.checkpoint in numbers
        ]
        return float(quantiles(delays, n=100, method="inclusive")[98])

    def many(self) -> float:
        """With `queued` messages or more in the mailbox all the while."""
        # The last question below waits behind a window's worth of them.
        count = 6 * self.queued
        self._ask(self.busy.expect, count)
        self._ask(self.feeder.feed, count)
        while not self._ask(self.feeder.is_done):
            time.sleep(0.02)
        delay = self._delay()
        left = self._ask(self.busy.remaining)
        if left < self.queued:
            raise AssertionError(f"only {left} messages were left in the mailbox, {self.queued} are wanted")
        while self._ask(self.busy.remaining) > 0:
            time.sleep(0.2)
        return delay

    def one(self) -> float:
        """With one message in the mailbox."""
        self._ask(self.busy.go, True)
        delay = self._delay()
        self._ask(self.busy.go, False)
        return delay


def measure(*, rounds: int = 15, triggers: int = 20, queued: int = 100_000, warm: int = 1) -> Row:
    """The row; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        pair = _Pair(folder, triggers, queued)
        try:
            ours, baseline = interleave(rounds, pair.many, pair.one, warm=warm)
        finally:
            pair.system.stop(checkpoint=False)
    return Row(
        name="capture_delay_queued",
        unit="ms",
        samples_ours=ours,
        samples_baseline=baseline,
        at_most=1.2,
        note=f"p99 of {triggers} triggers a round; {queued} messages queued or more against 1; handlers of "
        f"{HANDLER_SECONDS * 1e6:.0f} us",
    )
