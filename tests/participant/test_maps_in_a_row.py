"""Maps against dicts, at random, through captures, aborts, folds and restores; lies are found out.

`make test-containers EXAMPLES=5000` does the first of these for longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from cutline import Map
from cutline.errors import CannotCapture, CannotRestore
from cutline.participant import container, key_index, map, map_change, shelf
from cutline.participant.map_change import MapChange
from tests.participant.maps_in_a_row import MapsInARow, drive

# Runs of the machine, driven both ways.
EXAMPLES = int(os.environ.get("CUTLINE_TEST_CONTAINERS", "0"))
# A planted lie has to show within so many runs.
ENOUGH = 300

TestMapsInARow = MapsInARow.TestCase
TestMapsInARow.settings = settings(max_examples=max(40, EXAMPLES // 4), stateful_step_count=30, deadline=None)


@pytest.fixture(autouse=True)
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few entries can be read by key."""
    monkeypatch.setattr(key_index, "LEAST", 2)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of a few entries are large, and their segments too."""
    for place, name, value in [
        *((map_change, "CHUNK", 3), (shelf, "CHUNK", 3), (shelf, "_AT_ONCE", 4)),
        *((shelf, "_LEAST", 2), (shelf, "_SMALL", 150), (shelf, "_SHARE", 4)),
    ]:
        monkeypatch.setattr(place, name, value)


def test_driven_by_seeds_all_is_well() -> None:
    for seed in range(max(60, EXAMPLES)):
        drive(seed)


def test_large_ones_are_written_anew_bit_by_bit(tiny: None) -> None:
    for seed in range(max(60, EXAMPLES)):
        drive(seed, steps=100, churn=True)


Patch = pytest.MonkeyPatch


def a_change_not_noted(patch: Patch) -> None:
    """What is set to a frozen value in a Map with others is not noted."""
    patch.setattr(map, "is_immutable", lambda value: True)


def a_key_less(patch: Patch) -> None:
    """The last key that was set is not in the delta."""
    true = MapChange.documents

    def documents(self: MapChange) -> Any:
        put = dict(self.put)
        if put and not self.whole:
            put.popitem()
        return true(MapChange(self.gone, put, self.whole))

    patch.setattr(MapChange, "documents", documents)


def a_removal_less(patch: Patch) -> None:
    """What is removed and set again stays where it was."""

    def over(self: MapChange, older: MapChange) -> MapChange:
        if self.whole:
            return self
        gone = {} if older.whole else {**older.gone, **self.gone}
        return MapChange(gone, {**older.put, **self.put}, older.whole)

    patch.setattr(MapChange, "over", over)


def an_aborted_one_less(patch: Patch) -> None:
    """What an aborted capture had taken is not in the next one."""
    patch.setattr(container.Journal, "since", lambda self, capture, now: now)


def the_newer_under_the_older(patch: Patch) -> None:
    true = MapChange.over
    patch.setattr(MapChange, "over", lambda self, older: true(older, self))


def turned_too_soon(patch: Patch) -> None:
    """A capture that fails has taken the changes."""
    true = shelf.Shelf._of_one

    def _of_one(self: Any, number: int, held: Any, *rest: Any) -> Any:
        found = true(self, number, held, *rest)
        held._turn()
        return found

    patch.setattr(shelf.Shelf, "_of_one", _of_one)


def begun_with_an_aborted_one(patch: Patch) -> None:
    """What is written anew is taken though the capture that it begins with may not be in the chain."""
    patch.setattr(shelf.Renewal, "fits", lambda self, capture, log: True)


def numbers_mixed_up(patch: Patch) -> None:
    """Nested Maps are not followed."""
    patch.setattr(Map, "_nested", lambda self: ())


LIES = [
    a_change_not_noted,
    a_key_less,
    a_removal_less,
    an_aborted_one_less,
    the_newer_under_the_older,
    turned_too_soon,
    numbers_mixed_up,
    begun_with_an_aborted_one,
]

# Those that take a Map that is written anew.
RENEWED = (begun_with_an_aborted_one,)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_caught(lie: Callable[[Patch], None], monkeypatch: Patch, tiny: None) -> None:
    with monkeypatch.context() as patch:
        lie(patch)
        with pytest.raises((AssertionError, CannotRestore, CannotCapture)):
            for seed in range(ENOUGH):
                drive(seed, steps=60, churn=lie in RENEWED)
