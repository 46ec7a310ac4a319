"""Which values can never change: what a tracked container (`Map`, `Log`) need not look at again.

A container hears of what is set in it, not of what happens inside of a value that somebody else holds too.
So a value is classified when it is set. One that nothing can change is tracked by that alone; any other one
is looked at by every capture.

Types are known exactly, or by what they say of themselves: a subclass of str or of tuple may have attributes,
a subclass of Enum may have members that hold a list. What is not known to be immutable counts as mutable,
which costs time and is never wrong.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
import zoneinfo
from typing import Any

__all__ = ("ATOMS", "is_immutable")

# Of these types nothing ever changes.
ATOMS: frozenset[type] = frozenset((
    type(None), bool, int, float, complex, str, bytes, range, type(...), type(NotImplemented),
    datetime.date, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo,
    decimal.Decimal, fractions.Fraction, uuid.UUID, uuid.SafeUUID,
    pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath,
))  # fmt: skip
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
    return False


def _is_plain_tuple(kind: type) -> bool:
    """Whether its instances are tuples without attributes, as those of a NamedTuple are."""
    return issubclass(kind, tuple) and not kind.__dictoffset__ and hasattr(kind, "_fields")
