"""The driver's participant: durable input, answers and their undoing, loop places, forks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator.driver_port import DriverPort
from cutline.coordinator.loops import run_loop
from cutline.errors import (
    AnswerForgotten,
    Corrupt,
    Misuse,
    RolledBack,
    SpawnFailed,
    StoreFull,
    SystemStopped,
)
from cutline.participant.driver import DriverRunner
from cutline.participant.handle import CallOptions
from cutline.participant.ingress import IngressLog
from cutline.participant.messages import pack_error
from cutline.participant.submission import Place, Submission

from .town import RUN, Town


class Adder:
    """Adds what it is told."""

    def __init__(self) -> None:
        self.total = 0
        self.heard: list[int] = []

    def add(self, number: int) -> int:
        self.total += number
        self.heard.append(number)
        return self.total


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """A driver and one participant that run."""
    made = Town()
    made.add("adder", Adder)
    driver = made.add_driver(tmp_path)
    made.start()
    driver.known_names = {"adder": ""}
    made.checkpoint(full=True)
    yield made
    made.close()


def driver_of(town: Town) -> DriverRunner:
    """The driver's runner."""
    runner = town.runners["driver"]
    assert isinstance(runner, DriverRunner)
    return runner


def total(town: Town) -> Any:
    """What the adder has heard."""
    instance: Any = town.runners["adder"].instance
    return list(instance.heard)


def submit(
    town: Town,
    number: int,
    value: int,
    *,
    kind: str = "ask",
    key: str | None = None,
    durable: bool = True,
    place: Place | None = None,
    generation: int = 0,
) -> Future[Any]:
    """Submits one call; the future is that of its answer."""
    driver = driver_of(town)
    answer = driver.waiting[number] = Future()
    if not durable:
        driver.reads.add(number)
    taken: Future[Any] = Future()
    driver.post(Submission(kind, number, "adder", "add", [value], key, durable, place, generation, taken))
    town.settle()
    if taken.done() and taken.exception() is not None:
        answer.set_exception(taken.exception())
    return answer


def test_logged_input_is_delivered_again_after_a_recovery_and_the_first_answer_stays(town: Town) -> None:
    cut = town.committed
    answer = submit(town, 1, 5)
    assert answer.result(0) == (True, [5])
    town.recover(cut)
    assert total(town) == [5]
    driver = driver_of(town)
    assert isinstance(driver.rolled_back, RolledBack)
    assert answer.result(0) == (True, [5])


def held(town: Town) -> list[int]:
    """How far the log went when the driver said that it takes nothing more."""
    said = [doc for _, doc in town.heard if doc["kind"] == "request" and doc["what"] == "input_held"]
    return [doc["last"] for doc in said]


def test_input_is_held_back_while_the_system_is_suspended(town: Town) -> None:
    driver = driver_of(town)
    submit(town, 1, 5)
    driver.post(driver.hold_input)
    town.settle()
    assert held(town) == [1]
    late = submit(town, 2, 6)
    assert total(town) == [5] and not late.done() and driver.is_coming(2)
    assert driver.log is not None and driver.log.last == 1
    # A loss in between changes nothing of that.
    town.recover(town.committed)
    assert total(town) == [5] and not late.done()
    # It goes on after all.
    driver.post(driver.let_input)
    town.settle()
    assert total(town) == [5, 6] and late.result(0) == (True, [11]) and driver.log.last == 2
    # Another coordinator knows nothing of it; who suspends the system looks whether that happened.
    driver.post(driver.hold_input)
    again = submit(town, 5, 1)
    driver.post(driver.reconnected)
    town.settle()
    assert held(town) == [1, 2] and again.result(0) == (True, [12])
    # What was submitted before is taken before it says so.
    driver.post(Submission("tell", 6, "adder", "add", [1], None, True, None, 0, Future()))
    driver.post(driver.hold_input)
    town.settle()
    assert held(town) == [1, 2, 4] and total(town) == [5, 6, 1, 1]
    refused = submit(town, 7, 7)
    driver.post(lambda: driver.fail_all(SystemStopped("the system has ended: suspended")))
    town.settle()
    with pytest.raises(SystemStopped, match="suspended"):
        refused.result(0)
    assert driver.log.last == 4


def test_a_read_is_not_delivered_again_and_its_waiter_hears_why(town: Town) -> None:
    cut = town.committed
    town.runners["adder"].phase = "stuck"
    answer = submit(town, 1, 5, durable=False)
    town.recover(cut)
    with pytest.raises(RolledBack):
        answer.result(0)
    assert total(town) == []
    assert driver_of(town).rolled_back is None


def test_a_cut_that_holds_the_question_brings_the_answer(town: Town) -> None:
    adder = town.runners["adder"]
    adder.phase = "stuck"
    answer = submit(town, 1, 5, durable=False)
    adder.go()
    driver = driver_of(town)
    number = town.begin()
    driver.step(0.0)
    town.settle()
    town.decide(number, True)
    town.settle()
    assert answer.done()
    town.recover(number)
    assert total(town) == [5]


