"""What counts as immutable can not be changed; what can, in whatever it hides, does not count."""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import types
import uuid
import zoneinfo
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from cutline.participant.handle import Handle
from cutline.participant.immutable import is_immutable, is_steady


class Colour(enum.Enum):
    RED = 1


class Weight(enum.IntEnum):
    HEAVY = 3


class Bags(enum.Enum):
    BAG = [1]


class Point(NamedTuple):
    x: int
    y: Any


Pair = namedtuple("Pair", "left right")


class Named(str):
    pass


class Tagged(Pair):
    """A subclass without __slots__: its instances have attributes."""


class Zone(datetime.tzinfo):
    def utcoffset(self, _moment: datetime.datetime | None) -> datetime.timedelta | None:
        return None

    dst = utcoffset

    def tzname(self, _moment: datetime.datetime | None) -> str | None:
        return None


@dataclass(frozen=True)
class Frozen:
    x: int


def deep(levels: int) -> Any:
    value: Any = ()
    for _ in range(levels):
        value = (value,)
    return value


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, 2**100, 1.5, 1j, "a", b"a", ..., range(3), NotImplemented,
        (), (1, ("a", frozenset([(1, 2)]))), Colour.RED, Weight.HEAVY, (Colour.RED,),
        Point(1, "a"), Pair(1, (2,)), decimal.Decimal("1.5"), uuid.UUID(int=1), pathlib.PurePath("a"),
        datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), datetime.timedelta(1), datetime.time(1),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), deep(15),
        int, Frozen, deep, np.float64(1.5), np.datetime64("2020-01-01"), (int, Handle("other")),
    ],
    ids=lambda value: value.__name__ if callable(value) else repr(value),
)  # fmt: skip
def test_nothing_can_change_it(value: Any) -> None:
    assert is_immutable(value)


@pytest.mark.parametrize(
    "value",
    [
        [], {}, set(), bytearray(), ([],), (1, (2, [])), Point(1, []), Pair({}, 1), Bags.BAG, (Bags.BAG,),
        Named("a"), (Named("a"),), frozenset([Named("a")]), Tagged(1, 2), Frozen(1), object(),
        types.SimpleNamespace(), datetime.datetime(2020, 1, 1, tzinfo=Zone()), memoryview(b"a"), len,
        iter([]), deep(100), np.zeros(1), np.zeros(1, "i4,i4")[0],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_it_or_what_it_holds_may_change(value: Any) -> None:
    assert not is_immutable(value)


def berlin(hour: int, zone: Any) -> datetime.datetime:
    return datetime.datetime(2020, 10, 25, hour, tzinfo=zone)


def test_a_key_is_steady_if_a_restore_finds_it_by_an_equal_one() -> None:
    known, another = zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo.no_cache("UTC")
    assert is_steady(berlin(1, None)) and is_steady(berlin(2, known)) and is_steady((1, berlin(2, known)))
    assert is_steady(berlin(2, datetime.timezone.utc))
    for key in (known, another, berlin(2, another), (berlin(2, another),), berlin(2, Zone()), float("nan")):
        assert not is_steady(key)
