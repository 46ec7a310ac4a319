"""From asking for a commit-gated effect to its start, against one checkpoint of the same system.

Another participant waits in an async handler all the while: it must not matter. The handler notes the time
when it asks, the function when it starts; both are of one machine's clock.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from statistics import median
from typing import Any

import cutline
from bench.row import Row, interleave

__all__ = ("Asker", "Sleeper", "measure")


def started(key: str) -> float:
    """When it was called."""
    return time.monotonic()


class Asker:
    """Asks for effects."""

    async def ask(self) -> float:
        """Seconds from asking to the start."""
        asked = time.monotonic()
        # The result is recorded, so a re-run gets the same one, and only the answer is wrong then.
        began: float = await cutline.effect(started)
        return began - asked


class Sleeper:
    """Waits."""

    async def wait(self, seconds: float) -> None:
        """In an async handler, which holds up nothing."""
        await asyncio.sleep(seconds)


class _Pair:
    def __init__(self, folder: str, times: int) -> None:
        self.times = times
        self.system = cutline.start(folder, name="effects", interval=None, keep=5, quiet=True)
        self.asker: Any = self.system.spawn("asker", Asker)
        self.sleeper: Any = self.system.spawn("sleeper", Sleeper)
        self.sleeper.wait.tell(3600.0)
        self.system.checkpoint()

    def effect(self) -> float:
        """Milliseconds; the median of a round."""
        return median(self._asked() for _ in range(self.times)) * 1000

    def _asked(self) -> float:
        # So that early checkpoints need not wait for each other.
        time.sleep(0.12)
        seconds: float = self.asker.ask.options(durable=False).remote().result(timeout=60)
        return seconds

    def checkpoint(self) -> float:
        """Milliseconds from the request to the reply."""
        return median(self._taken() for _ in range(self.times)) * 1000

    def _taken(self) -> float:
        time.sleep(0.12)
        began = time.monotonic()
        self.system.checkpoint()
        return time.monotonic() - began


def measure(*, rounds: int = 15, times: int = 9, warm: int = 1) -> Row:
    """The row; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        pair = _Pair(folder, times)
        try:
            ours, baseline = interleave(rounds, pair.effect, pair.checkpoint, warm=warm)
        finally:
            pair.system.stop(checkpoint=False)
    return Row(
        name="effect_latency",
        unit="ms",
        samples_ours=ours,
        samples_baseline=baseline,
        at_most=1.5,
        note=f"median of {times} a round, while another participant waits in an async handler",
    )
