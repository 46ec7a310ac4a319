"""Idempotency keys: how long they are remembered, and that a replay does what was done."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from cutline.barrier import Member
from cutline.errors import InputRefused, Misuse
from cutline.participant.desk import Desk
from cutline.participant.driver import DriverState
from cutline.participant.keys import Keys
from cutline.participant.map import Map
from cutline.participant.submission import Submission

SECONDS = 100.0


def submission(number: int, key: str = "k", method: str = "add") -> Submission:
    return Submission("ask", number, "adder", method, [1], key, True, None, 0, Future())


class Book:
    """Keys of a state, and a clock."""

    def __init__(self, state: DriverState | None = None, most: int = 100) -> None:
        self.state = state or DriverState()
        self.desk = Desk(Member("driver", 0), None)
        self.keys = Keys(self.state, self.desk, SECONDS, most)
        self.now = 1000.0

    def take(self, number: int, key: str = "k", method: str = "add") -> int:
        """Takes a submission; the number of the first one."""
        self.keys.forget(self.now)
        stamp = self.keys.judge(submission(number, key, method), self.now, {})
        self.stamp = stamp
        self.desk.asks[number] = ("adder", method, [])
        return self.keys.first(key, number, f"adder.{method}", stamp, asks=True)

    def answer(self, number: int, value: Any = 7) -> None:
        del self.desk.asks[number]
        self.keys.answered(number, True, [value])


def test_a_key_is_remembered_for_its_time_and_its_answer_with_it() -> None:
    book = Book()
    assert book.take(1) == 1
    book.answer(1)
    book.now += SECONDS
    assert book.take(2) == 1 and book.keys.answer(1) == (True, [7])
    book.now += 1
    assert book.take(3) == 3 and book.keys.answer(1) is None
    assert type(book.state.keys) is Map and list(book.state.keys) == ["k"]


def test_a_key_whose_question_has_no_answer_is_not_forgotten() -> None:
    book = Book()
    assert book.take(1) == 1
    book.now += 50 * SECONDS
    assert book.take(2) == 1
    assert book.take(3, "other") == 3
    book.answer(1)
    assert book.take(4) == 4


def test_a_clock_that_was_ahead_makes_no_key_stay() -> None:
    book = Book()
    book.now += 1e9
    for number in range(1, 6):
        book.take(number, f"k{number}")
        book.answer(number)
    book.now -= 1e9
    for number in range(6, 11):
        assert book.take(number, f"k{number - 5}") == number - 5
    book.now += SECONDS + 1
    assert book.take(11, "k1") == 11 and list(book.state.keys) == ["k1"]


def test_a_replay_does_what_was_done_whatever_the_clock_says() -> None:
    book = Book()
    book.take(1)
    first = book.stamp
    book.answer(1)
    book.take(2)
    second = book.stamp
    # The same once more, with keys that are remembered for no time at all.
    again = Keys(DriverState(), Desk(Member("driver", 0), None), 0.0)
    assert again.first("k", 1, "adder.add", first, asks=True) == 1
    assert again.first("k", 2, "adder.add", second, asks=True) == 1
    # And of one that had been forgotten when its successor came, and has not been here.
    book.now += SECONDS + 1
    assert book.take(3) == 3
    assert again.first("k", 3, "adder.add", book.stamp, asks=True) == 3


def test_the_duplicate_of_one_that_was_undone_takes_its_place() -> None:
    book = Book()
    assert book.keys.first("k", 2, "adder.add", [book.now, 1], asks=True) == 2
    assert book.take(3) == 2


def test_a_key_is_of_one_call() -> None:
    book = Book()
    book.take(1)
    with pytest.raises(Misuse, match=r"'k' was used for adder\.add, and is now for adder\.sub"):
        book.take(2, method="sub")


def test_there_is_room_for_so_many_keys() -> None:
    book = Book(most=3)
    for number in (1, 2, 3):
        book.take(number, f"k{number}")
        book.answer(number)
    with pytest.raises(InputRefused, match="remember_keys="):
        book.take(4, "k4")
    assert book.take(5, "k2") == 2
    book.now += SECONDS + 1
    assert book.take(6, "k4") == 6


def test_those_that_come_together_are_judged_together() -> None:
    book = Book(most=1)
    others: dict[str, tuple[int, str]] = {}
    assert book.keys.judge(submission(1), 5.0, others) == [5.0, 0]
    assert book.keys.judge(submission(2), 5.0, others) == [5.0, 1]
    with pytest.raises(InputRefused):
        book.keys.judge(submission(3, "other"), 5.0, others)


def test_the_keys_of_a_state_of_an_older_version_stay_for_a_whole_time() -> None:
    state = DriverState()
    del state.outcomes
    state.keys = {"told": 1, "asked": 2, "open": 3}
    desk = Desk(Member("driver", 0), None)
    desk.kept = {1, 2, 3}
    desk.answers[2] = (True, [5])
    desk.asks[3] = ("adder", "add", [])
    keys = Keys(state, desk, SECONDS)
    assert keys.answer(2) == (True, [5]) and desk.kept == set()
    keys.forget(1000.0)
    keys.forget(1000.0 + SECONDS)
    assert list(state.keys) == ["told", "asked", "open"]
    assert keys.first("asked", 9, "adder.add", None, asks=True) == 2
    keys.forget(1001.0 + SECONDS)
    assert list(state.keys) == ["open"]
