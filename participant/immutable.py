"""Which values can never change: what a tracked container (`Map`, `Log`) need not look at again.

A container hears of what is set in it, not of what happens inside of a value that somebody else holds too.
So a value is classified when it is set. One that nothing can change is tracked by that alone; any other one
is looked at by every capture.

Types are known exactly, or by what they say of themselves: a subclass of str or of tuple may have attributes,
a subclass of Enum may have members that hold a list. Classes and functions go by their names. What is not
known to be immutable counts as mutable, which costs time and is never wrong: a frozen dataclass too, which
``object.__setattr__`` and cached properties change.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import types
import uuid
import zoneinfo
from typing import Any

import numpy as np

from .handle import Handle

__all__ = ("ATOMS", "KEYS", "SCALARS", "is_immutable", "is_steady")

# Of these types nothing ever changes.
ATOMS: frozenset[type] = frozenset((
    type(None), bool, int, float, complex, str, bytes, range, type(...), type(NotImplemented),
    datetime.date, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo,
    decimal.Decimal, fractions.Fraction, uuid.UUID, uuid.SafeUUID,
    pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath, Handle,
))  # fmt: skip
# Of these an object has no parts, and takes no more room than a reference to it.
SCALARS: frozenset[type] = frozenset((type(None), bool, int, float))
# Of these, whatever their value, an equal one is as good.
KEYS: frozenset[type] = frozenset((str, int, bytes, bool, type(None)))
_SCALARS = frozenset(np.sctypeDict.values()) - {np.object_, np.void}
_TIMES = (datetime.datetime, datetime.time)
# Nested deeper than this, a value counts as mutable.
_DEPTH = 20


def is_immutable(value: Any) -> bool:
    """Whether nothing can change `value`, nor anything that it holds."""
    return type(value) in ATOMS or _is_immutable(value, _DEPTH)


def _is_immutable(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in ATOMS:
        return True
    if kind in _TIMES:
        # The zone may be of a class that somebody else wrote.
        return value.tzinfo is None or type(value.tzinfo) in ATOMS
    if not depth:
        return False
    if kind is tuple or kind is frozenset or _is_plain_tuple(kind):
        return all(_is_immutable(each, depth - 1) for each in value)
    if isinstance(value, enum.Enum):
        # Goes by its name; what it holds is the program's.
        return _is_immutable(value.value, depth - 1)
    return kind in _SCALARS or _goes_by_name(value)


def _is_plain_tuple(kind: type) -> bool:
    """Whether its instances are tuples without attributes, as those of a NamedTuple are."""
    return issubclass(kind, tuple) and not kind.__dictoffset__ and hasattr(kind, "_fields")


def _goes_by_name(value: Any) -> bool:
    return isinstance(value, (type, types.FunctionType))


def is_steady(key: Any) -> bool:
    """Whether `key` is found again by an equal one, also where no class is at hand: it is immutable, of
    built-in types, and equal to itself.
    """
    work = [key]
    while work:
        here = work.pop()
        kind = type(here)
        if kind is tuple or kind is frozenset:
            work.extend(here)
        elif kind is zoneinfo.ZoneInfo:
            # Equal to itself alone, and a restore may make another one.
            return False
        elif kind in ATOMS:
            if here != here:
                return False
        elif kind in _TIMES:
            if not _is_immutable(here, 1) or not _is_found_again(here.tzinfo):
                return False
        elif not _goes_by_name(here):
            return False
    return True


def _is_found_again(zone: Any) -> bool:
    """Whether a time of this zone equals the same one after a restore: in the hour that comes twice, only
    times of one and the same zone object are equal.
    """
    return type(zone) is not zoneinfo.ZoneInfo or zoneinfo.ZoneInfo(zone.key) is zone
