"""A system whose checkpoints are read and edited: states with all that makes reading one hard."""

from __future__ import annotations

import asyncio
import enum
import os
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import cutline

__all__ = ("Book", "Estate", "Mood", "Sleeper", "Trader", "make_estate")


class Mood(enum.Enum):
    """A state has one."""

    CALM = 1
    WILD = 2


@dataclass
class Book:
    """Orders, and whoever holds them."""

    owner: Any = None
    orders: dict[str, int] = field(default_factory=dict)


class Trader:
    """Trades, with a state of many kinds."""

    lock = cutline.transient(threading.Lock)

    def __init__(self, cash: int) -> None:
        self.cash = cash
        self.mood = Mood.CALM
        self.book = Book(self, {f"o{n}": n for n in range(100)})
        self.same = self.book
        self.prices = np.arange(100_000, dtype=np.float64)
        self.tail = self.prices[-4:]
        self.small = np.array([1, 2, 3])
        self.log = list(range(2000))
        self.recent: deque[tuple[int, str]] = deque([(1, "a"), (2, "b")], maxlen=5)
        self.since = datetime(2026, 1, 2, tzinfo=timezone.utc)
        self.peers: list[Any] = []
        self.asked: Any = None
        self.seen: set[str] = {"b", "a"}
        self.raw = bytearray(300_000)
        self.ledger: cutline.Map[int, str] = cutline.Map({n: f"row {n}" for n in range(500)})

    def connect(self, peers: list[Any]) -> None:
        """Knows others, and asks one."""
        self.peers = peers
        self.asked = peers[0].rest.remote(3600)

    def earn(self, amount: int, book: Book | None = None) -> int:
        """Is told, one after the other."""
        self.cash += amount
        return self.cash

    def cash_now(self) -> int:
        """Asked after a restore."""
        return self.cash


class Sleeper:
    """Has handlers that do not end."""

    def __init__(self) -> None:
        self.slept = 0

    async def rest(self, seconds: float) -> None:
        """Waits for a timer."""
        await asyncio.sleep(seconds)
        self.slept += 1

    async def wait_for(self, other: Any) -> None:
        """Waits for an answer."""
        await other.rest.remote(3600)
        self.slept += 1


class Estate:
    """Where a store is, and what is in it."""

    def __init__(self, folder: Path, tells: int) -> None:
        self.folder = folder
        self.tells = tells

    def hashes(self) -> dict[str, bytes]:
        """The content of every blob."""
        blobs = self.folder / "blobs"
        return {
            str(path.relative_to(blobs)): path.read_bytes() for path in blobs.rglob("*") if path.is_file()
        }


def make_estate(folder: Path, tells: int = 300) -> Estate:
    """Runs the system for a moment and stops it: a savepoint "early", and the newest checkpoint."""
    assert "CUTLINE_HOME" in os.environ
    with cutline.start(folder, name="estate", interval=None, quiet=True) as system:
        traders = [system.spawn(f"t{n}", Trader, 100 * n) for n in range(2)]
        sleeper, other = system.spawn("s", Sleeper), system.spawn("other", Sleeper)
        cutline.get([each.connect.remote([sleeper, *traders]) for each in traders])
        sleeper.wait_for.tell(other)
        system.savepoint("early")
        for number in range(tells):
            traders[0].earn.tell(1, Book(None, {"n": number}))
        system.checkpoint()
    return Estate(folder, tells)
