"""What is outside of a system: functions that write each call into a file, whatever it says."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import cutline

WORLD = "CUTLINE_TEST_WORLD"


def lines(path: Path) -> list[str]:
    """What was recorded."""
    return path.read_text().splitlines()


def _record(*words: object) -> int:
    """How many lines there are with the new one."""
    path = Path(os.environ[WORLD])
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, " ".join(map(str, words)).encode() + b"\n")
    os.close(descriptor)
    return lines(path).count(" ".join(map(str, words)))


def pay(number: int, key: str) -> int:
    assert threading.current_thread().name.startswith("cutline-effect")
    _record("pay", number, key)
    return number


async def pay_slowly(number: int, key: str) -> int:
    _record("pay_slowly", number, key)
    return number


def much(number: int) -> bytes:
    return bytes(number)


def refuse(number: int) -> None:
    raise ValueError(f"refused: {number}")


def unkeepable(number: int) -> Any:
    return threading.Lock()


def leave(number: int) -> None:
    raise SystemExit(number)


def stumble(number: int, key: str) -> int:
    if _record("stumble", number, key) < 3:
        raise ConnectionError("try again")
    return number


def ask_more(number: int) -> None:
    cutline.effect(pay, number)


def hang(number: int) -> None:
    _record("hang", number)
    time.sleep(3600)


def hang_keyed(number: int, key: str) -> None:
    _record("hang", number, key)
    time.sleep(3600)


def look(key: str, number: int) -> cutline.Done | cutline.NotDone:
    """Asks the world."""
    there = f"hang {number} {key}" in lines(Path(os.environ[WORLD]))
    return cutline.Done(number) if there else cutline.NotDone()


def slow_once(number: int, key: str) -> int:
    if _record("slow_once", number, key) == 1:
        time.sleep(3600)
    return number


def order(name: str) -> str:
    _record("order", name)
    time.sleep(0.3)
    return name


FUNCTIONS = {
    each.__name__: each
    for each in (pay, pay_slowly, much, refuse, unkeepable, leave, stumble, ask_more, slow_once)
}


class Payer:
    """Asks for effects, and keeps what came back."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def own(self, number: int) -> int:
        return number

    async def wait_for(self, name: str, number: int) -> Any:
        timeout = 1.0 if name == "slow_once" else None
        function: Any = FUNCTIONS.get(name, name)
        return await cutline.effect(function, number, timeout=timeout, retries=2 if name == "stumble" else 0)

    def then(self, number: int) -> None:
        cutline.effect(pay, number).then(self.on_got)

    def then_hanging(self, number: int) -> None:
        cutline.effect(hang_keyed, number, on_unknown=look).then(self.on_got)

    def unsure(self, number: int) -> None:
        cutline.effect(hang, number).then(self.on_got)

    def note(self, number: int) -> None:
        cutline.effect(pay, number, repeatable=True).then(self.on_got)

    async def repeat(self, number: int) -> Any:
        return await cutline.effect(much_less, number, repeatable=True)

    async def together(self, name: str) -> Any:
        return await cutline.effect(order, name, key="one key")

    def on_got(self, value: Any) -> None:
        self.got.append(value)

    def all_got(self) -> list[Any]:
        return self.got


def much_less(number: int) -> int:
    return number


def much_noted(number: int) -> int:
    """For a step of a log."""
    _record("noted", number)
    return number
