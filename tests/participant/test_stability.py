"""Which answers no recovery undoes."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from cutline.errors import RolledBack
from cutline.participant.stability import Stability

UNDONE = RolledBack("back")


def waiter(stability: Stability, number: int) -> Future[None]:
    """A future of an answer's stability."""
    future: Future[None] = Future()
    stability.wait(number, future)
    return future


def test_an_answer_is_stable_when_a_checkpoint_captured_after_it_commits() -> None:
    stability = Stability()
    stability.answered(1, True)
    stability.captured(10)
    stability.answered(2, True)
    one, two = waiter(stability, 1), waiter(stability, 2)
    stability.settled(10, True)
    assert one.done() and not two.done()
    stability.captured(11)
    stability.settled(11, False)
    assert not two.done()
    stability.captured(12)
    stability.settled(12, True)
    assert two.done() and waiter(stability, 2).done()


def test_what_a_rollback_undid_stays_undone() -> None:
    stability = Stability()
    stability.answered(1, True)
    before = waiter(stability, 1)
    assert stability.rolled_back(9, UNDONE)
    after = waiter(stability, 1)
    stability.answered(1, True)
    stability.captured(10)
    stability.settled(10, True)
    for future in (before, after, waiter(stability, 1)):
        with pytest.raises(RolledBack):
            future.result(0)


def test_a_rollback_to_a_checkpoint_whose_commit_was_not_heard_undoes_nothing_of_it() -> None:
    stability = Stability()
    stability.answered(1, True)
    stability.captured(10)
    future = waiter(stability, 1)
    assert not stability.rolled_back(10, UNDONE)
    assert future.result(0) is None


def test_a_read_is_undone_without_a_word_and_yet_not_stable() -> None:
    stability = Stability()
    stability.answered(1, False)
    future = waiter(stability, 1)
    assert not future.done()
    assert not stability.rolled_back(9, UNDONE)
    with pytest.raises(RolledBack):
        future.result(0)
