"""Durable submissions a second of 64 clients, against what bounds them.

A client is a thread of the program that tells a participant something and goes on when that is
acknowledged: it is in the log then (`options(acked=True)`). The baseline is the smaller of two limits: 64
submissions for each time that a disk takes to append and sync their bytes, and the same calls acknowledged
without a log (`durable=False`). Another participant waits in an async handler all the while: it must not
matter. At the end of each round all that was acknowledged must have been done, once.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import cutline
from bench.row import Row

__all__ = ("Counter", "Sleeper", "measure")

CLIENTS = 64


class Counter:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, text: str) -> None:
        """Counts."""
        self.count += 1

    def total(self) -> int:
        """How often."""
        return self.count


class Sleeper:
    """Waits."""

    async def wait(self, seconds: float) -> None:
        """In an async handler, which holds up nothing."""
        await asyncio.sleep(seconds)


class _Clients:
    """64 threads that submit, each one thing after the other."""

    def __init__(self, folder: str, each: int) -> None:
        self.folder, self.each = folder, each
        self.threads = ThreadPoolExecutor(CLIENTS)
        self.system = cutline.start(f"{folder}/store", name="ingress", interval=None, quiet=True)
        self.counter: Any = self.system.spawn("counter", Counter)
        self.sleeper: Any = self.system.spawn("sleeper", Sleeper)
        self.sleeper.wait.tell(3600.0)
        self.told = 0

    def submitted(self, *, durable: bool) -> float:
        """Submissions a second."""
        add = self.counter.add.options(durable=durable, acked=True)

        def client(_number: int) -> None:
            for _ in range(self.each):
                add.tell("some text of a message that somebody sends")

        began = time.perf_counter()
        list(self.threads.map(client, range(CLIENTS)))
        took = time.perf_counter() - began
        self.told += CLIENTS * self.each
        # What is behind must not be what the next ones wait for.
        if self.counter.total.remote().result() != self.told:
            raise AssertionError("what was acknowledged was not done, or was done twice")
        return CLIENTS * self.each / took

    def synced(self) -> float:
        """64 for each append and sync of their bytes, a second."""
        log = sum(path.stat().st_size for path in Path(self.folder).glob("store/ingress/*.log"))
        record = os.urandom(max(1, log * CLIENTS // max(1, self.told)))
        file = os.open(f"{self.folder}/bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            times = []
            for _ in range(self.each):
                began = time.perf_counter()
                os.write(file, record)
                os.fdatasync(file)
                times.append(time.perf_counter() - began)
        finally:
            os.close(file)
        return CLIENTS / median(times)

    def limit(self) -> float:
        """The smaller one."""
        return min(self.synced(), self.submitted(durable=False))


def measure(*, rounds: int = 15, each: int = 40, warm: int = 1) -> Row:
    """The row; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        clients = _Clients(folder, each)
        try:
            ours: list[float] = []
            baseline: list[float] = []
            for number in range(-warm, rounds):
                first = clients.submitted(durable=True) if number % 2 else 0.0
                limit = clients.limit()
                taken = first or clients.submitted(durable=True)
                if number >= 0:
                    ours.append(taken)
                    baseline.append(limit)
            synced = clients.synced()
        finally:
            clients.threads.shutdown()
            clients.system.stop(checkpoint=False)
    return Row(
        name="ingress_vs_limit",
        unit="submissions/s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_least=0.7,
        note=f"64 for each sync would be {synced:,.0f}; another participant waits in an async handler",
    )
