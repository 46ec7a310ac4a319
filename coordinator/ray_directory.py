"""Which systems run on a Ray cluster, and in which storage folder each: a table that the cluster keeps.

A program that comes later knows a system by its name only. The coordinator writes the entry when it begins
and removes it when it ends; one that was killed leaves its entry behind: it is a pointer, not a claim.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ray.experimental import internal_kv

__all__ = ("Entry", "enter", "look_up", "strike", "systems")

_SPACE = b"cutline"
_kv: Any = internal_kv  # without annotations in Ray


class Entry(NamedTuple):
    """Where a system is: its storage folder, and its coordinator's actor."""

    store: str
    actor: str


def enter(system: str, entry: Entry) -> None:
    """Writes the entry of a system, over an older one."""
    _kv._internal_kv_put(_key(system), json.dumps(entry._asdict()).encode(), namespace=_SPACE)


def look_up(system: str) -> Entry | None:
    """The entry of a system; None if there is none."""
    found = _kv._internal_kv_get(_key(system), namespace=_SPACE)
    return None if found is None else Entry(**json.loads(found))


def strike(system: str, actor: str) -> None:
    """Removes the entry, if it is still that of this actor."""
    entry = look_up(system)
    if entry is not None and entry.actor == actor:
        _kv._internal_kv_del(_key(system), namespace=_SPACE)


def systems() -> list[str]:
    """The names of all systems that have an entry."""
    prefix = _key("")
    keys = _kv._internal_kv_list(prefix, namespace=_SPACE)
    return sorted(key[len(prefix) :].decode() for key in keys)


def _key(system: str) -> bytes:
    return f"system/{system}".encode()
