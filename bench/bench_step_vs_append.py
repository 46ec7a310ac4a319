"""Durable steps of one agent with 2,000 messages in its Log, a second, against bare appends of the same
bytes.

A step calls a function that makes a chat message, stores it in the participant's file, syncs, appends it
to the Log and returns it. The baseline is a loop of `write` and `fdatasync` on a file in the same folder,
with the bytes that the steps wrote: what a disk allows. Both run in the same handler, in turns. At the end
the agent's process is killed: each of the steps must be there, and none may be called again.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import cutline
from bench.row import Row

__all__ = ("Agent", "answer_of", "measure")

_TEXT = "checkpoint agent tool answer the of plan search result maybe done next " * 3


_calls = itertools.count()


def answer_of(number: int) -> dict[str, Any]:
    """A model's answer, which takes no time; how often it was asked for in this process is counted."""
    next(_calls)
    return {"role": "assistant", "content": f"{_TEXT}{number}", "number": number}


class Agent:
    """An agent with a history."""

    def __init__(self, messages: int) -> None:
        self.log: cutline.Log[dict[str, Any]] = cutline.Log()
        for number in range(messages):
            role = ("user", "assistant")[number % 2]
            self.log.append({"role": role, "content": f"{_TEXT}{number}", "number": number})

    def pid(self) -> int:
        return os.getpid()

    def numbers(self) -> tuple[list[int], int]:
        """Of all messages; and how many answers were asked for since this process is there."""
        return [message["number"] for message in self.log], next(_calls)

    def steps(self, first: int, count: int) -> float:
        """So many durable steps; the seconds they took."""
        began = time.perf_counter()
        for number in range(first, first + count):
            self.log.step(answer_of, number)
        return time.perf_counter() - began

    def appends(self, path: str, records: list[bytes]) -> float:
        """The same bytes, appended and synced one by one; the seconds that took."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, b"head")
            os.fdatasync(file)
            began = time.perf_counter()
            for record in records:
                os.write(file, record)
                os.fdatasync(file)
            return time.perf_counter() - began
        finally:
            os.close(file)


def measure(*, rounds: int = 15, messages: int = 2_000, steps: int = 150) -> Row:
    """The row; see the module's head."""
    ours: list[float] = []
    baseline: list[float] = []
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(f"{folder}/store", name="steps", interval=None, quiet=True)
        try:
            agent: Any = system.spawn("agent", Agent, messages)
            system.checkpoint()
            size = 0
            for turn in range(-1, rounds):
                first = messages + (turn + 1) * steps
                # One handler after the other, in both orders.
                taken = agent.steps.remote(first, steps).result() if turn % 2 else 0.0
                record = os.urandom(size // steps or 400)
                bare = agent.appends.remote(f"{folder}/bare-{turn}", [record] * steps).result()
                taken = taken or agent.steps.remote(first, steps).result()
                # Behind the records there is room, which is zeros.
                written = (path.read_bytes() for path in Path(folder).glob("store/steps/*/*/*.steps"))
                grown = sum(len(content.rstrip(b"\0")) for content in written)
                size = grown // (turn + 2)
                if turn >= 0:
                    ours.append(steps / taken)
                    baseline.append(steps / bare)
            os.kill(agent.pid.remote().result(), signal.SIGKILL)
            if _numbers(agent) != (list(range(messages + (rounds + 1) * steps)), 0):
                raise AssertionError("a step was lost, or called again")
        finally:
            system.stop()
    return Row(
        name="step_vs_append",
        unit="steps/s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_least=0.8,
        note=f"a Log of {messages:,} messages, {size // steps} bytes a step",
    )


def _numbers(agent: Any) -> tuple[list[int], int]:
    while True:
        try:
            found: tuple[list[int], int] = agent.numbers.remote().result(timeout=60)
            return found
        except cutline.errors.RolledBack:
            continue
