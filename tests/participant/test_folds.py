"""Folding as a participant does it: one chain is folded once, small states are whole, damage is healed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cutline.participant.shutter import SMALL
from cutline.storage.image import ImageRef

from .town import Town, _Now

MOST = 2


class Painter:
    """An array that is a region, and a small rest."""

    def __init__(self, size: int) -> None:
        self.canvas = np.zeros(size, np.uint8)
        self.strokes = 0

    def paint(self, place: int) -> None:
        self.strokes += 1
        self.canvas[place] = self.strokes


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """A town whose chains are short."""
    monkeypatch.setattr(_Now, "most", MOST)
    made = Town()
    made.add("p", lambda: Painter(1 << 20))
    made.start()
    yield made


def ref_of(town: Town, checkpoint: int) -> ImageRef:
    return ImageRef.from_doc(town.images[checkpoint]["p"])


def painted(town: Town, place: int) -> int:
    painter: Any = town.runners["p"].instance
    painter.paint(place)
    return town.checkpoint()


def test_a_chain_is_folded_and_restores_what_was_there(town: Town) -> None:
    numbers = [painted(town, 5_000 * n) for n in range(6)]
    lengths = [len(ref_of(town, number).chain) for number in numbers]
    assert lengths == [1, 2, 3, 2, 3, 3]
    expected = town.runners["p"].instance.canvas.copy()  # type: ignore[attr-defined]
    painted(town, 77)
    town.recover(numbers[-1])
    painter: Any = town.runners["p"].instance
    assert painter.strokes == 6 and np.array_equal(painter.canvas, expected)
    # The next one builds on what was restored.
    assert len(ref_of(town, painted(town, 99)).chain) <= MOST + 1


def test_what_came_to_nothing_was_folded_once(town: Town) -> None:
    """An attempt that folds and is aborted (it may have taken too long) is followed by one that does not."""
    for n in range(3):
        painted(town, n)
    sizes = []
    for _ in range(3):
        number = town.begin()
        town.settle()
        _, doc = next(item for item in town.said("prepared") if item[1]["checkpoint"] == number)
        sizes.append(len(doc["image"]["chain"]))
        town.decide(number, False)
        town.settle()
    assert sizes == [2, 4, 4]
    assert len(ref_of(town, painted(town, 9)).chain) == 4
    assert len(ref_of(town, painted(town, 9)).chain) == 2


def test_a_capture_tells_what_finding_changes_took(town: Town) -> None:
    number = painted(town, 5)
    facts = next(doc["facts"] for _, doc in town.said("prepared") if doc["checkpoint"] == number)
    assert 0 < facts["detect_ms"] < facts["stall_ms"]


def test_a_damaged_pack_costs_one_checkpoint(town: Town) -> None:
    """What is lost on disk is in memory still: the image after the one that failed has everything."""
    numbers = [painted(town, 5_000 * n) for n in range(3)]
    town.blobs.delete(ref_of(town, numbers[1]).key)
    town.runners["p"].instance.paint(1)  # type: ignore[attr-defined]
    number = town.begin()
    town.settle()
    reasons = [doc["reason"] for _, doc in town.said("complained") if doc["checkpoint"] == number]
    assert reasons and "is missing" in reasons[0]
    town.decide(number, False)
    town.settle()
    healed = painted(town, 2)
    assert ref_of(town, healed).kind == "full"
    town.recover(healed)
    assert town.runners["p"].instance.strokes == 5  # type: ignore[attr-defined]


def test_a_small_state_is_written_whole() -> None:
    town = Town()
    town.add("p", lambda: Painter(SMALL // 2))
    town.start()
    assert [len(ref_of(town, painted(town, n)).chain) for n in range(3)] == [1, 1, 1]
