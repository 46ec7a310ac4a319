"""Durable steps: what returned is never called again in its history, and nothing else is taken for it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

from cutline.barrier import Member
from cutline.errors import (
    CannotCapture,
    Corrupt,
    Misuse,
    NewerFormat,
    NotAuthentic,
    OutsideHandler,
    StoreFull,
)
from cutline.participant import step_files, steps
from cutline.participant.desk import Desk
from cutline.participant.handle import bound_port
from cutline.participant.log import Log
from cutline.participant.step_files import FOLDER, folder_of, forget, reseal, segments_in
from cutline.participant.steps import SECTION, StepLost, Steps
from cutline.storage.image import Image

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
LINE = "0123456789abcdef"


class World:
    """One participant, its crashes and its checkpoints; `called` counts what its functions did outside."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.called: list[Any] = []
        self.log: Log[Any] = Log()
        self.other: Log[Any] = Log()
        self.epoch, self.newest = 0, 0
        self.cuts: dict[int, tuple[Any, Image]] = {}
        self.undo: Callable[[], None] = lambda: None
        self.steps = self.process()

    def process(self, birth: int = 1, lineage: str = LINE, key: bytes = KEY) -> Steps:
        """A new process of the participant, which knows nothing yet."""
        self.undo()
        made = Steps("agent", birth, lineage, self.home, key)
        self.desk = Desk(Member("agent", birth), self)
        self.undo = bound_port(self.desk, thread_only=True)
        made.attach(self.desk)
        self.steps = made
        return made

    def born(self, *, birth: int = 1, base: int = 0) -> None:
        self.process(birth).born(self.epoch, self.newest, base)
        self.log = Log()

    def cut(self) -> int:
        self.newest += 1
        section = self.steps.section(self.newest)
        image = Image({"lineage": LINE}, section, [])
        self.cuts[self.newest] = (self.log.__reduce__(), list(self.log)), image
        return self.newest

    def crash(self, cut: int, *, birth: int = 1) -> None:
        """The process dies; another one is restored from the cut."""
        self.process(birth)
        self.roll_back(cut)

    def roll_back(self, cut: int) -> None:
        """The process lives, and goes back."""
        self.epoch += 1
        (reduced, items), image = self.cuts[cut]
        self.steps.restored(self.epoch, cut, image)
        self.log = Log(items)
        self.log.__setstate__(reduced[2])

    def ask(self, *said: Any) -> Any:
        """An effect whose outcome is another one each time."""
        self.called.append(said)
        return {"answer": len(self.called), "parts": [len(said)]}

    def step(self, *said: Any) -> Any:
        return self.log.step(self.ask, *said)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.born()
    yield made
    made.undo()


def files(world: World) -> list[Path]:
    folder = folder_of(world.home, LINE, "agent")
    return [folder / each.name for each in segments_in(folder)]


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
    world.cuts[cut] = ((world.log.__reduce__(), []), world.cuts[cut][1])
    world.crash(cut, birth=2)
    assert world.step(1) != answer


# -- files --------------------------------------------------------------------------------------------------


def test_a_torn_end_is_a_step_that_never_returned(world: World) -> None:
    cut = world.cut()
    first = world.step(1)
    (path,) = files(world)
    before = path.stat().st_size
    second = world.step(2)
    whole = path.read_bytes()
    for length in [*range(before, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        called = len(world.called)
        world.crash(cut)
        assert world.step(1) == first
        assert world.step(2) != second
        assert len(world.called) == called + 1
        files(world)[-1].unlink()
    # Not even the head.
    path.write_bytes(whole[:10])
    world.crash(cut)
    assert world.step(1) != first


def test_damage_before_what_is_whole_stops_all(world: World) -> None:
    cut = world.cut()
    for number in range(3):
        world.step(number)
    (path,) = files(world)
    whole = path.read_bytes()
    start = len(whole) * 2 // 3
    for at in range(0, start, 5):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises(Corrupt, match="remove the folder") as caught:
            world.crash(cut)
        assert str(path) in str(caught.value)
    path.write_bytes(whole)
    world.crash(cut)


def test_a_step_that_is_gone_from_an_older_file_stops_all(world: World) -> None:
    cut = world.cut()
    world.step(1)
    (path,) = files(world)
    whole = path.read_bytes()
    world.step(2)
    world.crash(cut)
    world.step("another way")
    path.write_bytes(whole)
    with pytest.raises(Corrupt, match="counted when a newer one was begun"):
        world.crash(cut)
    path.unlink()
    with pytest.raises(Corrupt, match="is gone"):
        world.crash(cut)


def test_what_a_zombie_writes_is_never_taken(world: World) -> None:
    cut = world.cut()
    world.step(1)
    zombie, desk = world.steps, world.desk
    world.crash(cut)
    world.step(1)
    returned = world.step(2)
    # The process of the older epoch wakes up, and makes the same step, with another outcome.
    theirs = Log(list(world.log)[:1])
    desk.steps = zombie
    undo = bound_port(desk, thread_only=True)
    assert theirs.step(world.ask, 2) != returned
    zombie.section(cut + 1)
    theirs.pop()
    assert theirs.step(world.ask, 2) != returned
    undo()
    assert len(files(world)) == 3
    world.crash(cut)
    world.step(1)
    assert world.step(2) == returned


def test_a_forged_file_is_not_loaded(world: World) -> None:
    cut = world.cut()
    world.step(1)
    (path,) = files(world)
    with pytest.raises(NotAuthentic):
        world.process(key=OTHER_KEY)
        world.roll_back(cut)
    # Nor one of somebody else's.
    other = folder_of(world.home, LINE, "other")
    other.mkdir()
    path.rename(other / path.name)
    with pytest.raises(NotAuthentic):
        Steps("other", 1, LINE, world.home, KEY).restored(9, cut, world.cuts[cut][1])


def test_a_new_key(world: World) -> None:
    cut = world.cut()
    answer = world.step(1)
    with pytest.raises(NotAuthentic):
        reseal(world.home, b"n" * 32, [OTHER_KEY])
    reseal(world.home, OTHER_KEY, [KEY], only_check=True)
    reseal(world.home, OTHER_KEY, [KEY])
    # One that was interrupted is done again.
    reseal(world.home, OTHER_KEY, [KEY])
    world.process(key=OTHER_KEY)
    world.roll_back(cut)
    assert world.step(1) == answer
    reseal(world.home, KEY, [], trust=True)
    world.crash(cut)
    assert world.step(1) == answer


def test_a_file_of_a_newer_cutline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = world.cut()
    with monkeypatch.context() as patch:
        patch.setattr(step_files, "FORMAT", 2)
        world.step(1)
    with pytest.raises(NewerFormat):
        world.crash(cut)


def test_files_go_when_nobody_can_go_back_so_far(world: World) -> None:
    cuts = []
    for number in range(4):
        cuts.append(world.cut())
        world.step(number)
    assert len(files(world)) == 4
    forget(world.home, LINE, cuts[2], 0)
    assert len(files(world)) == 2
    world.crash(cuts[2])
    world.step(2)
    world.step(3)
    assert len(world.called) == 4
    forget(world.home, LINE, cuts[3] + 1, 5)
    assert not folder_of(world.home, LINE, "agent").exists()
    assert world.step(4)["answer"] == 5
    forget(world.home, "no such lineage", 9, 9)
    assert (world.home / FOLDER).is_dir()


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


@pytest.mark.parametrize("what", ["changes", "makes a step", "sends", "makes a step on another log"])
def test_what_a_function_must_not_do(world: World, what: str) -> None:
    def function() -> None:
        if what == "changes":
            world.log.append(1)
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
