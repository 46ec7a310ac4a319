"""Four participants pass numbered messages around a cycle, and prove that each was applied once, in order.

Several tokens travel at once. Token ``t`` of ``T`` carries the numbers t, t+T, t+2T, ...: each hop applies
the number it carries and sends the next one on, so all tokens together apply 0 .. N-1, each once. A
participant knows which number of a token comes to it next; anything else is a fault, kept in its state.

Handlers executed by all processes, those that died included, may exceed what one undisturbed run needs by
what the recoveries logged as rerun, and by nothing more. Exit status 0 if all of that holds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import cutline
from cutline.errors import RolledBack

SIZE = 4
T = TypeVar("T")


class Ring:
    """One of the participants."""

    def __init__(self, index: int, total: int, tokens: int, pause: float) -> None:
        self.index = index
        self.total = total
        self.tokens = tokens
        self.pause = pause
        self.next: Any = None
        self.applied: list[int] = []
        self.faults: list[tuple[int, int]] = []
        # The number that a token brings here next: it starts at its own participant and goes round.
        self.expected = {t: t + tokens * ((index - t) % SIZE) for t in range(tokens)}

    def connect(self, following: Any) -> None:
        """Who is next in the ring."""
        self.next = following

    def take(self, number: int) -> None:
        """Applies a number and passes its successor on."""
        token = number % self.tokens
        if number != self.expected[token]:
            self.faults.append((self.expected[token], number))
        self.expected[token] = number + self.tokens * SIZE
        self.applied.append(number)
        if self.pause:
            time.sleep(self.pause)
        if number + self.tokens < self.total:
            self.next.take.tell(number + self.tokens)

    def report(self) -> tuple[list[int], list[tuple[int, int]]]:
        """What was applied, in order, and what should not have come."""
        return self.applied, self.faults


def again(call: Callable[[], T]) -> T:
    """The outcome of a call that a recovery may undo under our hands."""
    while True:
        try:
            return call()
        except RolledBack:
            continue


def connect(one: cutline.Handle, following: cutline.Handle) -> int:
    """Connects and waits: only then may a number come from elsewhere. Returns how often it was asked."""
    asked = 0
    while True:
        asked += 1
        try:
            one.connect.remote(following).result()
            return asked
        except RolledBack:
            continue


def ask_until_kept(one: cutline.Handle) -> tuple[Any, int]:
    """A report that no recovery can undo any more, and how often it was asked for."""
    asked = 0
    while True:
        asked += 1
        try:
            return one.report.remote().result(committed=True), asked
        except RolledBack:
            continue


def judge(reports: list[Any], total: int) -> list[str]:
    """What is wrong, in sentences; empty if nothing is."""
    wrong = []
    numbers = sorted(number for applied, _faults in reports for number in applied)
    if numbers != list(range(total)):
        wrong.append(f"{len(numbers)} numbers were applied, {len(set(numbers))} different ones, of {total}")
    for index, (_applied, faults) in enumerate(reports):
        wrong += [f"ring{index} expected {expected} and got {got}" for expected, got in faults[:5]]
    return wrong


def main() -> int:
    """Runs the ring to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.002, help="seconds each handler takes")
    parser.add_argument("--interval", type=float, default=0.2)
    options = parser.parse_args()
    began = time.monotonic()
    system = cutline.start(
        os.environ["KILLER_STORAGE"], name=os.environ["KILLER_SYSTEM"], interval=options.interval
    )
    with system:
        spawn = system.spawn
        ring = [
            again(lambda k=k: spawn(f"ring{k}", Ring, k, options.messages, options.tokens, options.pause))  # type: ignore[misc]
            for k in range(SIZE)
        ]
        calls = 0
        for k, one in enumerate(ring):
            calls += connect(one, ring[(k + 1) % SIZE])
        for token in range(options.tokens):
            ring[token % SIZE].take.options(key=f"token {token}").tell(token)
        reports: list[Any] = []
        while sum(len(applied) for applied, _faults in reports) < options.messages:
            while again(system.status)["handlers"] < options.messages + calls:
                time.sleep(0.1)
            reports = []
            for one in ring:
                report, asked = ask_until_kept(one)
                reports.append(report)
                calls += asked
        status = again(system.status)
        return conclude(reports, status, system, options, calls, time.monotonic() - began)


def conclude(
    reports: list[Any],
    status: dict[str, Any],
    system: cutline.System,
    options: argparse.Namespace,
    calls: int,
    seconds: float,
) -> int:
    """Prints the figures and judges them."""
    recoveries = [notice for notice in system.notices if notice["what"] == "recovered"]
    reruns = sum(notice["handlers_rerun"] for notice in recoveries)
    executed = status["handlers_run"]
    wrong = judge(reports, options.messages)
    if executed - calls > options.messages + reruns:
        wrong.append(f"{executed - calls} handlers were executed, more than {options.messages} + {reruns}")
    if executed - calls < options.messages:
        wrong.append(f"only {executed - calls} of {options.messages} handlers were counted as executed")
    doc = {
        "messages": options.messages,
        "applied": sum(len(applied) for applied, _faults in reports),
        "handlers_executed": executed,
        "driver_calls": calls,
        "handlers_rerun": reruns,
        "recoveries": len(recoveries),
        "coordinators_lost": len(system.coordinator_deaths),
        "checkpoints": status["committed"],
        "seconds": round(seconds, 1),
        "wrong": wrong,
    }
    print(json.dumps(doc), flush=True)
    print(
        f"handlers executed {executed} - {calls} calls of the driver = {executed - calls} "
        f"<= {options.messages} + {reruns} logged reruns: {executed - calls <= options.messages + reruns}",
        flush=True,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