def test_one_key_is_one_submission(town: Town) -> None:
    first = submit(town, 1, 5, key="k")
    second = submit(town, 2, 5, key="k")
    assert first.result(0) == second.result(0) == (True, [5])
    cut = town.checkpoint()
    third = submit(town, 3, 5, key="k")
    town.recover(cut)
    assert third.result(0) == (True, [5])
    assert total(town) == [5]
    submit(town, 4, 1, kind="tell", key="t")
    with pytest.raises(Misuse):
        submit(town, 5, 1, key="t").result(0)


def test_a_key_is_known_by_its_record_when_the_time_of_it_is_over(town: Town) -> None:
    driver = driver_of(town)
    driver.key_seconds = 50.0
    submit(town, 1, 5, key="k")
    cut = town.checkpoint()
    assert submit(town, 2, 5, key="k").result(0) == (True, [5])
    town.clock.now += 100
    # What came in time stays a duplicate, though it is replayed when the key has been forgotten.
    town.recover(cut)
    assert total(town) == [5]
    assert submit(town, 3, 6, key="k").result(0) == (True, [11])
    town.recover(cut)
    assert total(town) == [5, 6]
    # Its answer does not need the desk.
    assert submit(town, 4, 6, key="k").result(0) == (True, [11])
    assert driver.desk.kept == set()


def small_files(town: Town) -> IngressLog:
    """The driver's log, each record in a file of its own from now on."""
    log = driver_of(town).log
    assert log is not None
    log._segment_bytes = 1
    return log


def told_behind(town: Town, behind: int, lineage: str = RUN) -> None:
    """The coordinator says what all cuts that are kept have behind them."""
    town.say("driver", "notice", what="input_behind", lineage=lineage, behind=behind)
    town.settle()


def test_the_log_is_cut_as_the_coordinator_says_and_no_further(town: Town) -> None:
    log = small_files(town)
    for number in range(1, 6):
        submit(town, number, number)
    older = town.begin()
    town.settle()
    submit(town, 6, 6)
    newer = town.begin()
    town.settle()
    submit(town, 7, 7)
    town.decide(newer, True)
    town.settle()
    told_behind(town, 6, lineage="another")
    assert log.first == 1
    # The newer one is committed and kept, and the older one may still be.
    told_behind(town, 6)
    assert log.first == 6
    town.decide(older, True)
    town.settle()
    told_behind(town, 5)
    assert log.first == 6
    told_behind(town, 6)
    assert log.first == 7
    # Nor beyond what it has.
    told_behind(town, 100)
    assert log.last == 7 == log.first
    town.recover(newer)
    assert total(town) == [1, 2, 3, 4, 5, 6, 7]


def test_a_cut_that_is_behind_what_was_removed_is_refused(town: Town) -> None:
    small_files(town)
    cut = town.committed
    for number in (1, 2, 3):
        submit(town, number, number)
    town.checkpoint()
    told_behind(town, 3)
    with pytest.raises(Corrupt, match="records 1 to 2"):
        town.recover(cut)


