"""Maps whose entries are read when they are asked for, against dicts, at random; lies are found out.

`make test-containers EXAMPLES=5000` does the first of these for longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from cutline.errors import CannotRestore
from cutline.participant import key_index, map_change, shelf
from cutline.participant.key_index import ABSENT, Indexed
from cutline.participant.unread import Known, Layers, Unread
from tests.participant.unread_in_a_row import ReadingInARow, drive

EXAMPLES = int(os.environ.get("CUTLINE_TEST_CONTAINERS", "0"))
# A planted lie has to show within so many runs.
ENOUGH = 300

TestReadingInARow = ReadingInARow.TestCase
TestReadingInARow.settings = settings(
    max_examples=max(30, EXAMPLES // 4), stateful_step_count=30, deadline=None
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of a few entries are large, with blocks of three, and their segments too."""
    for place, name, value in [
        *((map_change, "CHUNK", 3), (shelf, "CHUNK", 3), (shelf, "_AT_ONCE", 4), (key_index, "LEAST", 5)),
        *((shelf, "_LEAST", 8), (shelf, "_SMALL", 150), (shelf, "_SHARE", 4), (key_index, "_BUCKET", 2)),
        *((key_index, "_FEW", 3),),
    ]:
        monkeypatch.setattr(place, name, value)


def test_driven_by_seeds_all_is_well() -> None:
    met = sum(drive(seed) for seed in range(max(80, EXAMPLES)))
    # It is about those that stay unread.
    assert met > 400


Patch = pytest.MonkeyPatch


def a_removal_forgotten(patch: Patch) -> None:
    """What a segment removes is still there in the one below."""
    patch.setattr(Known, "gone", lambda self: {})


def the_oldest_first(patch: Patch) -> None:
    """What a segment says counts though a newer one says something else."""

    def find(self: Layers, key: Any) -> Any:
        return next((found for each in self._layers if (found := each.find(key)) is not ABSENT), ABSENT)

    patch.setattr(Layers, "find", find)


def removed_and_yet_read(patch: Patch) -> None:
    """A key that was removed since the restore is asked for below."""

    def _find(self: Unread, key: Any) -> Any:
        return self._layers.find(key)

    patch.setattr(Unread, "_find", _find)


def a_length_too_many(patch: Patch) -> None:
    """A key that is set again counts twice."""

    def __setitem__(self: Unread, key: Any, value: Any) -> None:
        if key not in self._gone and self._full is None:
            self._count += dict.__contains__(self, key) is False
        (dict.__setitem__)(self if self._full is None else self._full, key, value)

    patch.setattr(Unread, "__setitem__", __setitem__)


def in_its_old_place(patch: Patch) -> None:
    """What is removed and set again stays where it was."""

    def pop(self: Unread, key: Any, *default: Any) -> Any:
        if self._full is None and key in self:
            self._count -= 1
            return dict.pop(self, key)
        return self.everything().pop(key, *default)

    patch.setattr(Unread, "pop", pop)


def the_wrong_block(patch: Patch) -> None:
    """The index is one block off, for those behind the first."""
    true = Indexed.block
    patch.setattr(Indexed, "block", lambda self, number: true(self, max(0, number - 1)))


def a_bucket_short(patch: Patch) -> None:
    """The last key of each bucket is not found."""
    true = Indexed._bucket
    patch.setattr(Indexed, "_bucket", lambda self, number: true(self, number)[:-1])


def numbers_of_this_process(patch: Patch) -> None:
    """The number of a key is another one when it is read."""
    patch.setattr(key_index, "_number", lambda key: hash((key,)) & 0xFFFFFFFF)


def read_values_are_changes(patch: Patch) -> None:
    """What was read stands behind what is below."""
    true = Layers.everything

    def everything(self: Layers) -> dict[Any, Any]:
        items = true(self)
        read = [key for each in self._indexed for block in each.read.values() for key in block]
        return {**{key: value for key, value in items.items() if key not in read}, **items}

    patch.setattr(Layers, "everything", everything)


def a_value_of_before(patch: Patch) -> None:
    """A value that may change is another object than the one with the attributes."""
    patch.setattr(Unread, "fill", lambda self, key, value: dict.__setitem__(self, key, list(value)))


LIES = [
    a_removal_forgotten,
    the_oldest_first,
    removed_and_yet_read,
    a_length_too_many,
    in_its_old_place,
    the_wrong_block,
    a_bucket_short,
    numbers_of_this_process,
    read_values_are_changes,
    a_value_of_before,
]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_caught(lie: Callable[[Patch], None], monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        lie(patch)
        with pytest.raises((AssertionError, CannotRestore)):
            for seed in range(ENOUGH):
                drive(seed)
