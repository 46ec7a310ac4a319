"""A program that asks people, and the person who answers: two participants, one sync and one async.

Run with a folder and a number of questions it asks so many of each participant, and writes down what it was
answered (``EFFECT_GOT``). Run with a folder and ``person`` it answers whatever is open until it is ended, and
writes down what it has seen, tried and been told (``EFFECT_WORLD``); each answer has a word of its own. Both
may be killed and run again at any moment.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from functools import partial
from pathlib import Path

import cutline
from cutline.errors import AnswerRefused, StorageError
from tests.effects.payments import TWICE, _again, _asked
from tests.effects.points import i_am

Answer = list[str]
# Seconds; more than from one fault to the next at least.
THINK = 0.5


class Sync:
    """Asks from sync handlers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[Answer] = []

    def ask(self, number: int) -> None:
        cutline.ask_person(f"{self.name} {number}", list[str]).then(self.on_answer)

    def on_answer(self, answer: Answer) -> None:
        self.got.append(answer)

    def state(self) -> list[Answer]:
        return self.got


class Async(Sync):
    """Asks from async handlers."""

    async def ask(self, number: int) -> None:  # type: ignore[override]
        self.got.append(await cutline.ask_person(f"{self.name} {number}", list[str]))


def program(folder: str, times: int) -> int:
    """Asks so many questions, and waits for the answers."""
    i_am("driver")
    with cutline.start(folder, name="asking", interval=0.5, quiet=True) as system:
        askers = {"ann": system.spawn("ann", Sync, "ann"), "bob": system.spawn("bob", Async, "bob")}
        for number in range(times):
            for name, asker in askers.items():
                ask = asker.ask.options(key=f"{name} {number}")
                _again(partial(ask.tell, number))
            got = _wait(askers, number + 1)
    lines = [f"{name} {number} {word}" for each in got for name, number, word in each]
    Path(os.environ["EFFECT_GOT"]).write_text("\n".join(sorted(lines)) + "\n")
    return 0


def _wait(askers: dict[str, cutline.Handle], wanted: int) -> list[list[Answer]]:
    while True:
        got = [_again(partial(_asked, asker.state.options(durable=False))) for asker in askers.values()]
        numbers = [[number for _, number, _ in each] for each in got]
        if any(len(set(each)) < len(each) for each in numbers):
            print(f"delivered twice: {got}", flush=True)
            sys.exit(TWICE)
        if all(len(each) >= wanted for each in got):
            return got
        time.sleep(0.02)


def person(folder: str) -> None:
    """Answers what is open, for ever."""
    while True:
        try:
            found = cutline.pending(folder, name="asking")
        except StorageError:
            # The store is not there yet.
            found = []
        for question in found:
            # Else it is always answered while the system comes back from what happened at its commit.
            time.sleep(THINK)
            word = secrets.token_hex(4)
            _write(f"try {question.id} {question.text} {word}")
            try:
                cutline.answer(folder, question.id, [*question.text.split(), word], name="asking")
                _write(f"taken {question.id} {question.text} {word}")
            except (AnswerRefused, StorageError) as refusal:
                _write(f"{type(refusal).__name__} {question.id} {question.text} {word}")
        time.sleep(0.05)


def _write(line: str) -> None:
    descriptor = os.open(os.environ["EFFECT_WORLD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


if __name__ == "__main__":
    if sys.argv[2] == "person":
        person(sys.argv[1])
    sys.exit(program(sys.argv[1], int(sys.argv[2])))
