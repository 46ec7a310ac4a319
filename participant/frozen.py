"""Which values can never change, so that a Map or a Log may note them once and a capture need not look again.

Only what can be proven: exact built-in types, and tuples, frozensets and frozen dataclasses of such. A value
of any other type is one that may change. Classes and functions count as their names, which is how an image
holds them.
"""

from __future__ import annotations

import dataclasses
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

from .classes import has_plain_state, slot_names
from .handle import Handle

__all__ = ("KEYS", "PLAIN", "is_frozen", "is_steady")

# Exact types whose values never change, and hold nothing else.
PLAIN: frozenset[type] = frozenset(
    (
        *(str, int, float, bool, type(None), bytes, complex, type(...), type(NotImplemented), range),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, datetime.date, datetime.timedelta, Handle),
        *(pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath),
    )
)
# Those that are equal to what a restore makes of them, whatever their value.
KEYS: frozenset[type] = frozenset((str, int, bytes, bool, type(None)))
_SCALARS = (np.number, np.bool_, np.datetime64, np.str_, np.bytes_)
_ZONES = (type(None), datetime.timezone, zoneinfo.ZoneInfo)


def is_frozen(value: Any) -> bool:
    """Whether nothing in `value` can change."""
    work = [value]
    while work:
        here = work.pop()
        kind = type(here)
        if kind in PLAIN:
            continue
        if kind is tuple or kind is frozenset:
            work.extend(here)
        elif kind is datetime.datetime or kind is datetime.time:
            if type(here.tzinfo) not in _ZONES:
                return False
        elif _is_dataclass(here, kind):
            work.extend(vars(here).values())
        elif not _is_named(here) and not _is_scalar(here):
            return False
    return True


def _is_named(here: Any) -> bool:
    """What an image holds by its name: it is the same object wherever that is read."""
    return isinstance(here, (enum.Enum, type, types.FunctionType))


def _is_scalar(here: Any) -> bool:
    return isinstance(here, _SCALARS)


def _is_dataclass(here: Any, kind: type) -> bool:
    """An instance of a frozen dataclass that is equal to whatever has the same fields."""
    parameters: Any = kind.__dict__.get("__dataclass_params__")
    if parameters is None or not (parameters.frozen and parameters.eq):
        return False
    if not has_plain_state(kind) or slot_names(kind) or not hasattr(here, "__dict__"):
        return False
    return set(vars(here)) == {field.name for field in dataclasses.fields(kind)}


def is_steady(key: Any) -> bool:
    """Whether `key` is found again by an equal one, also where its class is not at hand: it is frozen, of
    built-in types, and equal to itself.
    """
    work = [key]
    while work:
        here = work.pop()
        kind = type(here)
        if kind is tuple or kind is frozenset:
            work.extend(here)
        elif kind in PLAIN:
            if here != here:
                return False
        elif not _is_steady_too(here, kind):
            return False
    return True


def _is_steady_too(here: Any, kind: type) -> bool:
    if kind is datetime.datetime or kind is datetime.time:
        return type(here.tzinfo) in _ZONES
    return isinstance(here, (type, types.FunctionType))
