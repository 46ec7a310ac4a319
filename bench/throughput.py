"""What is kept of an application's throughput while checkpoints are taken, against none, in turns.

One participant holds arrays and plain objects (a chat history), and sends itself a message after each; a
handler computes for about 100 us, and a tenth of a per cent of the arrays' pages is written a second. A
round has two spells of a few seconds, one with checkpoints at a fixed rate and one without, in alternating
order; messages handled a second of the one are set against those of the other.
"""

from __future__ import annotations

import os
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np

import cutline
from bench.row import Row
from bench.trigger import Trigger, enough

__all__ = ("Keeper", "measure_at")

PAGE = 4096
TEXT = 2000
# Seconds before a spell is measured, for what the one before it has left.
_SETTLE = 0.2
WORDS = ("the", "plan", "cut", "holds", "a", "message", "nobody", "answers", "before", "noon")


class Keeper:
    """Arrays that change a little, a history that stays, and work that never ends."""

    def __init__(self, mebibytes: int, plain: int, share: float) -> None:
        self.random = np.random.default_rng(1)
        pages = mebibytes * 1024 * 1024 // PAGE // 8
        self.arrays = [self.random.random((pages, PAGE // 4), dtype=np.float32) for _ in range(8)]
        self.history = [_message(number, self.random) for number in range(plain * 1024 * 1024 // TEXT)]
        self.rate = 8 * pages * share
        self.working = False
        self.handled = 0
        self.written = 0.0

    def start(self) -> None:
        """Works from now on."""
        self.working, self.written = True, time.perf_counter()
        cutline.me().work.tell()

    def work(self) -> None:
        """Computes, writes what is due, and asks for the next one."""
        now = time.perf_counter()
        due = int((now - self.written) * self.rate)
        if due:
            array = self.arrays[self.handled % 8]
            array[self.random.integers(0, len(array), due), 0] += 1
            self.written = now
        total = 0
        for number in range(1500):
            total += number
        self.handled += 1
        if self.working:
            cutline.me().work.tell()

    def count(self) -> tuple[float, int]:
        """(seconds of its clock, messages handled)."""
        return time.perf_counter(), self.handled

    def stop(self) -> None:
        """Ends it."""
        self.working = False


def _message(number: int, random: np.random.Generator) -> dict[str, Any]:
    words = [WORDS[at] for at in random.integers(0, len(WORDS), 40).tolist()]
    text = " ".join(words) + f" {number} "
    return {"role": "user" if number % 2 else "model", "id": number, "text": text * (TEXT // len(text))}


def measure_at(
    name: str,
    per_second: float,
    *,
    at_least: float,
    rounds: int = 20,
    spell: float = 4.0,
    mebibytes: int | None = None,
) -> Row:
    """The row for one rate. ``mebibytes``: the arrays' size; the rest a tenth of it.

    Without it CUTLINE_BENCH_MIB says it, and 1024 without that.
    """
    mebibytes = mebibytes or int(os.environ.get("CUTLINE_BENCH_MIB", "1024"))
    plain = mebibytes * 100 // 1024
    kept: list[float] = []
    free: list[float] = []
    taken: list[int] = []
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(folder, name="keeper", interval=None, quiet=True)
        try:
            keeper: Any = system.spawn("keeper", Keeper, mebibytes, plain, 0.001)
            keeper.start.options(durable=False).remote().result(timeout=60)
            for _ in range(3):
                system.checkpoint()
            with Trigger(system, per_second) as trigger:
                for number in range(2 * rounds):
                    measured = (number + number // 2) % 2 == 0
                    (trigger.wanted.set if measured else trigger.wanted.clear)()
                    time.sleep(_SETTLE)
                    before = trigger.taken
                    (kept if measured else free).append(_rate(keeper, spell))
                    trigger.check()
                    if measured:
                        taken.append(trigger.taken - before)
            keeper.stop.options(durable=False).remote().result(timeout=60)
            stalls = [row.summary["stall_ms_max"] for row in system.checkpoints()[4:]]
        finally:
            system.stop()
    enough(taken, [spell] * rounds, per_second)
    return Row(
        name=name,
        unit="messages/s",
        samples_ours=kept,
        samples_baseline=free,
        at_least=at_least,
        by="lower",
        note=f"{mebibytes} MiB in 8 arrays, 0.1 % of their pages a second, {plain} MiB of plain objects; "
        f"{rounds} pairs of {spell:g} s; asked for {per_second:g} checkpoints a second, "
        f"{sum(taken) / (rounds * spell):.2f} taken; capture_ms {median(stalls):.1f}",
    )


def _rate(keeper: Any, spell: float) -> float:
    before = keeper.count.options(durable=False).remote().result(timeout=60)
    time.sleep(spell)
    after = keeper.count.options(durable=False).remote().result(timeout=60)
    return float((after[1] - before[1]) / (after[0] - before[0]))
