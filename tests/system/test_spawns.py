"""Participants that handlers spawn: usable at once, in the cut, once in the history that remains."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import DuplicateName, Misuse

from .living import again, comes_to, kill, left_over, until


class Leaf:
    """Notes what it hears, under its number."""

    def __init__(self, number: int, parent: Any = None) -> None:
        self.number = number
        self.heard: list[int] = []
        if parent is not None:
            parent.up.tell(number)

    def hear(self, what: int) -> int:
        self.heard.append(what)
        return self.number

    def all_heard(self) -> list[int]:
        return self.heard


class Broken:
    """Never comes up."""

    def __init__(self) -> None:
        raise ValueError("not today")

    def anything(self) -> None:
        """Never reached."""


class Parent:
    """Spawns leaves, one for each thing it is told to grow."""

    def __init__(self) -> None:
        self.leaves: dict[int, Any] = {}
        self.ups: list[int] = []
        self.answers: list[int] = []
        self.errors: list[str] = []

    def grow(self, number: int) -> None:
        leaf = cutline.spawn(f"leaf-{number}", Leaf, number, cutline.me())
        self.leaves[number] = leaf
        leaf.hear.tell(number)
        leaf.hear.remote(-number).then(self.on_answer)

    def up(self, number: int) -> None:
        self.ups.append(number)

    def on_answer(self, number: int) -> None:
        self.answers.append(number)

    async def grow_and_wait(self, number: int) -> int:
        leaf = Leaf.options(name=f"leaf-{number}").remote(number)  # type: ignore[attr-defined]
        first = await leaf.hear.remote(number)
        second = await leaf.hear.remote(-number)
        self.leaves[number] = leaf
        return int(first + second)

    async def nameless(self) -> list[int]:
        return [await Leaf.remote(k).hear.remote(k) for k in range(3)]  # type: ignore[attr-defined]

    def leaf(self, number: int) -> Any:
        return self.leaves[number]

    def state(self) -> tuple[list[int], list[int]]:
        return self.ups, self.answers

    def break_off(self) -> None:
        broken = cutline.spawn("broken", Broken)
        broken.anything.remote().then(self.on_answer, error=self.on_error)

    def on_error(self, error: Exception) -> None:
        self.errors.append(type(error).__name__)

    def all_errors(self) -> list[str]:
        return self.errors

    async def take_name(self, name: str, get: bool) -> int:
        options = {"name": name, "get_if_exists": get}
        return int(await Leaf.options(**options).remote(99).hear.remote(0))  # type: ignore[attr-defined]

    def spawn_and_raise(self) -> None:
        cutline.spawn("never", Leaf, 1)
        raise ValueError("after the spawn")

    def spawn_a_driver(self) -> None:
        cutline.spawn("driver", Leaf, 1)


cutline.actor(Leaf)


def all_heard_by(parent: Any, number: int) -> Any:
    """What a leaf has heard."""
    return parent.leaf.remote(number).result().all_heard.remote().result()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[cutline.System]:
    """A system whose processes have all ended afterwards."""
    with left_over(), cutline.start(tmp_path, interval=None, quiet=True) as started:
        yield started


def test_a_handler_spawns_and_speaks_to_the_newborn_at_once(system: cutline.System) -> None:
    parent = system.spawn("parent", Parent)
    parent.grow.tell(1)
    comes_to(lambda: parent.state.remote().result(), ([1], [1]), "the newborn's answer")
    leaf = parent.leaf.remote(1).result()
    assert leaf.all_heard.remote().result() == [1, -1]
    assert leaf.hear.remote(7).result() == 1
    assert parent.grow_and_wait.remote(2).result() == 4
    assert parent.nameless.remote().result() == [0, 1, 2]


def test_a_newborn_is_in_the_next_cut_and_comes_back_from_it(system: cutline.System) -> None:
    parent = system.spawn("parent", Parent)
    for number in (1, 2):
        parent.grow.tell(number)
    comes_to(lambda: sorted(parent.state.remote().result()[1]), [1, 2], "both leaves")
    system.checkpoint()
    kill(system, "leaf-1", "parent")
    # Two newborns come up side by side: either may be the first to say so.
    assert sorted(again(lambda: parent.state.remote().result()[0])) == [1, 2]
    leaf = again(lambda: parent.leaf.remote(1).result())
    assert again(lambda: leaf.all_heard.remote().result()) == [1, -1]


def test_spawns_under_way_survive_every_kill_once(tmp_path: Path) -> None:
    with left_over(), cutline.start(tmp_path, interval=0.05, quiet=True) as system:
        parent = system.spawn("parent", Parent)
        for number in range(1, 7):
            parent.grow.tell(number)
            if number % 2:
                kill(system, "parent")
        numbers = list(range(1, 7))

        def told() -> Any:
            ups, answers = again(lambda: parent.state.remote().result())
            return sorted(ups), sorted(answers)

        comes_to(told, (numbers, numbers), "all leaves, once each", 60.0)
        for number in numbers:
            assert again(partial(all_heard_by, parent, number)) == [number, -number]
        names = {f"leaf-{number}" for number in numbers}
        assert names < set(again(system.status)["participants"])


def test_the_program_run_again_finds_what_handlers_spawned(tmp_path: Path) -> None:
    with left_over():
        with cutline.start(tmp_path, interval=None, quiet=True) as system:
            parent = system.spawn("parent", Parent)
            parent.grow.tell(5)
            comes_to(lambda: parent.state.remote().result(), ([5], [5]), "the leaf")
        with cutline.start(tmp_path, interval=None, quiet=True) as system:
            assert system.handle("leaf-5").all_heard.remote().result() == [5, -5]
            assert system.spawn("leaf-5", Leaf, 0).all_heard.remote().result() == [5, -5]


def test_who_asks_a_newborn_that_does_not_come_up_hears_why(system: cutline.System) -> None:
    parent = system.spawn("parent", Parent)
    parent.break_off.tell()
    comes_to(lambda: parent.all_errors.remote().result(), ["ValueError"], "the constructor's error")

    def told() -> list[str]:
        return [notice["spawner"] for notice in list(system.notices) if notice["what"] == "spawn_failed"]

    comes_to(told, ["parent"], "the notice")


def test_a_name_that_is_taken_is_an_error_unless_whoever_has_it_is_meant(system: cutline.System) -> None:
    parent = system.spawn("parent", Parent)
    system.spawn("leaf", Leaf, 3)
    with pytest.raises(DuplicateName, match="'leaf'"):
        parent.take_name.remote("leaf", False).result()
    assert parent.take_name.remote("leaf", True).result() == 3


def test_what_a_handler_that_raised_had_spawned_is_never_born(tmp_path: Path) -> None:
    with left_over(), cutline.start(tmp_path, interval=None, quiet=True) as system:
        parent = system.spawn("parent", Parent)
        parent.spawn_and_raise.tell()
        until(lambda: system._runner.fault, "the halt")
        born = [notice for notice in list(system.notices) if notice["what"] == "born"]
        assert [notice["name"] for notice in born] == ["parent"]


def test_a_handler_cannot_spawn_what_no_participant_is_called(system: cutline.System) -> None:
    parent = system.spawn("parent", Parent)
    with pytest.raises(Misuse, match="'driver'"):
        parent.spawn_a_driver.remote().result()
