"""A few of the bugs that `make simulate-mutants` plants: that the simulator can fail is a test of its own."""

from __future__ import annotations

import pytest

from .mutants import Verdict, try_plant
from .planted_storage import PLANTED, SIGNS

# Of the issue that asked for the proof, in its order: the name here of each bug that has to be among them.
WANTED = (
    "the whole mailbox is recorded",
    "released is not withheld",
    "what was prepared is not checked",
    "id n+1 is captured without n",
    "a frame spans a capture",
    "a mark is renewed at retransmission",
    "a newborn releases as usual",
    "a spawn is not in the outbox",
    "a channel is joined by name instead of incarnation",
    "a checkpoint that times out with one missing commits all the same",
    "a commit does not compare the token",
    "a fate is announced before its row",
    "a fate is decided twice",
    "an older epoch is accepted",
    "a newer epoch is accepted",
    "data flows before everybody is restored",
    "an abort drops what had changed",
    "a delta builds on an aborted capture",
    "input is delivered before it is durable",
    "input is acknowledged without the lease",
    "a lost `committed` is taken for an abort",
    "the collector goes by age",
    "messages come twice after a restore",
    "the reorder buffer is recorded",
    "credit is an increment",
    "a late marker of a decided id is honoured",
    "an answer is applied twice to a suspended call",
)
# Those that take few schedules.
QUICK = (
    "the whole mailbox is recorded",
    "what was prepared is not checked",
    "a fate is announced before its row",
    "input is delivered before it is durable",
)


def test_all_that_were_asked_for_are_planted() -> None:
    assert [name for name in WANTED if name not in PLANTED] == []
    assert SIGNS.keys() <= PLANTED.keys()


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_passes_without_faults_and_is_caught_with_them(name: str) -> None:
    verdict = try_plant(name, tries=1)
    assert verdict.caught, verdict.line()


def test_a_patch_that_does_not_fit_is_no_bug_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("cutline.coordinator.recover.Recoverer._launch", lambda self: None)

    monkeypatch.setitem(PLANTED, "stale", plant)
    verdict = try_plant("stale", tries=1, most=3)
    assert not verdict.caught
    assert verdict.line().startswith("does not fit the product: stale: TypeError")


def test_one_that_nothing_shows_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANTED, "harmless", lambda patch: None)
    verdict = try_plant("harmless", tries=2, most=2)
    assert (verdict.caught, verdict.missed, verdict.line()) == (
        False,
        1,
        "MISSED: harmless: not in 2 schedules",
    )
    assert not Verdict("untried").caught
