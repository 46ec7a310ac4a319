"""Participants of the tests of whole systems."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import cutline

__all__ = (
    "Asker",
    "Answerer",
    "Bouncer",
    "Bulky",
    "Counter",
    "Deadly",
    "Faulty",
    "Keeper",
    "Locked",
    "Patient",
    "Putter",
    "Retrying",
    "Shared",
    "Sloppy",
)


class Counter:
    """Counts, and remembers what it was told, in order."""

    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.told: list[Any] = []

    def add(self, number: int = 1) -> int:
        """Adds, and says the sum."""
        self.count += number
        return self.count

    def note(self, what: Any) -> None:
        """Remembers."""
        self.told.append(what)

    def notes(self) -> list[Any]:
        """What was noted."""
        return self.told

    def fail(self, text: str) -> None:
        """Raises."""
        self.count += 100
        raise ValueError(text)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()


class Answerer:
    """Answers questions; counts them in its state, and in a file that no rollback touches."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: list[int] = []

    def question(self, number: int) -> int:
        """Ten times the number."""
        self.asked.append(number)
        with open(self.path, "a") as file:
            file.write(f"{number}\n")
        return number * 10

    def questions(self) -> list[int]:
        """What was asked in the history that remains."""
        return self.asked


class Asker:
    """An async handler that waits for five answers, one after the other; changes come after the last."""

    def __init__(self, answerer: Any, gate: Any) -> None:
        self.answerer = answerer
        self.gate = gate
        self.effects: list[list[int]] = []

    async def work(self, rounds: int) -> list[int]:
        """Asks, and before each next question waits until the gate lets it."""
        answers = []
        for number in range(rounds):
            answers.append(await self.answerer.question.remote(number))
            await self.gate.wait_for.remote(number)
        self.effects.append(answers)
        return answers

    def seen(self) -> list[list[int]]:
        """What the handler did to the state."""
        return self.effects


class Keeper:
    """A gate that holds async handlers up: `wait_for(n)` is answered after `open(n)`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def wait_for(self, number: int) -> int:
        """Answers when a file of that number exists, which no rollback undoes."""
        Path(self.folder, f"reached-{number}").touch()
        while not Path(self.folder, f"open-{number}").exists():
            await asyncio.sleep(0.02)
        return number


class Locked:
    """Its state cannot be saved."""

    def __init__(self) -> None:
        self.fine = 1
        self.deep = {"inner": [threading.Lock()]}


class Faulty:
    """Told things, it raises: the default policy halts."""

    def __init__(self) -> None:
        self.tries = 0

    def explode(self, text: str) -> None:
        """Raises."""
        self.tries += 1
        raise RuntimeError(text)

    def add(self, number: int) -> int:
        """Something that works."""
        return number + 1


@cutline.actor(on_error="retry", retries=2)
class Retrying(Faulty):
    """Told things, it raises until a file says that it need not."""

    def fragile(self, path: str) -> None:
        """Raises unless `path` holds two lines; writes one each time."""
        self.tries += 1
        with open(path, "a+") as file:
            file.seek(0)
            seen = len(file.readlines())
            file.write("tried\n")
        if seen < 2:
            raise RuntimeError(f"not yet ({seen})")

    def count(self) -> int:
        """Tries that remain."""
        return self.tries


@cutline.actor(on_error="dead_letter")
class Putter(Faulty):
    """Messages at which it raises are put aside."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[int] = []

    def put(self, number: int) -> None:
        """Takes even numbers only; changes its state before it notices."""
        self.added.append(number)
        if number % 2:
            raise RuntimeError(f"{number} is odd")

    def all(self) -> list[int]:
        """What was put."""
        return self.added


class Deadly:
    """Handlers that end their own process."""

    def leave(self, status: int) -> None:
        """sys.exit."""
        sys.exit(status)

    def die(self) -> None:
        """SIGKILL to itself."""
        os.kill(os.getpid(), signal.SIGKILL)

    def fine(self) -> str:
        """Lives on."""
        return "fine"


class Sloppy:
    """An async handler that changes state, then awaits."""

    def __init__(self) -> None:
        self.count = 0
        self.big: Any = None

    def load(self, size: int) -> None:
        """A large state."""
        self.big = np.zeros(size, dtype=np.uint8)

    async def bad(self, other: Any) -> int:
        """Wrong."""
        self.count += 1
        answer: int = await other.add.remote(1)
        return answer

    async def good(self, other: Any) -> int:
        """Right."""
        answer: int = await other.add.remote(1)
        self.count += 1
        return answer

    async def late(self, other: Any, wrong: bool) -> int:
        """Right or wrong as told, by the same name."""
        if wrong:
            self.count += 1
        answer: int = await other.add.remote(1)
        return answer

    def total(self) -> int:
        """The count."""
        return self.count


