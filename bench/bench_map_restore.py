"""Restoring a participant with a Map of 1,000,000 entries against `pickle.loads` of the dict.

Ours is the whole restore of the state from the pieces that an image holds. One row has them as one capture
wrote them, the other after 100 captures between which 1,000 entries changed.
"""

from __future__ import annotations

import pickle
import random
import time
from typing import Any

from bench.row import Row, interleave
from cutline.participant.capture import Capturer
from cutline.participant.map import Map
from cutline.participant.restore import restore

__all__ = ("measure",)


class Agent:
    """Has a Map."""

    def __init__(self, seen: Map[str, Any]) -> None:
        self.seen = seen


class _Stored:
    """The pieces of the newest image of one agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.number = agent, 0
        self.capturer = Capturer("bench")
        self.pieces: dict[str, bytes] = {}

    def take(self) -> None:
        before, self.number = self.number, self.number + 1
        captured = self.capturer.capture(self.agent, number=self.number, against=before or None)
        self.capturer.committed(self.number)
        self.pieces = {
            piece.name: self.pieces[piece.name] if piece.content is None else bytes(piece.content)
            for piece in captured.pieces
        }

    def restored(self) -> float:
        """Entries a second."""
        began = time.perf_counter()
        made: Any = restore(list(self.pieces.items()), {}, participant="bench")
        seconds = time.perf_counter() - began
        if len(made.seen) != len(self.agent.seen):
            raise AssertionError("the restored Map is another one")
        return len(made.seen) / seconds


def _loaded(content: bytes) -> float:
    began = time.perf_counter()
    made = pickle.loads(content)
    return len(made) / (time.perf_counter() - began)


def _row(name: str, stored: _Stored, rounds: int, note: str) -> Row:
    content = pickle.dumps(dict(stored.agent.seen), 5)
    ours, baseline = interleave(rounds, stored.restored, lambda: _loaded(content))
    note = f"{len(stored.agent.seen):,} entries of text to int, {note}, {len(stored.pieces)} pieces"
    return Row(name, "entries/s", ours, baseline, at_least=0.9, note=note)


def measure(*, entries: int = 1_000_000, changed: int = 1000, rounds: int = 9) -> list[Row]:
    """The rows; see the module's head."""
    chance = random.Random(1)
    keys = [f"key {number}" for number in range(entries)]
    stored = _Stored(Agent(Map({key: number for number, key in enumerate(keys)})))
    stored.take()
    rows = [_row("map_restore", stored, rounds, "as one capture wrote them")]
    for turn in range(100):
        for key in chance.sample(keys, changed):
            stored.agent.seen[key] = turn
        stored.take()
    rows.append(_row("map_restore_after_100", stored, rounds, "after 100 captures"))
    return rows
