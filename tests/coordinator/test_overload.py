"""The halt of a system whose participants send more than they take, and whom it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutline.coordinator.overload import PATIENCE, circle
from cutline.errors import Overloaded
from cutline.participant.messages import pack_error, unpack_error
from cutline.storage import Store

from .city import City


@pytest.fixture
def city(store: Store, tmp_path: Path) -> City:
    """A driver and a, b and c, with one cut of all."""
    made = City(store, tmp_path)
    made.open_for_business("a", "b", "c")
    return made


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ({}, []),
        ({"a": ["b"]}, []),
        ({"a": ["a"]}, ["a"]),
        ({"a": ["b"], "b": ["a"]}, ["a", "b"]),
        ({"a": ["c", "b"], "b": ["a"], "c": []}, ["a", "b"]),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, ["b", "c"]),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, []),
    ],
)
def test_a_circle_is_found_if_it_can_be_reached(waits: dict[str, list[str]], found: list[str]) -> None:
    assert circle("a", waits) == found


def overloaded(city: City, name: str, *waits: str) -> Overloaded:
    """A participant has no room left; the error of the halt."""
    error = pack_error(Overloaded("no room"), participant=name)
    doc = {"policy": "overloaded", "key": [name, 1, 0], "method": "", "digest": None, "error": error}
    city.say(name, "failed", text="no room", waits=list(waits), **doc)
    return halted(city)


def halted(city: City) -> Overloaded:
    """The error of the halt."""
    assert city.c.halted is not None
    found = unpack_error(city.c.halted["error"], participant="test", live={})
    assert isinstance(found, Overloaded)
    return found


def test_the_halt_names_those_that_wait_in_a_circle(city: City) -> None:
    city.say("b", "beat", epoch=-1, running="", held=0.0, waits=["c", "a"])
    error = overloaded(city, "a", "b")
    assert error.facts["cycle"] == ["a", "b"]
    assert "a waits for b waits for a" in str(error)
    assert city.c.halted is not None and "stays usable" in city.c.halted["text"]


def test_a_circle_may_show_when_the_others_give_a_sign_of_life(city: City) -> None:
    with pytest.raises(AssertionError):
        overloaded(city, "a", "b")
    city.say("b", "beat", epoch=-1, running="", held=0.0, waits=["a"])
    assert halted(city).facts["cycle"] == ["a", "b"]


def test_a_recovery_makes_room(city: City) -> None:
    with pytest.raises(AssertionError):
        overloaded(city, "a", "b")
    city.dies("b")
    city.step(PATIENCE)
    assert city.c.halted is None


def test_without_a_circle_it_names_who_does_not_take_and_what_that_one_does(city: City) -> None:
    city.say("c", "beat", epoch=-1, running="think", held=9.0, waits=[])
    with pytest.raises(AssertionError):
        overloaded(city, "a", "c", "b")
    city.step(PATIENCE)
    error = halted(city)
    assert error.facts["cycle"] == [] and "a waits for c, which is inside think" in str(error)
