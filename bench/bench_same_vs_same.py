"""A baseline against itself, in turns: what this machine's noise alone makes of a ratio that is 1.

Two of them, since noise has two ways in: computing (the pickling that states are measured against, in one
process) and waiting for another process (a question through a pipe, as every channel does). Where the
interval of one leaves 0.95 to 1.05 nobody can tell a twentieth more or less on this machine now.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench.row import Row, interleave

__all__ = ("GROUP", "measure")

GROUP = "noise"


def _answer(pipe: Connection) -> None:
    """The other process: sends back what it gets until it gets nothing."""
    while message := pipe.recv_bytes():
        pipe.send_bytes(message)


def _pickling(state: Any) -> float:
    began = time.perf_counter()
    pickle.dumps(state, protocol=5)
    return time.perf_counter() - began


def _asking(pipe: Connection, questions: int) -> float:
    message = bytes(100)
    began = time.perf_counter()
    for _ in range(questions):
        pipe.send_bytes(message)
        if pipe.recv_bytes() != message:
            raise AssertionError("the other process sent something else back")
    return time.perf_counter() - began


def _row(name: str, rounds: int, side: Callable[[], float], note: str) -> Row:
    ours, baseline = interleave(rounds, side, side)
    return Row(name, "s", ours, baseline, at_least=0.95, at_most=1.05, note=note, group=GROUP)


def measure(
    *, rounds: int = 30, messages: int = 60_000, questions: int = 4_000, suffix: str = ""
) -> list[Row]:
    """The rows of both; ``suffix`` ends their names."""
    state = [{"role": "user", "id": number, "text": f"message {number}"} for number in range(messages)]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_answer, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        return [
            _row(f"same_pickle{suffix}", rounds, lambda: _pickling(state), f"{messages:,} messages pickled"),
            _row(
                f"same_question{suffix}", rounds, lambda: _asking(ours, questions), f"{questions:,} questions"
            ),
        ]
    finally:
        ours.send_bytes(b"")
        process.join(10)
