"""Plain Ray actors, for the rows that are measured against Ray, and the one local Ray that they run in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import ray

__all__ = ("Echo", "PlainPair", "local_ray", "restart_seconds", "spare_hosts", "typical")

_PATIENCE = 60.0


@contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of this program's own, unless it is connected to one."""
    if ray.is_initialized():
        yield
        return
    ray.init("local", include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def spare_hosts() -> set[int]:
    """Processes of this program's Ray that stand by, or did once: they keep the title when they are taken."""
    found, here = set(), str(os.getpid())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            if title.startswith(b"ray::RayHost.stand_by") and _parent(_parent(process.name)) == here:
                found.add(int(process.name))
        except OSError:
            # It is gone.
            continue
    return found


def _parent(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


def typical(times: int, call: Callable[[], Any]) -> float:
    """Seconds of one call, made one at a time: the median."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken)


class _Taker:
    """Counts what it is sent."""

    def __init__(self) -> None:
        self.expect(0)

    def expect(self, goal: int) -> None:
        self.count = self.bytes = 0
        self.goal = goal
        self.ended = 0.0

    def take(self, payload: bytes) -> None:
        self.count += 1
        self.bytes += len(payload)
        if self.count == self.goal:
            self.ended = time.monotonic()

    def take_all(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.take(payload)

    def report(self) -> tuple[int, int, float]:
        return self.count, self.bytes, self.ended


class _Giver:
    """Sends each message as one Ray call, or ``batch`` of them in one, and waits for none."""

    def __init__(self, to: Any, size: int, batch: int) -> None:
        self.to = to
        self.payload = bytes(size)
        self.batch = batch

    def start(self, messages: int) -> float:
        began = time.monotonic()
        if self.batch == 1:
            for _ in range(messages):
                self.to.take.remote(self.payload)
        else:
            for first in range(0, messages, self.batch):
                self.to.take_all.remote([self.payload] * min(self.batch, messages - first))
        return began


class PlainPair:
    """Two plain Ray actors, one of which calls the other."""

    def __init__(self, size: int, *, batch: int = 1) -> None:
        self.size = size
        taker: Any = ray.remote(_Taker)
        giver: Any = ray.remote(_Giver)
        self.taker = taker.remote()
        self.giver = giver.remote(self.taker, size, batch)

    def rate(self, messages: int) -> float:
        """Messages a second, from the sender's first call to the receiver's last."""
        ray.get(self.taker.expect.remote(messages))
        began: float = ray.get(self.giver.start.remote(messages))
        deadline = time.monotonic() + _PATIENCE
        while True:
            count, size, ended = ray.get(self.taker.report.remote())
            if ended or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if (count, size) != (messages, messages * self.size):
            raise AssertionError(f"plain Ray lost or doubled messages: {count}, {size} bytes of {messages}")
        return messages / float(ended - began)

    def close(self) -> None:
        ray.kill(self.giver)
        ray.kill(self.taker)


class Echo:
    """Has nothing and does nothing."""

    def nothing(self) -> None:
        """For the time of a call and its answer."""

    def pid(self) -> int:
        """Which process this is."""
        return os.getpid()


def restart_seconds(actor: Any) -> float:
    """Seconds from the SIGKILL of a plain actor's process until Ray has it answer again."""
    before: int = ray.get(actor.pid.remote())
    began = time.monotonic()
    os.kill(before, signal.SIGKILL)
    # With max_task_retries it is Ray that asks again, not this loop.
    after = ray.get(actor.pid.remote(), timeout=_PATIENCE)
    while after == before:
        after = ray.get(actor.pid.remote(), timeout=_PATIENCE)
    return time.monotonic() - began