def test_what_an_input_follows_from_is_not_forgotten_with_one_that_was_not_taken(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_of(town)
    submit(town, 1, 5)
    assert driver.answered_since == [1] and driver.log is not None

    def full(_records: Any) -> int:
        raise StoreFull("no room")

    monkeypatch.setattr(driver.log, "append", full)
    with pytest.raises(StoreFull):
        submit(town, 2, 6).result(0)
    # What is not logged is no worse off.
    assert submit(town, 3, 7, durable=False).result(0) == (True, [12])
    monkeypatch.undo()
    submit(town, 4, 8)
    assert [record[7] for record in driver.log.after(1)] == [[1]]


def test_the_answer_to_a_question_that_a_cut_holds_open_is_known_under_its_key(town: Town) -> None:
    """Also where it is the first thing that comes after the restore."""
    adder, driver = town.runners["adder"], driver_of(town)
    adder.phase = "stuck"
    first = submit(town, 1, 5, key="k")
    adder.go()
    number = town.begin()
    driver.step(0.0)
    town.settle()
    town.decide(number, True)
    town.settle()
    town.recover(number)
    assert first.result(0) == (True, [5]) and not driver.desk.asks
    town.checkpoint()
    assert submit(town, 2, 5, key="k").result(0) == (True, [5])
    assert total(town) == [5]


def test_a_place_of_another_generation_is_refused(town: Town) -> None:
    driver = driver_of(town)
    driver.loop_position("steps")
    place = Place("steps", 0, 0, 11)
    assert submit(town, 1, 5, place=place, generation=driver.generation).result(0) == (True, [5])
    town.recover(town.committed)
    with pytest.raises(RolledBack):
        submit(town, 2, 5, place=place, generation=0).result(0)
    assert total(town) == []


def test_a_cut_remembers_what_a_step_has_submitted(town: Town) -> None:
    driver = driver_of(town)
    driver.loop_position("steps")
    submit(town, 1, 5, place=Place("steps", 0, 0, 11), generation=driver.generation)
    cut = town.checkpoint()
    submit(town, 2, 6, place=Place("steps", 0, 1, 12), generation=driver.generation)
    town.recover(cut)
    step, known, generation = driver.loop_position("steps")
    assert (step, known) == (0, {0: [1, 11]}) and generation == driver.generation == 1
    assert driver.desk.answers[1] == (True, [5])


def test_a_fork_counts_its_own_log(town: Town, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        submit(town, number, number)
    cut = town.checkpoint()
    images = town.images[cut]
    for runner in list(town.runners.values()):
        runner.desk.close()
    fork = Town()
    fork.blobs, fork.images, fork.newest = town.blobs, {cut: images}, cut
    adder = fork.add("adder", Adder)
    adder.setup.run = adder.peers.run = "fork"
    driver = fork.add_driver(tmp_path, run="fork")
    fork.settle()
    fork.recover(cut)
    submit(fork, 10, 10)
    assert total(fork) == [1, 2, 3, 10]
    fork.recover(cut)
    assert total(fork) == [1, 2, 3, 10]
    assert driver.log is not None and driver.log.last == 1
    fork.close()


def test_a_log_that_ends_below_the_cut_is_an_error(town: Town, tmp_path: Path) -> None:
    submit(town, 1, 5)
    cut = town.checkpoint()
    (tmp_path / f"{RUN}.log").write_bytes(b"")
    driver = driver_of(town)
    assert driver.log is not None
    driver.log.last = 0
    with pytest.raises(Corrupt, match="acknowledged input"):
        town.recover(cut)


def test_a_spawn_that_failed_is_not_tried_again(town: Town) -> None:
    driver = driver_of(town)
    cut = town.committed
    up: Future[Any] = Future()
    record = {"class_name": "x:Y", "options": {}, "args": [], "main": b"", "get": False}
    driver.post(Submission("spawn", 1, "late", "", record, None, True, None, 0, up))
    town.settle()
    assert [doc["name"] for _, doc in town.said("spawn")] == ["late"]
    error = pack_error(SpawnFailed("no"), participant="late")
    town.say("driver", "spawned", number=1, name="late", birth=9, address="", error=error, **town.view())
    town.settle()
    with pytest.raises(SpawnFailed):
        up.result(0)
    town.recover(cut)
    assert len(town.said("spawn")) == 1
    assert "late" not in driver.known_names
    assert [name for name, _ in town.said("spawns_told")][-1] == "driver"


def test_whoever_submits_to_what_has_ended_hears_it(town: Town) -> None:
    driver = driver_of(town)
    answer = submit(town, 1, 5)
    driver.die(SystemStopped("over"))
    assert answer.result(0) == (True, [5])
    with pytest.raises(SystemStopped):
        submit(town, 2, 5).result(0)
    done: Future[Any] = Future()
    driver.post(lambda: driver.request("checkpoint", {}, done))
    with pytest.raises(SystemStopped):
        done.result(0)


class Threadless(DriverPort):
    """A port whose user is the thread that steps the town."""

    def __init__(self, town: Town) -> None:
        super().__init__(driver_of(town), "test")
        self.town = town

    def on_runner(self, call: Any, *, check: bool = True) -> Any:
        return call()


def test_a_loop_rewinds_wherever_the_recovery_comes(town: Town) -> None:
    port = Threadless(town)
    driver = driver_of(town)
    steps: list[int] = []
    post = driver.post
    when = {("body", 1): 1, ("before advance", 2): 1, ("after", 3): 1, ("end", 4): 1}

    def now(where: str, step: int) -> None:
        if when.pop((where, step), 0):
            town.recover(town.committed)

    def posted(event: Any) -> None:
        if isinstance(event, Submission) and event.kind == "advance":
            now("before advance", len(set(steps)) - 1)
        post(event)
        if isinstance(event, Submission):
            town.settle()
            if event.kind == "advance":
                now("after", len(set(steps)) - 1)

    def body(step: int) -> None:
        steps.append(step)
        ref = port.ask("adder", "add", (step,), {}, CallOptions())
        now("body", step)
        port.result(ref, 0, False)

    def checkpoint() -> int:
        now("end", 4)
        port.check()
        return town.checkpoint()

    driver.post = posted  # type: ignore[method-assign]
    run_loop(port, checkpoint, "steps", 5, body)
    assert not when
    assert total(town) == [0, 1, 2, 3, 4]
    assert max(steps) == 4
    run_loop(port, checkpoint, "steps", 5, body)
    assert total(town) == [0, 1, 2, 3, 4]


def test_an_error_of_an_older_time_ends_a_loop_instead_of_turning_it_for_ever(town: Town) -> None:
    port = Threadless(town)

    def body(step: int) -> None:
        raise RolledBack("a Ref from before the loop")

    with pytest.raises(RolledBack, match="before the loop"):
        run_loop(port, lambda: 1, "steps", 2, body)


def test_a_ref_whose_answer_is_gone_says_so(town: Town) -> None:
    port = Threadless(town)
    future: Future[Any] = driver_of(town).waiting.setdefault(77, Future())
    port._redeliver(77)
    with pytest.raises(AnswerForgotten):
        future.result(0)
