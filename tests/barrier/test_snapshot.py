"""When a participant captures: ids from unknown over due and captured to decided."""

from __future__ import annotations

import pytest

from cutline.barrier import LocalSnapshot, Mark, Open


def view(floor: int = 0, committed: int = 0, base: int | None = None) -> LocalSnapshot:
    return LocalSnapshot(floor, committed, base)


def capture(snapshot: LocalSnapshot, *checkpoints: int) -> None:
    snapshot.learn([(n, False) for n in checkpoints])
    for n in checkpoints:
        snapshot.captured[n] = True


def test_a_new_view_knows_its_floor() -> None:
    snapshot = view(floor=4, committed=3, base=2)
    assert (snapshot.floor, snapshot.newest, snapshot.committed, snapshot.base) == (4, 4, 3, 2)
    assert snapshot.due() == [] and snapshot.open_captures() == []


@pytest.mark.parametrize(("checkpoint", "decided"), [(3, True), (4, True), (5, False)])
def test_what_lies_at_or_below_the_floor_is_decided(checkpoint: int, decided: bool) -> None:
    assert view(floor=4).is_decided(checkpoint) is decided


def test_a_fate_decides_one_id() -> None:
    snapshot = view()
    snapshot.settled(2, False)
    assert [snapshot.is_decided(n) for n in (1, 2, 3)] == [False, True, False]


def test_learned_ids_are_due_in_order() -> None:
    snapshot = view()
    snapshot.learn([(3, True)])
    snapshot.learn([(2, False), (1, True)])
    assert snapshot.due() == [Open(1, True), Open(2, False), Open(3, True)]
    assert snapshot.newest == 3


def test_the_kind_of_an_id_does_not_change() -> None:
    snapshot = view()
    snapshot.learn([(1, True)])
    snapshot.learn([(1, False)])
    assert snapshot.due() == [Open(1, True)]


def test_a_decided_id_is_not_learned_again() -> None:
    snapshot = view(floor=1)
    snapshot.settled(2, False)
    snapshot.learn([(1, False), (2, False), (3, False)])
    assert snapshot.due() == [Open(3, False)]


def test_a_decided_id_does_not_raise_the_newest() -> None:
    snapshot = view()
    snapshot.fates[9] = False
    snapshot.learn([(9, False), (2, False)])
    assert snapshot.newest == 2


def test_what_was_captured_is_not_due() -> None:
    snapshot = view()
    capture(snapshot, 1)
    assert snapshot.due() == []
    snapshot.learn([(2, False)])
    assert snapshot.due() == [Open(2, False)]


def test_open_captures_ascend_and_know_their_kind() -> None:
    snapshot = view()
    capture(snapshot, 2)
    snapshot.learn([(1, True)])
    snapshot.captured[1] = True
    assert snapshot.open_captures() == [(1, True), (2, False)]


def test_a_fate_of_a_capture_is_news_once() -> None:
    snapshot = view()
    capture(snapshot, 1)
    assert snapshot.settled(1, True) is True
    assert snapshot.settled(1, True) is False
    assert snapshot.full == {} and snapshot.captured == {}


def test_a_fate_of_what_was_not_captured_is_no_news_for_the_shell() -> None:
    snapshot = view()
    snapshot.learn([(1, False)])
    assert snapshot.settled(1, False) is False
    assert snapshot.due() == [] and snapshot.is_decided(1)


def test_a_fate_of_an_unknown_id_is_remembered() -> None:
    snapshot = view()
    assert snapshot.settled(5, False) is False
    assert snapshot.newest == 5
    snapshot.learn([(5, False)])
    assert snapshot.due() == []


def test_an_older_fate_does_not_lower_the_newest() -> None:
    snapshot = view()
    snapshot.settled(5, False)
    snapshot.settled(4, True)
    assert (snapshot.newest, snapshot.committed) == (5, 4)


def test_committed_is_the_newest_committed() -> None:
    snapshot = view(committed=3)
    snapshot.settled(5, True)
    snapshot.settled(4, True)
    snapshot.settled(6, False)
    assert snapshot.committed == 5


def test_a_fate_below_the_floor_still_tells_what_committed() -> None:
    snapshot = view(floor=4, committed=2)
    assert snapshot.settled(3, True) is False
    assert snapshot.committed == 3 and snapshot.fates == {}


