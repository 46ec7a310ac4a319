"""Answers that were given up while they came."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from cutline.participant.outcomes import OutcomeRunner


def test_one_that_was_given_up_takes_no_other_with_it() -> None:
    runner = OutcomeRunner.__new__(OutcomeRunner)
    runner._untold, runner._in_step = [], True
    futures: list[Future[Any]] = [Future() for _ in range(3)]
    for number, future in enumerate(futures):
        runner.tell(future, number)
    assert not any(future.done() for future in futures)
    futures[1].cancel()
    runner.tell_all()
    assert (futures[0].result(0), futures[2].result(0)) == (0, 2) and futures[1].cancelled()
    runner.tell(futures[0], "later")
    runner.tell_all()
    assert futures[0].result(0) == 0
