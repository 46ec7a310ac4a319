"""The two-phase commit: who is asked, what decides, what is announced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cutline.barrier import Member, Open
from cutline.barrier.commit import (
    Announce,
    Begun,
    Bury,
    Complained,
    Decide,
    Event,
    Forget,
    GiveUp,
    GlobalCommit,
    Leaves,
    ManifestDurable,
    ManifestFailed,
    Prepare,
    Prepared,
    RowDecided,
    WentBack,
    WriteManifest,
)
from cutline.barrier.cut import Claims, Departed, InClaim, OutClaim

A, B, C, D = Member("A", 1), Member("B", 2), Member("C", 3), Member("D", 4)
NOTHING = Claims({}, {})
BAD = Claims({B: InClaim(0, 5, 1)}, {})


def begun(*roster: Member, checkpoint: int = 1, full: bool = False, deadline: float = 10.0) -> GlobalCommit:
    commit = GlobalCommit()
    commit.handle(Begun(checkpoint, full, roster, deadline))
    return commit


def prepared(member: Member, checkpoint: int = 1, claims: Claims = NOTHING) -> Prepared:
    return Prepared(member, checkpoint, claims, {"by": member.name})


def writing() -> GlobalCommit:
    commit = begun(A)
    commit.handle(prepared(A))
    return commit


def deciding() -> GlobalCommit:
    commit = writing()
    commit.handle(ManifestDurable(1))
    return commit


def test_a_begun_checkpoint_is_prepared() -> None:
    assert GlobalCommit().handle(Begun(1, True, (A,), 9.0)) == [Prepare(1)]


def test_an_id_begins_once() -> None:
    commit = begun(A)
    with pytest.raises(AssertionError, match="checkpoint 1 was begun before"):
        commit.handle(Begun(1, False, (A,), 9.0))


def test_the_last_prepared_writes_the_manifest() -> None:
    commit = begun(A, B)
    assert commit.handle(prepared(A)) == []
    assert commit.handle(prepared(B)) == [
        WriteManifest(1, {A: NOTHING, B: NOTHING}, {A: {"by": "A"}, B: {"by": "B"}}, {})
    ]


def test_one_participant_is_heard_once() -> None:
    commit = begun(A, B)
    commit.handle(prepared(A))
    again = Prepared(A, 1, BAD, {"by": "another"})
    assert commit.handle(again) == []
    (action,) = commit.handle(prepared(B))
    assert isinstance(action, WriteManifest)
    assert action.reports[A] == {"by": "A"} and action.claims[A] == NOTHING


def test_who_is_not_in_the_roster_is_not_heard() -> None:
    commit = begun(A, B)
    commit.handle(prepared(A))
    assert commit.handle(prepared(C)) == []
    assert commit.waiting_for(1) == [B]


def test_a_cut_that_does_not_prove_itself_aborts() -> None:
    commit = begun(A, B)
    commit.handle(prepared(A, claims=BAD))
    (action,) = commit.handle(prepared(B))
    assert isinstance(action, Decide) and not action.commit
    assert action.reason.startswith("the cut does not prove itself: channel B#2 -> A#1: received 5")


def test_the_manifest_decides_for_commit() -> None:
    assert writing().handle(ManifestDurable(1)) == [Decide(1, True, "")]


def test_a_manifest_comes_once() -> None:
    assert deciding().handle(ManifestDurable(1)) == []


def test_a_manifest_before_all_prepared_decides_nothing() -> None:
    commit = begun(A)
    assert commit.handle(ManifestDurable(1)) == []
    assert commit.waiting_for(1) == [A]


def test_a_failed_manifest_aborts() -> None:
    assert writing().handle(ManifestFailed(1, "disk full")) == [Decide(1, False, "disk full")]


@pytest.mark.parametrize("committed", [True, False])
def test_only_the_row_announces(committed: bool) -> None:
    commit = deciding()
    assert commit.handle(RowDecided(1, committed, "why")) == [Announce(1, committed, "why", (A,))]
    assert commit.undecided == []


def test_what_was_announced_is_forgotten() -> None:
    commit = deciding()
    commit.handle(RowDecided(1, True, ""))
    events: list[Event] = [
        RowDecided(1, True, ""),
        prepared(A),
        ManifestDurable(1),
        GiveUp(1, "late"),
        Complained(A, 1, "late"),
    ]
    assert [commit.handle(event) for event in events] == [[]] * len(events)


def test_a_complaint_aborts_and_names_who() -> None:
    assert begun(A, B).handle(Complained(B, 1, "no space")) == [Decide(1, False, "B: no space")]


def test_a_stranger_s_complaint_is_not_heard() -> None:
    commit = begun(A)
    assert commit.handle(Complained(C, 1, "no space")) == []
    assert commit.waiting_for(1) == [A]


def test_a_complaint_while_the_manifest_is_written_aborts() -> None:
    commit = writing()
    assert commit.handle(Complained(A, 1, "bad disk")) == [Decide(1, False, "A: bad disk")]
    assert commit.handle(ManifestDurable(1)) == []


@pytest.mark.parametrize("make", [begun, writing])
def test_giving_up_aborts(make: Any) -> None:
    commit = make(A) if make is begun else make()
    assert commit.handle(GiveUp(1, "overdue")) == [Decide(1, False, "overdue")]
    assert commit.undecided == [Open(1, False)]


def test_a_fate_is_asked_for_once() -> None:
    commit = deciding()
    assert commit.handle(GiveUp(1, "overdue")) == []
    assert commit.handle(Complained(A, 1, "late")) == []
    commit = begun(A)
    commit.handle(GiveUp(1, "overdue"))
    assert commit.handle(GiveUp(1, "again")) == []
    assert commit.handle(prepared(A)) == []


def test_the_row_may_say_otherwise() -> None:
    commit = deciding()
    assert commit.handle(RowDecided(1, False, "decided elsewhere")) == [
        Announce(1, False, "decided elsewhere", (A,))
    ]


def test_ids_are_independent() -> None:
    commit = begun(A)
    commit.handle(Begun(2, True, (A,), 20.0))
    assert commit.undecided == [Open(1, False), Open(2, True)]
    commit.handle(prepared(A, 2))
    assert commit.handle(ManifestDurable(2)) == [Decide(2, True, "")]
    commit.handle(RowDecided(2, True, ""))
    assert commit.undecided == [Open(1, False)]
    assert commit.waiting_for(1) == [A]


def test_undecided_ids_ascend_and_keep_their_kind() -> None:
    commit = begun(A, checkpoint=3, full=True)
    commit.handle(Begun(2, False, (A,), 20.0))
    assert commit.undecided == [Open(2, False), Open(3, True)]
    commit.handle(prepared(A, 3))
    commit.handle(ManifestDurable(3))
    commit.handle(GiveUp(2, "overdue"))
    assert commit.undecided == [Open(2, False), Open(3, True)]
    assert commit.handle(RowDecided(3, True, "")) == [Announce(3, True, "", (A,))]


def test_who_has_not_prepared() -> None:
    commit = begun(A, B, C)
    commit.handle(prepared(B))
    assert commit.waiting_for(1) == [A, C]
    assert commit.waiting_for(2) == []
    assert writing().waiting_for(1) == []


@pytest.mark.parametrize(("now", "late"), [(9.9, []), (10.0, [1]), (11.0, [1])])
def test_overdue_from_its_deadline_on(now: float, late: list[int]) -> None:
    assert begun(A).overdue(now) == late


def test_only_who_collects_is_overdue() -> None:
    assert writing().overdue(99.0) == []
    assert writing().deadline is None
    assert deciding().overdue(99.0) == []


def test_overdue_ids_ascend() -> None:
    commit = begun(A, checkpoint=3)
    commit.handle(Begun(2, False, (A,), 20.0))
    assert commit.overdue(99.0) == [2, 3]
    assert commit.overdue(15.0) == [3]


def test_the_next_deadline_is_the_earliest() -> None:
    assert GlobalCommit().deadline is None
    commit = begun(A, deadline=30.0)
    commit.handle(Begun(2, False, (A,), 20.0))
    assert commit.deadline == 20.0


def test_another_proof_can_be_asked_for() -> None:
    asked: list[Mapping[Member, Claims]] = []

    def prove(claims: Mapping[Member, Claims], departed: Mapping[Member, Departed]) -> list[str]:
        asked.append(claims)
        return ["not today", "nor tomorrow"]

    commit = GlobalCommit(prove)
    commit.handle(Begun(1, False, (A,), 9.0))
    assert commit.handle(prepared(A)) == [
        Decide(1, False, "the cut does not prove itself: not today; nor tomorrow")
    ]
    assert asked == [{A: NOTHING}]


# -- who has left --------------------------------------------------------------------------------------

LEFT = Departed(Claims({}, {B: OutClaim(3, 3, {3: 7})}), (A, 5))
SPEAKS = Claims({C: InClaim(3, 3, 7)}, {})


def decided(commit: GlobalCommit, checkpoint: int, committed: bool) -> list[Any]:
    return commit.handle(RowDecided(checkpoint, committed, ""))


def claim(member: Member, checkpoint: int, claims: Claims) -> Prepared:
    return Prepared(member, checkpoint, claims, {"by": member.name})


def test_who_leaves_while_nothing_is_open_may_end_at_once() -> None:
    commit = GlobalCommit()
    assert commit.handle(Leaves(C, LEFT)) == [Bury(C)]
    assert commit.departed == {C: LEFT}


@pytest.mark.parametrize("committed", [True, False])
def test_who_is_in_a_roster_ends_when_that_is_decided(committed: bool) -> None:
    commit = GlobalCommit()
    commit.handle(Begun(1, False, (A, C), 9.0))
    commit.handle(Begun(2, False, (A,), 9.0))
    assert commit.handle(Leaves(C, LEFT)) == []
    assert Bury(C) not in decided(commit, 2, committed)
    assert Bury(C) in decided(commit, 1, committed)
    assert Bury(C) not in commit.handle(Leaves(D, LEFT))


def test_who_is_in_no_open_roster_may_end_though_a_checkpoint_is_open() -> None:
    commit = GlobalCommit()
    commit.handle(Begun(1, False, (A,), 9.0))
    assert commit.handle(Leaves(C, LEFT)) == [Bury(C)]


def test_who_had_left_before_a_rollback_is_there_again_and_does_not_end() -> None:
    commit = GlobalCommit()
    commit.handle(Begun(1, False, (A, C), 9.0))
    commit.handle(Leaves(C, LEFT))
    commit.handle(Leaves(D, LEFT))
    assert commit.handle(WentBack({D: LEFT})) == []
    assert commit.departed == {D: LEFT}
    assert decided(commit, 1, False) == [Announce(1, False, "", (A, C))]


def test_the_last_claims_stand_for_who_has_left() -> None:
    commit = GlobalCommit()
    commit.handle(Leaves(C, LEFT))
    commit.handle(Begun(1, False, (B,), 9.0))
    (write,) = commit.handle(claim(B, 1, SPEAKS))
    assert isinstance(write, WriteManifest) and write.departed == {C: LEFT}
    commit.handle(ManifestDurable(1))
    assert decided(commit, 1, True) == [Announce(1, True, "", (B,))]
    assert commit.departed == {C: LEFT}


def test_an_own_report_counts_more_than_the_last_claims() -> None:
    commit = GlobalCommit()
    commit.handle(Begun(1, False, (B, C), 9.0))
    commit.handle(Leaves(C, LEFT))
    commit.handle(claim(B, 1, SPEAKS))
    (write,) = commit.handle(claim(C, 1, LEFT.claims))
    assert isinstance(write, WriteManifest) and write.departed == {}


def test_a_spawn_that_is_still_in_an_outbox_speaks_of_whom_it_made() -> None:
    commit = GlobalCommit()
    commit.handle(Leaves(C, LEFT))
    for number, spawns in ((1, (5,)), (2, (4,))):
        commit.handle(Begun(number, False, (A,), 9.0))
        (write,) = commit.handle(claim(A, number, Claims({}, {}, spawns)))
        assert isinstance(write, WriteManifest)
        assert write.departed == ({C: LEFT} if number == 1 else {})


def committed(commit: GlobalCommit, checkpoint: int, said: Claims = NOTHING) -> list[Any]:
    commit.handle(claim(B, checkpoint, said))
    commit.handle(ManifestDurable(checkpoint))
    return decided(commit, checkpoint, True)


def test_who_has_left_is_forgotten_with_the_first_cut_that_does_not_speak_of_them() -> None:
    commit = GlobalCommit()
    commit.handle(Leaves(C, LEFT))
    commit.handle(Leaves(D, LEFT))
    commit.handle(Begun(1, False, (B,), 9.0))
    assert Forget(D) in committed(commit, 1, SPEAKS)
    commit.handle(Begun(2, False, (B,), 9.0))
    assert committed(commit, 2) == [Announce(2, True, "", (B,)), Forget(C)]
    assert commit.departed == {}


def test_nobody_is_forgotten_while_an_older_checkpoint_is_open() -> None:
    commit = GlobalCommit()
    commit.handle(Leaves(C, LEFT))
    for number in (1, 2):
        commit.handle(Begun(number, False, (B,), 9.0))
    assert committed(commit, 2) == [Announce(2, True, "", (B,))]
    assert commit.departed == {C: LEFT}
    assert committed(commit, 1) == [Announce(1, True, "", (B,)), Forget(C)]


def test_a_newer_checkpoint_that_is_open_keeps_nobody_in_memory() -> None:
    commit = GlobalCommit()
    commit.handle(Leaves(C, LEFT))
    for number in (1, 2):
        commit.handle(Begun(number, False, (B,), 9.0))
    assert committed(commit, 1) == [Announce(1, True, "", (B,)), Forget(C)]


def test_nobody_is_forgotten_by_a_checkpoint_that_was_aborted() -> None:
    commit = GlobalCommit()
    commit.handle(Leaves(C, LEFT))
    commit.handle(Begun(1, False, (B,), 9.0))
    commit.handle(claim(B, 1, NOTHING))
    commit.handle(ManifestDurable(1))
    assert decided(commit, 1, False) == [Announce(1, False, "", (B,))]
    assert commit.departed == {C: LEFT}


def test_nobody_is_forgotten_before_the_end_of_who_left() -> None:
    commit = GlobalCommit()
    commit.handle(Begun(1, False, (B, C), 9.0))
    commit.handle(Leaves(C, LEFT))
    commit.handle(Begun(2, False, (B,), 9.0))
    assert committed(commit, 2) == [Announce(2, True, "", (B,))]
    assert decided(commit, 1, False) == [Announce(1, False, "", (B, C)), Bury(C)]


def test_who_had_left_by_a_cut_is_who_has_left_after_going_back_to_it() -> None:
    commit = GlobalCommit()
    commit.handle(Begun(1, False, (B, C), 9.0))
    commit.handle(Leaves(C, LEFT))
    decided(commit, 1, False)
    assert commit.handle(WentBack({D: LEFT})) == []
    assert commit.departed == {D: LEFT}
    commit.handle(Begun(2, False, (C,), 9.0))
    assert decided(commit, 2, False) == [Announce(2, False, "", (C,))]