def test_the_first_fate_stands() -> None:
    snapshot = view()
    snapshot.settled(1, False)
    snapshot.settled(1, True)
    assert snapshot.fates == {1: False}


def test_the_base_is_the_newest_committed_capture() -> None:
    snapshot = view()
    capture(snapshot, 1, 2, 3)
    snapshot.settled(2, True)
    assert snapshot.base == 2
    snapshot.settled(1, True)
    assert snapshot.base == 2
    snapshot.settled(3, True)
    assert snapshot.base == 3


def test_an_aborted_capture_is_no_base() -> None:
    snapshot = view(base=1)
    capture(snapshot, 2)
    snapshot.settled(2, False)
    assert snapshot.base == 1


def test_what_others_committed_is_no_base() -> None:
    snapshot = view(base=1)
    snapshot.learn([(2, False)])
    snapshot.settled(2, True)
    assert snapshot.base == 1


# -- newborns ------------------------------------------------------------------------------------------


def test_a_newborn_has_captured_what_is_undecided() -> None:
    snapshot = LocalSnapshot.newborn(5, [Open(3, True), Open(5, False)])
    assert (snapshot.floor, snapshot.newest, snapshot.committed, snapshot.base) == (2, 5, 0, None)
    assert snapshot.due() == []
    assert snapshot.open_captures() == [(3, True), (5, False)]


def test_for_a_newborn_other_ids_are_history() -> None:
    snapshot = LocalSnapshot.newborn(6, [Open(3, True), Open(5, False)])
    assert [n for n in range(1, 9) if not snapshot.is_decided(n)] == [3, 5, 7, 8]
    assert snapshot.newest == 6
    assert LocalSnapshot.newborn(6, []).newest == 6


def test_a_newborn_among_decided_ids_only() -> None:
    snapshot = LocalSnapshot.newborn(6, [])
    assert (snapshot.floor, snapshot.newest, snapshot.fates) == (6, 6, {})
    snapshot.learn([(7, False)])
    assert snapshot.due() == [Open(7, False)]


def test_a_newborn_may_hear_of_an_id_beyond_the_newest() -> None:
    assert LocalSnapshot.newborn(2, [Open(4, False)]).newest == 4


def test_the_fate_of_what_a_newborn_did_not_capture_is_no_news() -> None:
    snapshot = LocalSnapshot.newborn(3, [Open(3, False)])
    assert snapshot.settled(3, True) is False
    assert snapshot.base is None and snapshot.committed == 3
    assert snapshot.full == {} and snapshot.captured == {}


def test_what_a_newborn_captures_later_is_its_own() -> None:
    snapshot = LocalSnapshot.newborn(3, [Open(3, False)])
    capture(snapshot, 4)
    assert snapshot.settled(4, True) is True
    assert snapshot.base == 4


# -- the coordinator's list ----------------------------------------------------------------------------


def test_what_the_list_no_longer_has_is_decided() -> None:
    snapshot = view()
    capture(snapshot, 1, 2, 3)
    assert snapshot.missing([Open(2, False)], 3) == [1, 3]


def test_what_is_newer_than_the_list_is_not_missing() -> None:
    snapshot = view()
    capture(snapshot, 1, 2, 3)
    assert snapshot.missing([], 2) == [1, 2]


def test_missing_ids_ascend() -> None:
    snapshot = view()
    snapshot.learn([(3, False), (1, False)])
    assert snapshot.missing([], 9) == [1, 3]


def test_the_floor_rises_and_fates_below_it_go() -> None:
    snapshot = view()
    for n in (1, 2, 3):
        snapshot.settled(n, False)
    snapshot.raise_floor(2)
    assert (snapshot.floor, snapshot.fates) == (2, {3: False})


@pytest.mark.parametrize("floor", [2, 3])
def test_the_floor_never_falls(floor: int) -> None:
    snapshot = view(floor=3)
    snapshot.fates = {1: False, 5: True}
    snapshot.raise_floor(floor)
    assert (snapshot.floor, snapshot.fates) == (3, {1: False, 5: True})


def test_marks_speak_of_ids() -> None:
    assert view().opens_of([Mark(3, 7, True), Mark(4, 0, False)]) == [(3, True), (4, False)]
