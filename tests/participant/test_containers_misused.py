"""Keys that are equal to others, or change; state that changes while it is captured: never a wrong image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutline import Log, Map
from cutline.errors import CannotCapture
from cutline.participant.immutable import is_immutable
from tests.participant.maps_in_a_row import Alike, Open
from tests.participant.test_map import Agent, Taking


class Always(Open):
    """A key that is equal to everything that has its hash."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.number)

    number = 5


def _pop(seen: Map[Any, Any], key: Any) -> None:
    seen.pop(key)


def _delete(seen: Map[Any, Any], key: Any) -> None:
    del seen[key]


def _set_again(seen: Map[Any, Any], key: Any) -> None:
    del seen[key]
    seen[1] = "again"


@pytest.mark.parametrize("remove", [_pop, _delete, _set_again])
@pytest.mark.parametrize("others", [{}, {Alike(number=3): [3]}], ids=["alone", "beside others"])
def test_an_entry_goes_under_its_own_key(remove: Callable[[Any, Any], None], others: dict[Any, Any]) -> None:
    """Not under the equal one that took it away: that may be equal to another one at the next capture."""
    agent = Agent(seen=Map({1: "one", 70: "seventy", **others}))
    taking = Taking(agent)
    taking.take()
    key = Alike(number=1)
    remove(agent.seen, key)
    key.number = 70
    taking.take()
    shown = [(getattr(key, "number", key), value) for key, value in agent.seen.items()]
    assert [(getattr(key, "number", key), value) for key, value in taking.restore().seen.items()] == shown


def test_a_key_that_took_an_entry_away_need_not_be_one_that_can_be_saved() -> None:
    class Local(str):
        pass

    agent = Agent(seen=Map(a=1, b=2))
    taking = Taking(agent)
    taking.take()
    del agent.seen[Local("a")]
    agent.seen[Local("b")] = 3
    taking.take()
    assert taking.restore().seen == {"b": 3}


def test_an_equal_key_sets_the_entry_that_a_dict_would_set() -> None:
    real: Map[Any, Any] = Map({"x": 1, 5: 2})
    shadow: dict[Any, Any] = {"x": 1, 5: 2}
    for each in (real, shadow):
        each[Always()] = 3
    assert list(real.items()) == list(shadow.items()) == [("x", 1), (5, 3)]


@pytest.mark.parametrize("number", [2, 7], ids=["equal to another one", "not found"])
def test_a_key_that_changes_is_named(number: int) -> None:
    key = Alike(number=1)
    agent = Agent(seen=Map({key: "a", Alike(number=2): "b"}))
    taking = Taking(agent)
    taking.take()
    key.number = number
    agent.seen["c"] = 1
    for full in (False, True):
        with pytest.raises(CannotCapture, match=r"a Map whose key .*Alike.* is not found any more"):
            taking.capturer.capture(agent, number=2, against=None if full else 1)
    key.number = 1
    taking.take()
    assert list(taking.restore().seen.values()) == ["a", "b", 1]


class Restless(Open):
    """Does something to the state while it is saved."""

    def __getstate__(self) -> dict[str, Any]:
        vars(self)["does"][0](vars(self)["to"])
        return {}


def _freeze(seen: Any) -> None:
    seen[0] = 7


def _thaw(seen: Any) -> None:
    seen[1] = [7]


def _five(held: Any) -> None:
    held[1] = 5


def _move(log: Any) -> None:
    log.append([2])
    log[0] = 3


def _trade(seen: Any) -> None:
    seen[0], seen[1] = seen[1], seen[0]


@pytest.mark.parametrize(
    ("kind", "change"),
    [*((kind, change) for kind in (Map, Log) for change in (_freeze, _thaw, _trade)), (Log, _move)],
)
def test_what_is_to_be_checked_moves_while_it_is_captured(kind: Any, change: Callable[[Any], None]) -> None:
    """By the state's own methods. What was saved would not be in its place."""
    held: Any = Log([[1], 2]) if kind is Log else Map({0: [1], 1: 2})
    agent = Agent(held=held, restless=Restless(does=[change], to=held))
    with pytest.raises(CannotCapture, match=f"a {held.kind} that is changed while it is captured"):
        Taking(agent).take()


@pytest.mark.parametrize("held", [Log([[1], 2]), Map({0: [1], 1: 2})], ids=["log", "map"])
def test_what_cannot_change_may_be_set_while_it_is_captured(held: Any) -> None:
    agent = Agent(held=held, restless=Restless(does=[_five], to=held))
    taking = Taking(agent)
    taking.take()
    assert taking.restore().held == held and held[1] == 5


class Price(np.float64):
    """Has attributes."""


class Label(np.str_):  # type: ignore[misc]
    """Has them too."""


@pytest.mark.parametrize("value", [Price(1.0), Label("a")], ids=["Price", "Label"])
def test_a_subclass_of_a_number_of_numpy_may_change(value: Any) -> None:
    value.more = []
    assert not is_immutable(value) and is_immutable(type(value).__mro__[1](value))
