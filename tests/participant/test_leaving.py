"""A driver that comes to rest: what keeps it from it, what it says at rest, and what ends the rest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from cutline.barrier.cut import check
from cutline.barrier.wire import claims_from_doc
from cutline.participant.leaving import RESTS, LeavingDriver
from cutline.participant.submission import Submission

from .town import Town


class Adder:
    """Adds what it is told."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """A driver that can leave and one participant; one checkpoint is committed."""
    made = Town()
    made.add("adder", Adder)
    driver = made.add_driver(tmp_path, kind=LeavingDriver)
    made.start()
    driver.known_names = {"adder": ""}
    made.checkpoint(full=True)
    yield made
    made.close()


def driver_of(town: Town) -> LeavingDriver:
    runner = town.runners["driver"]
    assert isinstance(runner, LeavingDriver)
    return runner


def submit(town: Town, number: int, value: int, kind: str = "ask") -> Future[Any]:
    """Submits one call; the future is that of its answer. Nobody has taken a step."""
    driver = driver_of(town)
    answer = driver.waiting[number] = Future()
    driver.post(Submission(kind, number, "adder", "add", [value], None, True, None, 0, Future()))
    return answer


def prepared(town: Town, checkpoint: int) -> dict[str, dict[str, Any]]:
    """What everybody has reported for a checkpoint."""
    return {name: doc for name, doc in town.said("prepared") if doc["checkpoint"] == checkpoint}


def total(town: Town) -> int:
    """The adder's sum."""
    instance: Any = town.runners["adder"].instance
    return int(instance.total)


def fault_of(town: Town, driver: dict[str, Any], adder: dict[str, Any]) -> list[str]:
    """What the check of a cut says of two reports."""
    members = {name: town.runners[name].me for name in ("driver", "adder")}
    claims = {
        members["driver"]: claims_from_doc(driver["claims"]),
        members["adder"]: claims_from_doc(adder["claims"]),
    }
    return check(claims)


def test_what_is_still_on_its_way_keeps_it_from_resting(town: Town) -> None:
    driver = driver_of(town)
    submit(town, 1, 5)
    driver._take_events(0.0)
    assert driver.try_rest() == "input waits for what it follows from"
    driver.step(0.0)
    assert driver.try_rest() == "nobody has said yet where adder is"
    town.runners["adder"].phase = "stuck"
    town.settle()
    assert driver.try_rest() == "adder has not taken all that was sent to it"
    assert not driver.resting
    town.runners["adder"].phase = "running"
    town.settle()
    assert driver.try_rest() == "" and driver.resting
    # Once at rest it says so again.
    assert driver.try_rest() == ""
    assert driver.log is not None and driver.instance.log_index == driver.log.last == 1


def test_what_is_due_does_not_keep_it_awake_at_rest(town: Town) -> None:
    driver = driver_of(town)
    assert driver.try_rest() == ""
    # Pages were to be copied ahead of a checkpoint, which waits for the end of the rest.
    driver.shutter.ahead.at = driver.now() - 5
    assert driver._patience() > 0
    driver.step(0.0)
    assert driver._patience() > 0
    driver.wake()
    assert driver._patience() == 0
    driver.step(0.0)
    assert driver.shutter.ahead.at is None


def test_a_driver_that_is_being_restored_does_not_rest(town: Town) -> None:
    town.roll_back(town.committed)
    town.settle()
    assert "brought back" in driver_of(town).try_rest()
    town.resume(town.committed)
    town.settle()
    assert driver_of(town).try_rest() == ""


def test_its_report_says_whether_it_rested(town: Town) -> None:
    assert prepared(town, town.committed)["driver"]["facts"][RESTS] is False
    assert driver_of(town).try_rest() == ""
    assert RESTS not in prepared(town, town.checkpoint())["adder"]["facts"]
    assert prepared(town, town.committed)["driver"]["facts"][RESTS] is True


def test_its_report_at_rest_fits_every_later_cut(town: Town) -> None:
    adder = town.runners["adder"]
    adder.phase = "stuck"
    answer = submit(town, 1, 5)
    driver_of(town).step(0.0)
    adder.phase = "running"
    # The question is taken and its answer is under way when the driver rests.
    for _ in range(20):
        adder.step(0.0)
    while driver_of(town).try_rest():
        driver_of(town).step(0.0)
        town.clock.now += 0.1
        adder.step(0.0)
    parting = town.checkpoint()
    report = prepared(town, parting)["driver"]
    handled = driver_of(town).desk.handled
    for _ in range(3):
        later = town.checkpoint()
        assert fault_of(town, report, prepared(town, later)["adder"]) == []
    assert driver_of(town).desk.handled == handled
    assert total(town) == 5
    driver_of(town).wake()
    town.settle()
    assert answer.result(0) == (True, [5])


def test_at_rest_nobody_reaches_it_and_nothing_is_lost(town: Town) -> None:
    driver = driver_of(town)
    answer = submit(town, 1, 5)
    town.settle()
    assert answer.done()
    assert driver.try_rest() == ""
    late = submit(town, 2, 6)
    town.runners["adder"].dial(driver.me)
    town.settle()
    assert not driver.peers.links and total(town) == 5
    town.checkpoint()
    driver.wake()
    town.settle()
    assert late.result(0) == (True, [11])


def test_a_rollback_ends_the_rest(town: Town) -> None:
    driver = driver_of(town)
    submit(town, 1, 5)
    town.settle()
    assert driver.try_rest() == ""
    town.recover(town.committed)
    assert not driver.resting
    # The input was logged, and was behind the cut that everybody went back to.
    assert total(town) == 5
    assert prepared(town, town.checkpoint())["driver"]["facts"][RESTS] is False
