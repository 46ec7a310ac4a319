"""Participants and tasks that the tests on Ray use; importable where participants run."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import ray

import cutline
from cutline.participant.handle import current_port


@cutline.actor(num_cpus=0.1)
class Cell:
    """Keeps what it is given, in order."""

    def __init__(self, start: Any = None) -> None:
        self.start = start
        self.kept: list[Any] = []
        self.peer: Any = None

    def keep(self, value: Any) -> int:
        self.kept.append(value)
        return len(self.kept)

    def all(self) -> list[Any]:
        return self.kept

    def first(self) -> Any:
        return self.start

    def resources(self) -> Any:
        context: Any = ray.get_runtime_context()
        return context.get_assigned_resources(), os.environ.get("LAMP"), os.environ.get("PYTHONHASHSEED")

    async def grow(self, name: str) -> Any:
        """Spawns another cell, on the same resources, and asks it."""
        child = Cell.options(name=name, num_cpus=0.1).remote(name)  # type: ignore[attr-defined]
        return await child.first.remote()

    def actor_name(self) -> str:
        return str(ray.get_runtime_context().get_actor_name())

    def meet(self, peer: Any) -> None:
        self.peer = peer

    def hand_over(self, count: int, seconds: float) -> None:
        """Tells the peer late values and, behind each, one that is there at once."""
        for number in range(count):
            self.peer.keep.tell(slow.remote(number, seconds))
            self.peer.keep.tell(-number)

    async def hand_over_one(self, seconds: float) -> int:
        answer: int = await self.peer.keep.remote(slow.remote(7, seconds))
        return answer

    async def hand_over_broken(self) -> str:
        try:
            await self.peer.keep.remote(broken.remote())
        except ValueError as error:
            return str(error)
        return "no error"

    def total(self, array: Any) -> float:
        return float(np.sum(array))

    def leave(self) -> None:
        leave: Any = ray.actor.exit_actor
        leave()

    def leave_by_exit(self) -> None:
        sys.exit(3)

    def pid(self) -> int:
        return os.getpid()


class Choosy:
    """Does not come up."""

    def __init__(self) -> None:
        raise LookupError("nothing here is good enough")

    def anything(self) -> None:
        """Never called."""


class Base:
    """What `Wrapped` inherits."""

    def greet(self) -> str:
        return f"hello from {self.name}"

    @property
    def name(self) -> str:
        return type(self).__name__


@ray.remote(num_cpus=0.1, max_restarts=2)
class Wrapped(Base):
    """A class of an existing program, decorated for Ray."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def add(self, more: int) -> int:
        self.count += more
        return self.count

    async def add_slowly(self, more: int) -> int:
        return self.add(more)

    @ray.method(num_returns=1)
    def marked(self) -> int:
        return 1


@ray.remote(max_concurrency=4)  # type: ignore[call-overload]
class Crowded:
    """Cannot be a participant."""


@ray.remote(num_cpus=0)
def slow(value: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return value


@ray.remote(num_cpus=0)
def broken() -> None:
    raise ValueError("the task broke")


@ray.remote(num_cpus=0)
def twice(value: Any) -> Any:
    return 2 * value


@cutline.actor
class Store:
    """Takes large arrays, and may be slow about it."""

    def __init__(self) -> None:
        self.held: Any = None
        self.sums: list[float] = []

    def take(self, array: Any, seconds: float = 0.0) -> tuple[float, bool]:
        time.sleep(seconds)
        self.sums.append(float(array[0] + array[-1]))
        return self.sums[-1], bool(array.flags.writeable)

    async def take_slowly(self, array: Any, other: Any) -> float:
        there = await other.take.remote(array)
        return float(array[0]) + float(there[0])

    def hold(self, array: Any) -> None:
        self.held = array

    def look(self) -> tuple[float, list[float]]:
        return float(0 if self.held is None else self.held.sum()), self.sums

    def send(self, other: Any, count: int, seconds: float) -> None:
        for number in range(count):
            other.take.tell(np.full(300_000, float(number)), seconds)

    def pid(self) -> int:
        return os.getpid()

    def under_way(self) -> list[int]:
        """How many parcels this participant has sent and not forgotten, and how many wait here."""
        port: Any = current_port()
        return [len(port.parcels.out), len(port.parcels.waiting)]
