"""Memory that objects make while they are saved, and that overlaps: asked again they make other memory."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cutline.errors import CannotCapture
from cutline.participant.pickling import dumps
from tests.participant.images import through_image, through_message
from tests.participant.maps_in_a_row import Open

# What was made lives on, so that the next thing lies elsewhere.
_made: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_made() -> Iterator[None]:
    _made.clear()
    yield
    _made.clear()


def _fresh(size: int) -> Any:
    made = np.arange(size)
    _made.append(made)
    return made


class Halves:
    """Two slices of what it has just computed."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size

    def __getstate__(self) -> dict[str, Any]:
        made = _fresh(self.size)
        return {"size": self.size, "low": made[: self.size * 6 // 10], "high": made[self.size * 4 // 10 :]}


_numbers = itertools.count(1)


class Counting(Halves):
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "asked": next(_numbers)}


class Twofold:
    """An array, and the same memory by its address; its parts and entries come from iterators."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.parts: list[Any] = []
        self.entries: dict[Any, Any] = {}

    def append(self, value: Any) -> None:
        self.parts.append(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def __reduce__(self) -> Any:
        made = _fresh(self.size)
        again = np.frombuffer((ctypes.c_ubyte * made.nbytes).from_address(made.ctypes.data), np.int64)
        return Twofold, (self.size,), None, iter([made, again]), iter({"a": made, 1: self}.items())


class Restless(np.ndarray[Any, Any]):
    """One that pickles itself: it is asked each time."""

    def __reduce__(self) -> Any:
        made = _fresh(10)
        return Halves, (len(made[:6]), made[:6], made[4:])


Way = Callable[[Any], Any]
WAYS: tuple[Way, ...] = (through_message, lambda value: through_image(Open(x=value)).x)


@pytest.mark.parametrize("way", WAYS, ids=["message", "state"])
@pytest.mark.parametrize("size", [100, 100_000])
def test_what_is_made_for_it_is_shared_on_arrival(way: Way, size: int) -> None:
    got = way(Halves(size))
    assert got.low.tolist() == list(range(size * 6 // 10)) and got.high[0] == size * 4 // 10
    assert np.shares_memory(got.low, got.high)
    got = way(Twofold(size))
    assert [part.tolist() for part in got.parts] == 2 * [list(range(size))]
    assert np.shares_memory(*got.parts) and list(got.entries) == ["a", 1]
    assert got.entries["a"] is got.parts[0] and got.entries[1] is got


def test_who_never_holds_still_is_refused_by_name() -> None:
    value = {"a": np.zeros(3).view(Restless)}
    with pytest.raises(CannotCapture, match="memory that is made, and shared in another way, each time"):
        dumps(value, participant="p", where="argument")


def test_each_capture_asks_anew() -> None:
    """What was kept for one is not taken for the next one."""
    value = Counting()
    assert through_message(value).asked < through_message(value).asked
