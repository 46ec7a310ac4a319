"""Awkward state under random changes, by every way of tracking; and trackers that lie about it are found out.

`make test-zoo EXAMPLES=5000` does what the first tests do for longer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

if sys.version_info < (3, 11):
    pytest.skip("the zoo is written for Python 3.11 and later", allow_module_level=True)

from cutline.errors import CannotRestore
from cutline.participant import tracking
from cutline.participant.blocks import changed_runs
from cutline.participant.capture import Capturer
from cutline.participant.page_log import PageLog
from cutline.participant.page_tracker import PageTracker
from cutline.participant.runs import Runs
from cutline.participant.tracking import RegionTracker
from cutline.storage.extents import Extents
from cutline.storage.image import Piece
from cutline.storage.part_names import piece_of
from tests.participant.images import WAYS as KNOWN
from tests.participant.zoo_in_a_row import ZooInARow, drive

# Runs of the machine, over all ways; by the make verb many more.
EXAMPLES = int(os.environ.get("CUTLINE_TEST_ZOO", "0"))
WAYS = (*KNOWN, "mixed") if "kernel" in KNOWN else KNOWN
# A planted lie has to show within so many runs; most need fewer than twenty.
ENOUGH = 100


class ZooByKernel(ZooInARow):
    way = KNOWN[0]


class ZooByHash(ZooInARow):
    way = "hash"


_settings = settings(max_examples=max(8, EXAMPLES // 6), stateful_step_count=25, deadline=None)
TestZooInARow = ZooInARow.TestCase
TestZooInARow.settings = _settings
TestZooByKernel = ZooByKernel.TestCase
TestZooByKernel.settings = _settings
TestZooByHash = ZooByHash.TestCase
TestZooByHash.settings = _settings


@pytest.mark.parametrize("way", WAYS)
def test_driven_by_seeds_all_is_well(way: str) -> None:
    for seed in range(max(12, EXAMPLES // 6)):
        drive(way, seed)


# -- what a tracker may get wrong --------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def a_page_less(patch: Patch) -> None:
    """The account leaves out the last page that was written."""
    true = PageTracker.pages_written

    def pages_written(self: PageTracker, span: Any, since: int) -> tuple[Any, Any]:
        pages, last = true(self, span, since)
        return pages[:-1], last[:-1]

    patch.setattr(PageTracker, "pages_written", pages_written)


def a_block_less(patch: Patch) -> None:
    """The hashes of one block are not compared."""
    true = changed_runs
    patch.setattr(tracking, "changed_runs", lambda *given: tuple(each[:-1] for each in true(*given)))


def a_region_less(patch: Patch) -> None:
    """Every third region counts as unchanged."""
    true = RegionTracker.changed

    def changed(self: RegionTracker, number: int, memory: Any, base: Any, now: Any) -> Extents:
        found = true(self, number, memory, base, now)
        known = base is not None and base.size == now.size
        return Extents.of([]) if known and number % 3 == 0 else found

    patch.setattr(RegionTracker, "changed", changed)


def a_piece_less(patch: Patch) -> None:
    """The last piece that changed counts as unchanged."""
    true = Capturer._pieces

    def _pieces(self: Capturer, contents: Any, table: Any, base: Any) -> tuple[Piece, ...]:
        found = list(true(self, contents, table, base))
        for at in reversed(range(len(found))):
            if base is not None and found[at].content is not None and found[at].name in base.pieces:
                found[at] = Piece(found[at].name, found[at].digest, None)
                break
        return tuple(found)

    patch.setattr(Capturer, "_pieces", _pieces)


def a_part_less(patch: Patch) -> None:
    """Parts of a piece that changed and have the length that they had count as unchanged."""
    true = Capturer._part

    def _part(self: Capturer, name: str, part: Any, table: Any, base: Any) -> Piece:
        piece = true(self, name, part, table, base)
        before = base.pieces.get(name) if base is not None and piece_of(name) != name else None
        if piece.content is not None and before and before[1] == len(piece.content):
            return Piece(name, before[0], None)
        return piece

    patch.setattr(Capturer, "_part", _part)


def against_the_newest(patch: Patch) -> None:
    """A delta is relative to the capture before it, whether that committed or not."""
    true = Capturer.capture

    def capturing(self: Capturer, instance: object, *, number: int, against: int | None) -> Any:
        newest = number - 1 if against is not None and number - 1 in self._tables else against
        return true(self, instance, number=number, against=newest)

    patch.setattr(Capturer, "capture", capturing)


def not_copied(patch: Patch) -> None:
    """A capture refers to the memory of the state."""

    def gathered(memory: Any, runs: Runs) -> Extents:
        pairs = zip(runs[0].tolist(), runs[1].tolist(), strict=True)
        return Extents.of([(start, memory.data[start:stop]) for start, stop in pairs])

    patch.setattr(tracking, "gather", gathered)


def old_copies(patch: Patch) -> None:
    """What was copied ahead once is never looked at again."""
    true = PageLog.stale

    def stale(self: Any, span: Any, serial: int, pages: Any, last: Any) -> Any:
        return true(self, span, serial, pages, np.zeros_like(last))

    patch.setattr(PageLog, "stale", stale)


def apart(patch: Patch) -> None:
    """Owners that overlap are written as if each were alone."""
    patch.setattr("cutline.participant.arrays.StateArrays.check", lambda self: None)


def taken_for_standing(patch: Patch) -> None:
    """Memory that survives a rollback in place keeps the last of what was written to it since."""
    true = RegionTracker.since

    def since(self: RegionTracker, memory: Any, mark: Any) -> Runs | None:
        found = true(self, memory, mark)
        return None if found is None else (found[0][:-1], found[1][:-1])

    patch.setattr(RegionTracker, "since", since)


LIES: dict[Callable[[Patch], None], tuple[str, ...]] = {
    a_page_less: ("kernel", "mixed"),
    a_block_less: ("hash", "mixed"),
    a_region_less: ("kernel", "hash", "mixed"),
    a_piece_less: ("mixed",),
    a_part_less: ("mixed",),
    against_the_newest: ("kernel", "hash", "mixed"),
    not_copied: ("hash", "mixed"),
    old_copies: ("kernel", "mixed"),
    apart: ("mixed",),
    taken_for_standing: ("kernel", "hash", "mixed"),
}
PLANTED = [
    pytest.param(lie, way, id=f"{lie.__name__}-{way}")
    for lie, ways in LIES.items()
    for way in ways
    if way in WAYS
]


@pytest.mark.parametrize(("lie", "way"), PLANTED)
def test_a_lie_is_caught(lie: Callable[[Patch], None], way: str, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        lie(patch)
        # A delta on a wrong base names pieces that the base has not.
        with pytest.raises((AssertionError, CannotRestore, KeyError)):
            for seed in range(ENOUGH):
                drive(way, seed)
