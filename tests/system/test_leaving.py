"""Participants that leave: everything they did stays, nothing is lost with them, their names are free."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import Misuse, ParticipantLeft, SystemHalted, UnknownParticipant

from .living import again, comes_to, kill, left_over, until


class Worker:
    """Does some work, and leaves when it has done enough."""

    def __init__(self, enough: int = 0, boss: Any = None) -> None:
        self.done: list[int] = []
        self.enough = enough
        self.boss = boss

    def work(self, what: int) -> int:
        self.done.append(what)
        if self.boss is not None:
            self.boss.report.tell(what)
        if len(self.done) == self.enough:
            cutline.leave()
        return what

    async def wait_for(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def all_done(self) -> list[int]:
        return self.done


class Boss:
    """Hires workers, gives them work, and hears of it."""

    def __init__(self) -> None:
        self.reports: list[int] = []
        self.answers: list[int] = []
        self.errors: list[str] = []

    def hire(self, name: str, first: int, count: int, enough: int) -> None:
        worker = cutline.spawn(name, Worker, enough, cutline.me())
        for what in range(first, first + count):
            worker.work.remote(what).then(self.on_answer, error=self.on_error)

    def report(self, what: int) -> None:
        self.reports.append(what)

    def on_answer(self, what: int) -> None:
        self.answers.append(what)

    def on_error(self, error: Exception) -> None:
        self.errors.append(type(error).__name__)

    def state(self) -> tuple[list[int], list[int], list[str]]:
        return sorted(self.reports), sorted(self.answers), self.errors


class Pair:
    """Two that keep each other busy until they leave."""

    def __init__(self) -> None:
        self.other: Any = None
        self.heard = 0

    def meet(self, other: Any) -> None:
        self.other = other

    def ball(self) -> None:
        self.heard += 1
        self.other.ball.tell()

    def hits(self) -> int:
        return self.heard


@pytest.fixture
def system(tmp_path: Path) -> Iterator[cutline.System]:
    """A system whose processes have all ended afterwards."""
    with left_over(), cutline.start(tmp_path, interval=None, quiet=True) as started:
        yield started


def names(system: cutline.System) -> set[str]:
    """Who is there."""
    return set(again(system.status)["participants"]) - {"driver"}


def gone(system: cutline.System, name: str) -> None:
    """Waits until somebody is not there any more."""
    until(lambda: name not in names(system), f"the end of {name}")


def test_who_is_stopped_has_done_before_what_it_was_told_before(system: cutline.System) -> None:
    boss = system.spawn("boss", Boss)
    worker = system.spawn("worker", Worker, 0, boss)
    for what in range(5):
        worker.work.tell(what)
    system.stop_participant(worker)
    assert names(system) == {"boss"}
    comes_to(lambda: boss.state.remote().result()[0], [0, 1, 2, 3, 4], "the reports")
    with pytest.raises((ParticipantLeft, UnknownParticipant)):
        worker.work.remote(9).result()


def test_a_name_that_was_left_is_another_participants_from_the_beginning(system: cutline.System) -> None:
    boss = system.spawn("boss", Boss)
    for first in (0, 10, 20):
        worker = system.spawn("worker", Worker, 0, boss)
        assert [worker.work.remote(first + k).result() for k in range(3)] == [first, first + 1, first + 2]
        assert worker.all_done.remote().result() == [first, first + 1, first + 2]
        system.checkpoint()
        system.stop_participant("worker")
    assert boss.state.remote().result()[0] == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_what_a_leaver_never_handled_is_answered_with_the_reason(system: cutline.System) -> None:
    boss = system.spawn("boss", Boss)
    boss.hire.tell("worker", 0, 6, 3)
    comes_to(
        lambda: boss.state.remote().result(), ([0, 1, 2], [0, 1, 2], ["ParticipantLeft"] * 3), "all answers"
    )
    gone(system, "worker")


def test_who_left_stays_gone_after_a_recovery_and_what_it_did_stays_done(system: cutline.System) -> None:
    boss = system.spawn("boss", Boss)
    boss.hire.tell("worker", 0, 2, 2)
    # In this order: before it is hired it is not there either.
    comes_to(lambda: boss.state.remote().result(), ([0, 1], [0, 1], []), "all answers")
    gone(system, "worker")
    system.checkpoint()
    kill(system, "boss")
    assert again(lambda: boss.state.remote().result()) == ([0, 1], [0, 1], [])
    assert names(system) == {"boss"}


def test_a_recovery_to_before_the_leave_brings_it_back_and_it_leaves_again(system: cutline.System) -> None:
    boss = system.spawn("boss", Boss)
    worker = system.spawn("worker", Worker, 0, boss)
    worker.work.remote(1).result()
    system.checkpoint()
    system.stop_participant(worker)
    kill(system, "boss")
    gone(system, "worker")
    comes_to(lambda: again(lambda: boss.state.remote().result()[0]), [1], "the report")


def test_two_that_leave_while_they_keep_each_other_busy(system: cutline.System) -> None:
    left, right = system.spawn("left", Pair), system.spawn("right", Pair)
    left.meet.remote(right).result()
    right.meet.remote(left).result()
    for _ in range(20):
        left.ball.tell()
    until(lambda: right.hits.remote().result() > 100, "some balls")
    system.stop_participant(left)
    system.stop_participant(right)
    assert names(system) == set()
    system.checkpoint()


def test_a_suspended_handler_of_a_leaver_ends_for_whoever_waits(system: cutline.System) -> None:
    worker = system.spawn("worker", Worker)
    waiting = worker.wait_for.remote(600.0)
    worker.work.remote(1).result()
    system.stop_participant(worker)
    with pytest.raises(ParticipantLeft):
        waiting.result()


def test_the_program_run_again_does_not_find_who_left(tmp_path: Path) -> None:
    with left_over():
        with cutline.start(tmp_path, interval=None, quiet=True) as system:
            boss, worker = system.spawn("boss", Boss), system.spawn("worker", Worker)
            worker.work.remote(1).result()
            system.stop_participant(worker)
            boss.report.remote(7).result()
        with cutline.start(tmp_path, interval=None, quiet=True) as system:
            assert names(system) == {"boss"}
            assert system.handle("boss").state.remote().result()[0] == [7]
            assert system.spawn("worker", Worker).all_done.remote().result() == []


def test_come_and_go_under_kills(tmp_path: Path) -> None:
    with left_over(), cutline.start(tmp_path, interval=0.05, quiet=True) as system:
        boss = system.spawn("boss", Boss)
        for k in range(6):
            boss.hire.tell(f"worker-{k % 2}-{k}", 10 * k, 3, 3)
            if k % 2:
                kill(system, "boss")
        wanted = [10 * k + j for k in range(6) for j in range(3)]
        comes_to(lambda: again(lambda: boss.state.remote().result()), (wanted, wanted, []), "all work", 60.0)
        comes_to(lambda: names(system), {"boss"}, "the end of all workers", 60.0)


def test_the_driver_and_nobody_do_not_leave(system: cutline.System) -> None:
    with pytest.raises(Misuse, match="system.stop"):
        system.stop_participant("driver")
    with pytest.raises(UnknownParticipant, match="'ghost'"):
        system.stop_participant("ghost")
    with pytest.raises(Misuse, match="stop_participant"):
        cutline.leave()


def test_whoever_waits_for_an_end_hears_that_the_system_halted(system: cutline.System) -> None:
    worker = system.spawn("worker", Worker)
    worker.all_done.tell("too many", "arguments")
    with pytest.raises(SystemHalted):
        system.stop_participant(worker)
