"""A participant that ticks while checkpoints are taken, and the longest gaps between its ticks.

One participant holds arrays of random numbers and sends itself a message after each tick, which comes about
every 100 us. A gap is the time from the end of one tick to the beginning of the next; the longest one between
50 ms before a checkpoint was begun and 50 ms after it was committed counts, so capture, copying ahead,
hashing, compressing and writing are all in it. Between two such spells the participant pickles its arrays.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

import cutline
from bench.limits import polled

__all__ = (
    "Hashed",
    "Spell",
    "Ticker",
    "asked",
    "by_hand",
    "mebibytes",
    "periodic",
    "spinning",
    "ticking",
    "undisturbed_ticks",
)

PAGE = 4096
AROUND = 0.05
# Gaps that are remembered, in seconds.
NOTED = 0.0002
# Checkpoints of a spell.
SPELL = 4


def mebibytes() -> int:
    """CUTLINE_BENCH_MIB: the size of the state, 1024 without it."""
    return int(os.environ.get("CUTLINE_BENCH_MIB", "1024"))


class Ticker:
    """Arrays that change all the time, `share` of their pages a second."""

    def __init__(self, size: int) -> None:
        self.random = np.random.default_rng(1)
        pages = size * 1024 * 1024 // PAGE // 8
        self.arrays = [self.random.random((pages, PAGE // 4), dtype=np.float32) for _ in range(8)]
        self.pages = 8 * pages
        self.rate = 0.0
        self.ticking = self.busy = False
        self.gaps: list[tuple[float, float]] = []
        self.ticks = 0
        self.ended = self.written = 0.0

    def start(self, share: float, busy: bool = False) -> None:
        """Ticks from now on; `busy`: beside a thread that computes."""
        self.rate, self.busy = share * self.pages, busy
        self.ticking, self.gaps, self.ticks = True, [], 0
        if busy:
            threading.Thread(target=_compute, args=(lambda: self.busy,), daemon=True).start()
        self.ended = self.written = time.perf_counter()
        cutline.me().tick.tell()

    def tick(self) -> None:
        """Notes how late it comes, writes what is due, and asks for the next one."""
        now = time.perf_counter()
        if now - self.ended > NOTED:
            self.gaps.append((time.time(), now - self.ended))
        due = int((now - self.written) * self.rate)
        if due:
            array = self.arrays[self.ticks % 8]
            array[self.random.integers(0, len(array), due), 0] += 1
            self.written = now
        self.ticks += 1
        if self.ticking:
            cutline.me().tick.tell()
        while time.perf_counter() - now < 0.00005:
            pass
        self.ended = time.perf_counter()

    def stop(self) -> tuple[int, list[tuple[float, float]]]:
        """Ends it; how many ticks there were, and (when, seconds) of the gaps."""
        self.ticking = self.busy = False
        return self.ticks, self.gaps

    def burst(self, share: float) -> None:
        """Writes to this share of the pages at once; 1: to everything."""
        for array in self.arrays:
            if share == 1:
                array += 1
            else:
                array[self.random.integers(0, len(array), int(share * len(array))), 0] += 1
        self.ended = time.perf_counter()

    def pickled(self) -> float:
        """Seconds that `pickle.dumps` of the arrays takes."""
        began = time.perf_counter()
        pickle.dumps(self.arrays, 5)
        return time.perf_counter() - began

    def copied(self) -> tuple[float, float]:
        """Seconds that a plain copy takes, the median of three, and those of one to where the last one is."""
        took, again = [], []
        for _ in range(3):
            began = time.perf_counter()
            copies = [array.copy() for array in self.arrays]
            took.append(time.perf_counter() - began)
            began = time.perf_counter()
            for copy, array in zip(copies, self.arrays, strict=True):
                np.copyto(copy, array)
            again.append(time.perf_counter() - began)
            del copies, copy
        return median(took), median(again)


@cutline.actor(tracking="hash")
class Hashed(Ticker):
    """One whose changes are found by hashing."""


def _compute(wanted: Callable[[], bool]) -> None:
    total = 0
    while wanted():
        for number in range(2000):
            total += number


class Spell:
    """What was seen of some checkpoints. Seconds, `captures` in milliseconds as the product tells them.

    `stalls`: the longest gap around each; `pauses`: the longest one in the half second before each, in which
    pages are copied ahead; `elsewhere`: the longest that is around none of `every`.
    """

    def __init__(
        self, ticks: float, gaps: list[tuple[float, float]], rows: list[Any], every: list[Any]
    ) -> None:
        self.stalls = [_longest(gaps, row) for row in rows]
        self.captures = [row.summary["stall_ms_max"] for row in rows]
        self.ticks = ticks
        self.pauses = [_longest_before(gaps, row) for row in rows]
        away = (gap for at, gap in gaps if not any(_near(at, row) for row in every))
        self.elsewhere = max(away, default=0.0)

    @property
    def stall(self) -> float:
        """The median of its checkpoints."""
        return median(self.stalls)

    @property
    def pause(self) -> float:
        """The same of what came before them."""
        return median(self.pauses)


def _near(at: float, row: Any) -> bool:
    return bool(row.begun_at - AROUND <= at <= row.decided_at + AROUND)


def _longest(gaps: list[tuple[float, float]], row: Any) -> float:
    return max((gap for at, gap in gaps if _near(at, row)), default=NOTED)


def _longest_before(gaps: list[tuple[float, float]], row: Any) -> float:
    return max((gap for at, gap in gaps if row.begun_at - 0.5 <= at < row.begun_at), default=NOTED)


@contextmanager
def ticking(kind: type[Ticker], interval: float | None) -> Iterator[tuple[cutline.System, Any]]:
    """A system with one such participant; `interval` None: checkpoints by hand, so none is expected."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(folder, name="ticker", interval=interval, full_every=1_000_000, quiet=True)
        try:
            yield system, system.spawn("ticker", kind, mebibytes())
        finally:
            system.stop()


