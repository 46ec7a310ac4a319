"""A participant that leaves in order and comes back, in random schedules; and what they must catch."""

from __future__ import annotations

from collections import Counter

import pytest

from .parking import ParkingWorld
from .planted import check_off

SCHEDULES, CHUNK, SEEDS = 200, 50, 1000
# What the schedules must have met, or they show nothing.
MET = (
    "came back",
    "cut with one parked",
    "parked",
    "recovery behind the parting",
    "recovery with one parked",
    "rest",
    "stays after all",
    "tries another checkpoint",
)
BUGS = ("goes_on_at_rest", "acks_at_rest", "parked_below")

seen: Counter[str] = Counter()


def run(seed: int) -> None:
    """One schedule; an error names its seed."""
    world = ParkingWorld(seed)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    seen.update(world.seen)


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_every_cut_is_right_with_one_that_has_left(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run(seed)


def test_the_schedules_met_what_they_are_for() -> None:
    if not seen:
        for seed in range(SCHEDULES):
            run(seed)
    assert [name for name in MET if not seen[name]] == []


def shows() -> bool:
    for seed in range(SEEDS):
        try:
            ParkingWorld(seed).run()
        except Exception:
            return True
    return False


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParkingWorld, bug, True)
    assert shows(), f"{SEEDS} schedules do not show: {bug}"


@pytest.mark.parametrize("bug", BUGS)
def test_the_oracle_needs_no_check_of_the_cut(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParkingWorld, bug, True)
    check_off(monkeypatch)
    assert shows(), f"{SEEDS} schedules do not show: {bug}"
