"""Restoring a participant with a Map of 1,000,000 entries against `pickle.loads` of the dict.

Ours is the whole restore of the state from the pieces that an image holds. One row has them as one capture
wrote them, the other after 100 captures between which 1,000 entries changed. The last one reads the image of
those from a folder, with Maps that are read as they are asked for, and one entry drawn at random.
"""

from __future__ import annotations

import pickle
import random
import tempfile
import time
from typing import Any

from blake3 import blake3

from bench.row import Row, interleave
from cutline.participant.capture import Capturer
from cutline.participant.map import Map
from cutline.participant.restore import restore
from cutline.participant.unshelving import left_unread
from cutline.storage import DirectoryBlobs, Piece, pack_key, read_image, write_image

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


class _InFolder:
    """The newest image of an agent as one pack of a folder, out of the page cache."""

    def __init__(self, folder: str, stored: _Stored) -> None:
        self.blobs, self.seen = DirectoryBlobs(folder), stored.agent.seen
        self.keys = random.Random(2).choices(list(self.seen), k=100)
        pieces = [Piece(name, blake3(content).digest(), content) for name, content in stored.pieces.items()]
        key = pack_key("bench", "1f", 1, stored.number, "bench", 1)
        self.ref = write_image(
            self.blobs, key, header={}, sections={}, pieces=pieces, regions=[], parent=None
        )

    def one(self) -> float:
        """Seconds until one entry is there."""
        key = self.keys.pop()
        began = time.perf_counter()
        image = read_image(self.blobs, self.ref, left=left_unread)
        made: Any = restore(image.pieces, {}, participant="bench", unread=image.unread)
        found = made.seen[key]
        seconds = time.perf_counter() - began
        if found != self.seen[key] or len(made.seen) != len(self.seen):
            raise AssertionError("the restored Map is another one")
        return seconds


def _loaded(content: bytes) -> float:
    began = time.perf_counter()
    made = pickle.loads(content)
    return len(made) / (time.perf_counter() - began)


def _one_key(stored: _Stored, rounds: int) -> Row:
    content, count = pickle.dumps(dict(stored.agent.seen), 5), len(stored.agent.seen)
    with tempfile.TemporaryDirectory() as folder:
        kept = _InFolder(folder, stored)
        ours, baseline = interleave(rounds, kept.one, lambda: count / _loaded(content))
    note = f"{count:,} entries after 100 captures, read as it is asked for; seconds to the first entry"
    return Row("map_restore_one_key", "s", ours, baseline, ratio="baseline/ours", at_least=5.0, note=note)


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
    rows.append(_one_key(stored, rounds))
    return rows