def asked(method: Any, *arguments: Any) -> Any:
    """The answer of a method of the ticker."""
    return method.options(durable=False).remote(*arguments).result(timeout=300)


def periodic(system: cutline.System, ticker: Any, share: float, busy: bool = False) -> Spell:
    """Some checkpoints that come by themselves, after one that has seen it ticking."""
    asked(ticker.start, share, busy)
    first = _newest(system).checkpoint + 1
    began = time.perf_counter()
    last = first + SPELL
    polled(lambda: _newest(system).checkpoint, lambda newest: newest >= last, f"checkpoint {last}")
    time.sleep(2 * AROUND)
    return _over(system, ticker, first, began)


def by_hand(system: cutline.System, ticker: Any, share: float, burst: float = 0.0) -> Spell:
    """Some checkpoints one second apart, each right after a burst if there is to be one."""
    asked(ticker.start, share)
    started = time.perf_counter()
    if burst:
        asked(ticker.burst, burst)
    system.checkpoint()
    first = _newest(system).checkpoint
    began = time.perf_counter()
    for number in range(1, SPELL + 1):
        time.sleep(max(0.0, began + number - time.perf_counter()))
        if burst:
            asked(ticker.burst, burst)
        system.checkpoint()
    time.sleep(2 * AROUND)
    return _over(system, ticker, first, started)


def _over(system: cutline.System, ticker: Any, first: int, began: float) -> Spell:
    ticks, gaps = asked(ticker.stop)
    rate = ticks / (time.perf_counter() - began)
    every = system.checkpoints()
    return Spell(rate, gaps, [row for row in every if row.checkpoint > first][:SPELL], every)


def undisturbed_ticks(ticker: Any, share: float, seconds: float = 3.0) -> float:
    """Ticks a second while nobody takes checkpoints."""
    asked(ticker.start, share)
    began = time.perf_counter()
    time.sleep(seconds)
    ticks, _ = asked(ticker.stop)
    return float(ticks / (time.perf_counter() - began))


def _newest(system: cutline.System) -> Any:
    return polled(system.checkpoints, bool, "the first checkpoint")[-1]


def spinning(seconds: float) -> float:
    """The longest gap of a loop that does nothing else: what the machine itself takes away."""
    longest, last = 0.0, time.perf_counter()
    over = last + seconds
    while last < over:
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest
