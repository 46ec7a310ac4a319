"""Durable steps: what returned is never called again in its history, and nothing else is taken for it."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from typing import Any

import msgpack
import pytest

from cutline import effect
from cutline.errors import CannotCapture, Misuse, OutsideHandler, StoreFull
from cutline.participant import step_files, steps
from cutline.participant.log import Log
from cutline.participant.steps import SECTION, StepLost

from .stepping import World, files, world

__all__ = ("world",)


# -- a history, and its repetition --------------------------------------------------------------------------


def test_what_returned_is_not_called_again(world: World) -> None:
    world.log.append("system")
    cut = world.cut()
    first = [world.step(number) for number in range(3)]
    assert len(world.called) == 3
    world.crash(cut)
    assert [world.step(number) for number in range(3)] == first
    assert len(world.called) == 3 and world.log == ["system", *first]
    assert world.step(3)["answer"] == 4


def test_steps_before_the_cut_are_in_it(world: World) -> None:
    world.step(0)
    cut = world.cut()
    later = world.step(0)
    world.crash(cut)
    assert len(world.log) == 1
    assert world.step(0) == later and len(world.called) == 2
    world.log.clear()
    assert world.step(0)["answer"] == 3


def test_other_content_is_another_step(world: World) -> None:
    cut = world.cut()
    world.log.append("a")
    answer = world.step(1)
    for other in ("b", "a ", 1, ("a",), ["a"], None):
        world.crash(cut)
        world.log.append(other)
        assert world.step(1) != answer
    world.crash(cut)
    world.log.append("a")
    assert world.step(1) == answer


def test_another_function_or_argument_is_another_step(world: World) -> None:
    cut = world.cut()
    answer = world.step(1)

    def other(*_said: Any) -> int:
        return -1

    world.crash(cut)
    assert world.step(2) != answer
    world.crash(cut)
    assert world.log.step(other, 1) == -1
    world.crash(cut)
    assert world.log.step(partial(world.ask, 1)) == answer


@pytest.mark.parametrize(
    ("one", "another"),
    [(1, 1.0), (1, True), ("a", b"a"), ([1], (1,)), ({1}, [1]), (2**70, 2**70 + 1), ({"a": 1}, {"a": 2})],
    ids=repr,
)
def test_arguments_that_differ(world: World, one: Any, another: Any) -> None:
    cut = world.cut()
    answer = world.step(one)
    world.crash(cut)
    assert world.step(another) != answer
    world.crash(cut)
    assert world.step(one) == answer


class Point:
    def __init__(self, x: Any) -> None:
        self.x = x


def test_arguments_are_compared_by_what_they_hold(world: World) -> None:
    cut = world.cut()
    text = "".join(["a", "b"])
    shared = {"one": text, "two": text, "three": Point(text)}
    answer = world.step(shared, frozenset("abc"), lock := threading.Lock(), world.log)
    world.crash(cut)
    apart = {"one": "ab", "two": "".join(["a", "b"]), "three": Point("ab")}
    assert world.step(apart, frozenset("cba"), threading.Lock(), world.log) == answer
    world.crash(cut)
    assert world.step({**apart, "three": Point("ac")}, frozenset("abc"), lock, world.log) != answer


def test_a_log_as_argument_counts_with_its_content(world: World) -> None:
    cut = world.cut()
    answer = world.step(Log([1, 2]))
    world.crash(cut)
    assert world.step(Log([1, 3])) != answer
    world.crash(cut)
    assert world.step(Log([1, 2])) == answer


def test_values_of_all_kinds_are_digested_alike(world: World) -> None:
    def history() -> Any:
        inner = Log([1, (2, {3}), Log([{"deep": ((4,), Log(["x"]))}])])
        deep: list[Any] = []
        for _ in range(600):
            deep = [deep]
        itself: list[Any] = []
        itself.append(itself)
        world.log.extend(
            [inner, deep, itself, "\ud800", 2**80, {(1, 2): b"x"}, Point((inner, [5])), world.log]
        )
        return world.step(world.log, inner)

    cut = world.cut()
    answer = history()
    world.crash(cut)
    assert history() == answer and len(world.called) == 1
    # Something that cannot be stored leaves the packers as they were.
    world.log.append([1, threading.Lock()])
    with pytest.raises(CannotCapture):
        world.step(1)
    world.log.pop()
    later = world.step(1)
    world.crash(cut)
    assert history() == answer and world.step(1) == later


def test_equal_steps_are_taken_in_their_order(world: World) -> None:
    cut = world.cut()
    answers = []
    for _ in range(3):
        answers.append(world.step("again"))
        world.log.pop()
    for _ in range(2):
        world.crash(cut)
        for answer in answers:
            assert world.step("again") == answer
            world.log.pop()
    assert world.step("again")["answer"] == 4


def test_other_changes_of_the_log_are_part_of_its_history(world: World) -> None:
    def history() -> list[Any]:
        world.log.extend([{"role": "user"}, (1, 2), 3])
        found = [world.step(1)]
        world.log[1] = "other"
        found.append(world.step(1))
        del world.log[0]
        world.log.sort(key=repr)
        found.append(world.step(1))
        return found

    cut = world.cut()
    found = history()
    world.crash(cut)
    assert history() == found and len(world.called) == 3


def test_a_cut_in_the_middle_of_a_repetition(world: World) -> None:
    first = world.cut()
    answers = [world.step(number) for number in range(4)]
    world.crash(first)
    assert [world.step(number) for number in range(2)] == answers[:2]
    second = world.cut()
    world.crash(second)
    assert world.step(2) == answers[2]
    world.crash(second)
    assert [world.step(2), world.step(3)] == answers[2:]
    third = world.cut()
    assert SECTION not in world.cuts[third][1].sections
    # Recovery may have to go back further.
    world.crash(first)
    assert [world.step(number) for number in range(4)] == answers
    assert len(world.called) == 4


def test_two_histories_after_one_cut(world: World) -> None:
    cut = world.cut()
    one = [world.step("x"), world.step("y")]
    world.crash(cut)
    other = [world.step("y"), world.step("x")]
    assert len(world.called) == 4
    for history, way in ((one, "xy"), (other, "yx"), (one, "xy")):
        world.crash(cut)
        assert [world.step(said) for said in way] == history
    assert len(world.called) == 4


def test_a_survivor_that_goes_back_in_place(world: World) -> None:
    cut = world.cut()
    answer = world.step(1)
    world.roll_back(cut)
    assert world.step(1) == answer
    later = world.step(2)
    world.roll_back(cut)
    assert [world.step(1), world.step(2)] == [answer, later]


def test_a_fork_has_a_history_of_its_own(world: World) -> None:
    cut = world.cut()
    answer = world.step(1)
    world.crash(cut)
    cut = world.cut()
    assert SECTION in world.cuts[cut][1].sections
    world.process(lineage="f" * 16)
    world.roll_back(cut)
    assert world.step(1) != answer


def test_what_nobody_comes_to_is_dropped_after_some_cuts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PENDING_CUTS", 2)
    cut = world.cut()
    answer = world.step("never again")
    world.crash(cut)
    world.log.append("another way")
    suspended: Any = {1: None}
    world.desk.calls = suspended
    for _ in range(4):
        assert SECTION in world.cuts[world.cut()][1].sections
    world.desk.calls = {}
    kept = [SECTION in world.cuts[world.cut()][1].sections for _ in range(4)]
    assert kept == [True, True, False, False]
    world.log.clear()
    assert world.step("never again") != answer


def test_the_oldest_are_dropped_where_there_are_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PENDING", 3)
    cut = world.cut()
    for number in range(5):
        world.step(number)
    world.crash(cut)
    section = world.cuts[world.cut()][1].sections[SECTION]
    assert sum(len(results) for _, results in msgpack.unpackb(section)) == 3


# -- newborns -----------------------------------------------------------------------------------------------


def test_a_newborn_takes_up_the_steps_of_the_one_it_stands_for(world: World) -> None:
    answer = world.step(1)
    world.epoch += 1
    world.born(birth=2)
    assert world.step(1) == answer
    later = world.step(2)
    # The one after it, in the same epoch, is somebody else.
    world.born(birth=3)
    assert world.step(1) != answer
    # That history too may be undone; each step counts once.
    world.epoch += 1
    world.born(birth=4)
    assert world.step(1) == answer and world.step(2) == later


def test_a_newborn_does_not_take_the_steps_of_one_that_is_in_a_cut(world: World) -> None:
    answer = world.step(1)
    cut = world.cut()
    world.step(2)
    world.epoch += 1
    world.born(birth=2, base=cut)
    assert world.step(1) != answer


def test_the_steps_of_another_one_of_that_name_are_not_taken(world: World) -> None:
    cut = world.cut()
    answer = world.step(1)
    world.crash(cut, birth=2)
    assert world.step(1) != answer


# -- what goes wrong in a step ------------------------------------------------------------------------------


def test_a_function_that_raises_leaves_nothing(world: World) -> None:
    cut = world.cut()

    def failing() -> None:
        world.called.append("failing")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        world.log.step(failing)
    assert world.log == [] and not files(world)
    world.crash(cut)
    with pytest.raises(ValueError, match="no"):
        world.log.step(failing)
    assert len(world.called) == 2
    assert world.step(1)["answer"] == 3


def test_a_result_that_cannot_be_stored(world: World) -> None:
    def locked() -> Any:
        return {"inside": [threading.Lock()]}

    with pytest.raises(CannotCapture) as caught:
        world.log.step(locked)
    assert "agent" in str(caught.value) and "result of step" in str(caught.value)
    assert "inside" in str(caught.value.facts["path"])
    assert world.log == [] and not files(world)


def test_the_result_belongs_to_the_log_alone(world: World) -> None:
    mine: dict[str, list[int]] = {"a": []}
    result = world.log.step(lambda: mine)
    assert result == mine and result is not mine and world.log[0] is result
    frozen = (1, "a")
    assert world.log.step(lambda: frozen) is frozen


@pytest.mark.parametrize(
    "what", ["changes", "makes a step", "sends", "asks for an effect", "makes a step on another log"]
)
def test_what_a_function_must_not_do(world: World, what: str) -> None:
    def function() -> None:
        if what == "changes":
            world.log.append(1)
        elif what == "asks for an effect":
            effect(len, "abc")
        elif what == "sends":
            world.desk.tell("peer", "method", (), {}, None)  # type: ignore[arg-type]
        else:
            (world.log if what == "makes a step" else world.other).step(world.ask)

    with pytest.raises(Misuse, match="while it is a step of a log"):
        world.log.step(function)
    assert not files(world)
    assert world.step(1)


@pytest.mark.parametrize("where", ["write_all", "sync"])
def test_what_cannot_be_stored_ends_the_participant(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = world.cut()
    first = world.step(1)

    def failing(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(step_files, where, failing)
        with pytest.raises(StepLost) as caught:
            world.step(2)
    assert isinstance(caught.value.error, StoreFull) and "agent" in str(caught.value)
    assert world.log == [first]
    # Whoever catches it all the same makes no other step, also if the disk has room again.
    with pytest.raises(StepLost):
        world.step(2)
    world.crash(cut)
    assert world.step(1) == first
    assert world.step(2)["answer"] == 3


def test_where_there_are_no_steps(world: World) -> None:
    world.process()
    with pytest.raises(OutsideHandler, match="constructor"):
        world.log.step(world.ask)
    world.undo()
    world.undo = lambda: None
    log = Log([1])
    assert log.step(lambda: 2) == 2 and log == [1, 2]
