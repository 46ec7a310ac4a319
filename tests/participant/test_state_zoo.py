"""Awkward states, edits and refusals: each comes back exactly, or is refused before anything is written."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cutline.errors import CannotCapture
from cutline.participant.capture import Captured, Capturer, check_capturable
from cutline.participant.pickling import dumps, loads
from tests.participant.images import Images

if sys.version_info < (3, 11):
    pytest.skip("the zoo is written for Python 3.11 and later", allow_module_level=True)

zoo: Any = importlib.import_module("tests.inputs.state_zoo")

STRETCH = {"defaultdict_lambda", "deep_chain", "closure_shares_list"}


class Holder:
    """A participant whose attributes are the state, or that holds it in one attribute."""


class Line:
    """One participant's captures in a row, each relative to the last that committed."""

    def __init__(self, region_min: int, spread: bool) -> None:
        # Small regions go with small parts.
        self.capturer = Capturer("p", region_min=region_min, part=region_min)
        self.store = Images()
        self.holder = Holder()
        self.spread = spread
        self.number = 0
        self.base: int | None = None

    def hold(self, state: Any) -> None:
        if self.spread:
            self.holder.__dict__ = state
        else:
            self.holder.__dict__ = {"state": state}

    def take(self, against: int | None) -> Captured:
        self.number += 1
        captured = self.capturer.capture(self.holder, number=self.number, against=against)
        self.store.put(captured, against)
        return captured

    def commit(self, state: Any) -> int:
        self.hold(state)
        self.base = self.take(self.base).number
        self.capturer.committed(self.base)
        return self.base

    def abort(self, state: Any) -> None:
        self.hold(state)
        self.capturer.aborted(self.take(self.base).number)

    def savepoint(self, state: Any) -> None:
        self.hold(state)
        self.take(None)

    def state(self, number: int) -> Any:
        restored = self.store.restore(number)
        return vars(restored) if self.spread else restored.state


WAYS = [
    pytest.param(size, spread, id=f"{'spread' if spread else 'one'}-{size}")
    for size in (64, 256 * 1024)
    for spread in (False, True)
]


@pytest.fixture(params=sorted(zoo.zoo()))
def animal(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, Callable[..., bool]]]:
    make, check = zoo.zoo()[request.param]
    yield request.param, make(), check


@pytest.mark.parametrize("region_min", (1, 256 * 1024))
def test_state_comes_back(animal: tuple[str, Any, Callable[..., bool]], region_min: int) -> None:
    name, value, check = animal
    line = Line(region_min, spread=False)
    if name in STRETCH:
        with pytest.raises(CannotCapture, match=r"self\.state"):
            line.commit(value)
        return
    assert check(value, line.state(line.commit(value)))
    line.holder.state = value  # type: ignore[attr-defined]
    check_capturable(line.holder, "p")


def test_state_comes_back_whole(animal: tuple[str, Any, Callable[..., bool]]) -> None:
    """The instance is the value itself: containers and classes that define their own pickling."""
    name, value, check = animal
    if name in STRETCH:
        return
    store = Images()
    store.put(Capturer("p").capture(value, number=1, against=None), None)
    assert check(value, store.restore(1))


def test_message_comes_back(animal: tuple[str, Any, Callable[..., bool]]) -> None:
    name, value, check = animal
    if name in STRETCH:
        with pytest.raises(CannotCapture, match="argument"):
            dumps(value, participant="p", where="argument")
        return
    assert check(value, loads(dumps(value, participant="p", where="argument"), participant="p"))


@pytest.mark.parametrize(("region_min", "spread"), WAYS)
@pytest.mark.parametrize("name", [name for name, *_ in zoo.mutations()])
def test_edit_is_seen(name: str, region_min: int, spread: bool) -> None:
    make, mutate, check = next(rest for known, *rest in zoo.mutations() if known == name)
    line = Line(region_min, spread)
    state = make()
    before = line.commit(state)
    mutate(state)
    after = line.commit(state)
    assert check(line.state(before), line.state(after))


@pytest.mark.parametrize(("region_min", "spread"), WAYS)
@pytest.mark.parametrize("name", [name for name, *_ in zoo.sequences()])
def test_sequence(name: str, region_min: int, spread: bool) -> None:
    make, steps, check = next(rest for known, *rest in zoo.sequences() if known == name)
    line = Line(region_min, spread)
    numbers = zoo.drive(make(), steps, line.commit, line.abort, line.savepoint)
    assert check([line.state(number) for number in numbers])


REFUSED = {
    "generator": r"self\.state\['deep'\]\['gen'\]",
    "thread_lock": r"self\.state\['x'\]\.lock",
    "open_file": r"self\.state\['f'\]",
    "load_fails_two_arg_exception": r"self\.state\['err'\]",
    "load_fails_getattr_recursion": r"self\.state\['z'\]",
}


@pytest.mark.parametrize("name", sorted(zoo.refusals()))
def test_refused_with_its_path_or_exact(name: str) -> None:
    make, check = zoo.refusals()[name]
    line = Line(64, spread=False)
    value = make()
    if name not in REFUSED:
        assert check(value, line.state(line.commit(value)))
        assert check(make(), loads(dumps(make(), participant="p", where="m"), participant="p"))
        return
    with pytest.raises(CannotCapture, match=REFUSED[name]) as refused:
        line.commit(value)
    assert refused.value.facts["participant"] == "p"
    assert re.fullmatch(REFUSED[name], refused.value.facts["path"])
    with pytest.raises(CannotCapture, match="argument"):
        dumps(value, participant="p", where="argument")
    if hasattr(value.get("f"), "close"):
        value["f"].close()
    # The participant goes on: what was refused leaves nothing behind.
    assert line.state(line.commit({"fine": [1]})) == {"fine": [1]}


def test_nothing_changed_writes_next_to_nothing() -> None:
    make, *_ = next(rest for known, *rest in zoo.mutations() if known == "nothing_changed")
    line = Line(64, spread=True)
    # Pages of the heap have other inhabitants, who write.
    line.capturer = Capturer("p", region_min=64, part=64, tracking="hash")
    state = make()
    line.commit(state)
    assert line.take(line.base).changed_bytes == 0
