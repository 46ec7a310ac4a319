"""Recovery: nothing flows before everybody is back, and old confirmations count for nothing."""

from __future__ import annotations

import pytest

from cutline.barrier import Member
from cutline.barrier.recovery import Begin, Confirmed, Recovery, Restoring, Resume, RollBack, Steady

A, B, C = Member("A", 1), Member("B", 2), Member("C", 3)


def begun(*roster: Member) -> Recovery:
    recovery = Recovery(4)
    recovery.handle(Begin(5, 7, roster))
    return recovery


def test_a_new_one_is_steady() -> None:
    recovery = Recovery(4)
    assert recovery.state == Steady(4) and not recovery.restoring


def test_all_are_told_to_roll_back() -> None:
    recovery = Recovery(4)
    assert recovery.handle(Begin(5, 7, (A, B))) == [RollBack(A, 5, 7), RollBack(B, 5, 7)]
    assert recovery.state == Restoring(5, 7, (A, B), {A: None, B: None}) and recovery.restoring


def test_data_flows_after_the_last_confirmation() -> None:
    recovery = begun(A, B, C)
    assert recovery.handle(Confirmed(B, 5)) == []
    assert recovery.handle(Confirmed(A, 5)) == []
    assert recovery.state == Restoring(5, 7, (A, B, C), {C: None})
    assert recovery.handle(Confirmed(C, 5)) == [Resume(5, 7, (A, B, C))]
    assert not recovery.restoring


def test_afterwards_it_is_steady_in_the_new_epoch() -> None:
    recovery = begun(A)
    recovery.handle(Confirmed(A, 5))
    assert recovery.state == Steady(5)


def test_a_confirmation_counts_once() -> None:
    recovery = begun(A, B)
    assert recovery.handle(Confirmed(A, 5)) == []
    assert recovery.handle(Confirmed(A, 5)) == []
    assert recovery.restoring


def test_a_confirmation_of_a_stranger_does_not_count() -> None:
    recovery = begun(A, B)
    recovery.handle(Confirmed(C, 5))
    assert recovery.state == Restoring(5, 7, (A, B), {A: None, B: None})


@pytest.mark.parametrize("epoch", [4, 6])
def test_a_confirmation_of_another_epoch_does_not_count(epoch: int) -> None:
    recovery = begun(A)
    assert recovery.handle(Confirmed(A, epoch)) == []
    assert recovery.restoring


def test_a_confirmation_without_a_recovery_does_nothing() -> None:
    recovery = Recovery(5)
    assert recovery.handle(Confirmed(A, 5)) == []
    assert recovery.state == Steady(5)


def test_a_second_loss_begins_again() -> None:
    recovery = begun(A, B)
    recovery.handle(Confirmed(A, 5))
    assert recovery.handle(Begin(6, 7, (A, B))) == [RollBack(A, 6, 7), RollBack(B, 6, 7)]
    assert recovery.handle(Confirmed(B, 5)) == []
    assert recovery.handle(Confirmed(B, 6)) == []
    assert recovery.handle(Confirmed(A, 6)) == [Resume(6, 7, (A, B))]


@pytest.mark.parametrize("epoch", [3, 4])
def test_an_epoch_must_be_newer(epoch: int) -> None:
    with pytest.raises(AssertionError, match=f"epoch {epoch} is not newer than 4"):
        Recovery(4).handle(Begin(epoch, 7, (A,)))


def test_with_nobody_to_wait_for_data_flows_at_once() -> None:
    recovery = Recovery(4)
    assert recovery.handle(Begin(5, 7, ())) == [Resume(5, 7, ())]
    assert recovery.state == Steady(5)
