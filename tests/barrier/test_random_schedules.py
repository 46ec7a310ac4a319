"""Random schedules of a whole system against an oracle, and planted bugs that they must catch.

A longer run, or one seed again::

    python -m tests.barrier.test_random_schedules --first 0 --schedules 20000
    CUTLINE_TEST_SCHEDULES=20000 python -m pytest tests/barrier/test_random_schedules.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

import pytest

from .planted_members import PLANTED, UNPROVED, check_off
from .schedule import World

SCHEDULES = int(os.environ.get("CUTLINE_TEST_SCHEDULES", "300"))
CHUNK = 50
# A bug counts as caught if one of so many schedules shows it.
SEEDS = 1000
# What the schedules of `make test` must have met, or they show nothing.
MET = (
    "aborted",
    "begun while another is undecided",
    "born into an open checkpoint",
    "capture inside a frame",
    "capture with early frames",
    "committed",
    "cut that speaks of one that left",
    "cut with a spawn under way",
    "cut with messages in flight",
    "forgotten",
    "left",
    "left while a checkpoint was open",
    "link broken",
    "mark known at capture",
    "message of a cut in both images",
    "overlapping captures",
    "name used again",
    "packet doubled",
    "packet lost",
    "packet of another epoch",
    "packet reordered",
    "recovery",
    "recovery during a recovery",
    "released withheld",
    "self-send",
    "spawn asked for again",
    "spawned by a handler",
    "undelivered to one that left",
    "zombie",
)

seen: Counter[str] = Counter()


def run(seed: int) -> Counter[str]:
    """One schedule; an error names its seed."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return world.seen


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_every_cut_is_right_and_everything_drains(first: int) -> None:
    for seed in range(first, first + CHUNK):
        seen.update(run(seed))


def test_the_schedules_met_what_they_are_for() -> None:
    if not seen:
        for seed in range(200):
            seen.update(run(seed))
    assert [name for name in MET if not seen[name]] == []


def seed_that_shows_it() -> int | None:
    for seed in range(SEEDS):
        try:
            World(seed).run()
        except Exception:
            return seed
    return None


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[bug](monkeypatch)
    assert seed_that_shows_it() is not None, f"{SEEDS} schedules do not show: {bug}"


@pytest.mark.parametrize("bug", UNPROVED)
def test_the_oracle_needs_no_check_of_the_cut(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[bug](monkeypatch)
    check_off(monkeypatch)
    assert seed_that_shows_it() is not None, f"{SEEDS} schedules do not show: {bug}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=1000)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    wrong = 0
    for seed in range(options.first, options.first + options.schedules):
        try:
            total.update(run(seed))
        except AssertionError as error:
            wrong += 1
            print(error)
    for name, count in sorted(total.items()):
        print(f"{count:10} {name}")
    print(f"{options.schedules} schedules, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
