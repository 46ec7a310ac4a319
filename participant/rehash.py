"""Dicts and sets whose keys have become others: a migration may change what their hashes go by.

Theory of operation. Loading puts objects into dicts and sets by the hashes that they have then, before
anything is migrated. Whose hash is another one afterwards lies where nobody looks for it: the entry is there,
and not found. So when everything stands, dicts and sets are filled anew, in place and in their order. A
frozenset can be filled by nobody; one that does not find its own elements is a fault, as are keys that have
become equal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from .immutable import ATOMS

__all__ = ("KeysLost", "rehash")


class KeysLost(Exception):
    """A container that cannot be as it was: why, and one of its keys. A cause is what hashing has raised."""

    def __init__(self, container: object, key: object, why: str) -> None:
        super().__init__(why)
        self.container, self.key, self.why = container, key, why


def rehash(objects: Iterable[object]) -> None:
    """Fills all dicts and sets among these anew. Raises KeysLost for the first one that cannot be."""
    for here in objects:
        if isinstance(here, dict):
            _fill_again(here, list(dict.keys(here)), _refill_dict)
        elif isinstance(here, set):
            _fill_again(here, list(set.__iter__(here)), _refill_set)
        elif isinstance(here, frozenset):
            _fill_again(here, list(frozenset.__iter__(here)), _look_at)


def _fill_again(here: Any, keys: list[Any], refill: Callable[[Any, list[Any]], bool]) -> None:
    if ATOMS.issuperset(map(type, keys)):
        return
    key = next(key for key in keys if type(key) not in ATOMS)
    try:
        # Before anything is touched.
        count = len(set(keys))
        lost = count == len(keys) and not refill(here, keys)
    except Exception as error:
        why = f"has keys that cannot be hashed any more: {type(error).__name__}: {error}"
        raise KeysLost(here, key, why) from error
    if count != len(keys):
        equal = len(keys) - count
        raise KeysLost(here, key, f"has {len(keys)} keys, of which {equal} are equal to another one now")
    if lost:
        raise KeysLost(
            here, key, "is a frozenset, whose elements have other hashes now, and nobody can refill it"
        )


def _refill_dict(here: dict[Any, Any], keys: list[Any]) -> bool:
    # Around what a class of the program has put over these; an OrderedDict keeps its order by itself.
    kind: type[dict[Any, Any]] = OrderedDict if isinstance(here, OrderedDict) else dict
    values = list(dict.values(here))
    kind.clear(here)
    for key, value in zip(keys, values, strict=True):
        kind.__setitem__(here, key, value)
    return True


def _refill_set(here: set[Any], keys: list[Any]) -> bool:
    set.clear(here)
    set.update(here, keys)
    return True


def _look_at(here: frozenset[Any], keys: list[Any]) -> bool:
    return all(frozenset.__contains__(here, key) for key in keys)