class Patient:
    """Handlers that take their time."""

    def __init__(self) -> None:
        self.done = 0

    def work(self, seconds: float, begun: str = "") -> int:
        """Blocks the whole handler; touches a file first."""
        if begun:
            Path(begun).touch()
        time.sleep(seconds)
        self.done += 1
        return self.done

    def count(self) -> int:
        """How often it has worked."""
        return self.done

    def block(self, other: Any) -> Any:
        """Waits for another participant, which a handler must not."""
        return other.add.remote(1).result()

    def get(self, other: Any) -> Any:
        """The same by the module's function."""
        return cutline.get([other.add.remote(1)])


class Bulky:
    """Takes and gives large values."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.array: Any = None

    def swallow(self, content: Any) -> int:
        """Says how much it was."""
        self.sizes.append(len(content))
        return len(content)

    def give(self, size: int) -> bytes:
        """So many bytes."""
        return b"x" * size

    def fill(self, size: int, seed: int) -> int:
        """A state of `size` bytes that compresses badly."""
        self.array = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        return int(self.array.sum())

    def checksum(self) -> int:
        """Of the state."""
        return int(self.array.sum())

    def forward(self, to: Any, size: int) -> None:
        """Sends so many bytes on."""
        to.swallow.tell(b"y" * size)


class Bouncer:
    """Plays ping-pong, and talks to itself."""

    def __init__(self) -> None:
        self.other: Any = None
        self.seen: dict[int, int] = {}
        self.own: list[int] = []
        self.finished = 0

    def meet(self, other: Any) -> None:
        """Who plays on the other side."""
        self.other = other

    def ball(self, token: int, left: int) -> None:
        """Counts the token and hits it back; and tells itself twenty things."""
        self.seen[token] = self.seen.get(token, 0) + 1
        for number in range(20):
            cutline.me().echo.tell(number)
        if left:
            self.other.ball.tell(token, left - 1)
        else:
            self.finished += 1

    def echo(self, number: int) -> None:
        """What it has told itself, in order."""
        self.own.append(number)

    def result(self) -> tuple[dict[int, int], int, bool, int]:
        """Tokens seen, own messages, whether those came in order, tokens that ended here."""
        return self.seen, len(self.own), self.own == list(range(20)) * (len(self.own) // 20), self.finished


class Shared:
    """Keeps handles and Refs in its state and hands them on."""

    def __init__(self, counter: Any) -> None:
        self.counter = counter
        self.handles = {"deep": [counter]}
        self.refs: list[Any] = []
        self.got: list[Any] = []

    def ask(self, number: int) -> None:
        """Keeps the Ref of a question."""
        self.refs.append(self.counter.add.remote(number))

    def follow(self) -> None:
        """Continues with the answers of the kept Refs."""
        for index, ref in enumerate(self.refs):
            ref.then(self.on_answer, index)

    def on_answer(self, answer: int, index: int) -> None:
        """A continuation."""
        self.got.append((index, answer))

    def lend(self, to: Any) -> None:
        """Sends its handle and its Refs to somebody."""
        to.borrow.tell(self.handles["deep"][0], self.refs)

    async def borrow(self, counter: Any, refs: list[Any]) -> None:
        """Awaits Refs that somebody else asked for, and uses a handle that came by message."""
        answers = [await ref for ref in refs]
        total = await counter.add.remote(0)
        self.got.append(("borrowed", answers, total))

    def ask_done(self) -> None:
        """Asks the first how often it has worked, at once."""
        self.counter.count.remote().then(self.on_done)

    def on_done(self, answer: int) -> None:
        """A continuation."""
        self.got.append(answer)

    def answers(self) -> list[Any]:
        """What came."""
        return self.got

    def myself(self) -> Any:
        """A handle to itself, out of a handler."""
        return cutline.me()


class Pourer:
    """Sends numbers to a taker, in order."""

    def __init__(self, taker: Any) -> None:
        self.taker = taker
        self.next = 0

    def pour(self, number: int) -> int:
        """So many more; returns how many there were."""
        for _ in range(number):
            self.taker.take.tell(self.next)
            self.next += 1
        return self.next

    def poured(self) -> int:
        """How many there were."""
        return self.next


class Taker:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.ballast = np.random.default_rng(5).integers(0, 256, 300_000, dtype=np.uint8)

    def take(self, number: int) -> None:
        """One more."""
        self.seen.append(number)
        self.ballast[len(self.seen)] ^= 1

    def taken(self) -> int:
        """How many there were."""
        return len(self.seen)

    def in_order(self) -> bool:
        """Whether each came once, in order."""
        return self.seen == list(range(len(self.seen)))
