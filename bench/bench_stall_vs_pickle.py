"""The longest gap of a ticking handler that a checkpoint causes, against `pickle.dumps` of the same state.

One participant holds arrays of random numbers and sends itself a message after each tick, which comes about
every 100 us. While it ticks it writes to 1 % of its pages a second, evenly; checkpoints come once a second by
themselves. A gap is the time from the end of one tick to the beginning of the next; the longest one between
50 ms before a checkpoint was begun and 50 ms after it was committed counts, so capture, copying ahead,
hashing, compressing and writing are all in it. Between two such spells the participant pickles its arrays.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np

import cutline
from bench.row import Row

__all__ = ("Hashed", "Ticker", "measure", "measure_with")

PAGE = 4096
AROUND = 0.05
# Gaps that are remembered, in seconds.
NOTED = 0.0002
SPELL = 4


class Ticker:
    """Arrays that change all the time."""

    def __init__(self, mebibytes: int, share: float) -> None:
        self.random = np.random.default_rng(1)
        pages = mebibytes * 1024 * 1024 // PAGE // 8
        self.arrays = [self.random.random((pages, PAGE // 4), dtype=np.float32) for _ in range(8)]
        self.rate = 8 * pages * share
        self.ticking = False
        self.gaps: list[tuple[float, float]] = []
        self.ticks = 0
        self.ended = self.written = 0.0

    def start(self) -> None:
        """Ticks from now on."""
        self.ticking, self.gaps, self.ticks = True, [], 0
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
        self.ticking = False
        return self.ticks, self.gaps

    def pickled(self) -> float:
        """Seconds that `pickle.dumps` of the arrays takes."""
        began = time.perf_counter()
        pickle.dumps(self.arrays, 5)
        return time.perf_counter() - began


@cutline.actor(tracking="hash")
class Hashed(Ticker):
    """One whose changes are found by hashing."""


def measure_with(
    name: str, kind: type[Ticker], *, at_least: float, rounds: int = 5, share: float = 0.01
) -> Row:
    """The row for one kind of participant; CUTLINE_BENCH_MIB: the size of its state, 1024 without it."""
    mebibytes = int(os.environ.get("CUTLINE_BENCH_MIB", "1024"))
    stalls: list[float] = []
    pickles: list[float] = []
    elsewhere: list[float] = []
    captures: list[float] = []
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(folder, name="ticker", interval=1.0, full_every=1_000_000, quiet=True)
        try:
            ticker: Any = system.spawn("ticker", kind, mebibytes, share)
            for _ in range(rounds):
                ticker.start.options(durable=False).remote().result(timeout=60)
                newest = _newest(system).checkpoint
                while _newest(system).checkpoint < newest + SPELL + 1:
                    time.sleep(0.05)
                time.sleep(2 * AROUND)
                _, gaps = ticker.stop.options(durable=False).remote().result(timeout=60)
                rows = [row for row in system.checkpoints() if row.checkpoint > newest + 1]
                longest = [_longest(gaps, row.begun_at, row.decided_at) for row in rows[:SPELL]]
                stalls.append(median(longest))
                captures += [row.summary["stall_ms_max"] for row in rows]
                elsewhere.append(
                    max((gap for at, gap in gaps if not any(_near(at, row) for row in rows)), default=0.0)
                )
                pickles.append(ticker.pickled.options(durable=False).remote().result(timeout=120))
        finally:
            system.stop()
    return Row(
        name=name,
        unit="s",
        samples_ours=stalls,
        samples_baseline=pickles,
        ratio="baseline/ours",
        at_least=at_least,
        note=f"{mebibytes} MiB in 8 arrays, {share:.0%} of the pages and one checkpoint a second; "
        f"each sample is the median of {SPELL} checkpoints; capture_ms {median(captures):.2f}, "
        f"gap_ms_max {max(stalls) * 1000:.2f}, longest gap away from checkpoints "
        f"{max(elsewhere) * 1000:.2f} ms",
    )


def _newest(system: cutline.System) -> Any:
    rows = system.checkpoints()
    while not rows:
        time.sleep(0.05)
        rows = system.checkpoints()
    return rows[-1]


def _near(at: float, row: Any) -> bool:
    return bool(row.begun_at - AROUND <= at <= row.decided_at + AROUND)


def _longest(gaps: list[tuple[float, float]], begun: float, decided: float) -> float:
    inside = [gap for at, gap in gaps if begun - AROUND <= at <= decided + AROUND]
    return max(inside, default=NOTED)


def measure() -> Row:
    """The row; see the module's head."""
    return measure_with("stall_vs_pickle", Ticker, at_least=700.0)
