"""A program that pays: two participants, one with sync handlers and one with async ones, a dumb recorder.

The recorder is a file to which each call appends a line, whatever it says. Run with a folder and a number of
payments; it may be killed and run again at any moment, and prints ``paid`` when every payment is made.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cutline
from cutline.errors import RolledBack
from tests.effects.points import at, i_am

# The exit status if something was asked for, or delivered, twice.
TWICE = 17
WORLD = Path(os.environ.get("EFFECT_WORLD", "."))


def _record(payer: str, number: int, key: str) -> int:
    at("call")
    descriptor = os.open(WORLD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{payer} {number} {key}\n".encode())
    os.close(descriptor)
    at("called")
    return number


def charge(payer: str, number: int, key: str) -> int:
    """Pays, and does not look whether it has paid before."""
    return _record(payer, number, key)


async def charge_slowly(payer: str, number: int, key: str) -> int:
    """The same, async."""
    return _record(payer, number, key)


def look(key: str, payer: str, number: int) -> cutline.Done | cutline.NotDone:
    """Asks the world."""
    lines = WORLD.read_text().split("\n") if WORLD.exists() else []
    return cutline.Done(number) if f"{payer} {number} {key}" in lines else cutline.NotDone()


class Sync:
    """Pays from sync handlers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[int] = []
        self.paid: list[int] = []

    def pay(self, number: int) -> None:
        self.asked.append(number)
        cutline.effect(charge, self.name, number, on_unknown=look).then(self.on_paid)

    def on_paid(self, number: int) -> None:
        self.paid.append(number)

    def state(self) -> tuple[list[int], list[int]]:
        return self.asked, self.paid


class Async(Sync):
    """Pays from async handlers."""

    async def pay(self, number: int) -> None:  # type: ignore[override]
        number = await cutline.effect(charge_slowly, self.name, number, on_unknown=look)
        self.asked.append(number)
        self.paid.append(number)


def main() -> int:
    folder, times = sys.argv[1], int(sys.argv[2])
    i_am("driver")
    with cutline.start(folder, name="payments", interval=0.5, quiet=True) as system:
        payers = [system.spawn("ann", Sync, "ann"), system.spawn("bob", Async, "bob")]
        for number in range(times):
            for payer in payers:
                pay = payer.pay.options(key=f"{payer!r} {number}")
                _again(partial(pay.tell, number))
            _wait(payers, number + 1)
        print("paid", flush=True)
    return 0


def _again(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call()
        except RolledBack:
            continue


def _asked(question: Any) -> Any:
    return question.remote().result()


def _wait(payers: list[cutline.Handle], wanted: int) -> None:
    """Until all have paid so many, each once, in whatever order."""
    questions = [payer.state.options(durable=False) for payer in payers]
    while True:
        states = [_again(partial(_asked, question)) for question in questions]
        if any(len(set(each)) < len(each) for state in states for each in state):
            print(f"asked for, or delivered, twice: {states}", flush=True)
            sys.exit(TWICE)
        # Whoever is started again begins with what was paid long ago.
        if all(len(paid) >= wanted and sorted(paid) == list(range(len(paid))) for _, paid in states):
            return
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
