"""Reading and writing a Map of 1,000,000 entries against the dict with the same entries.

Keys are drawn at random, the same ones for both sides. `set` writes to keys that are there, `add` and
`remove` to others. What a set costs with a dict as the value is a row of its own, since that value is judged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from bench.row import Row, interleave
from cutline.participant.map import Map

__all__ = ("measure",)


def _get(table: Any, keys: list[str]) -> None:
    for key in keys:
        table[key]


def _get_or(table: Any, keys: list[str]) -> None:
    for key in keys:
        table.get(key)


def _contains(table: Any, keys: list[str]) -> None:
    for key in keys:
        key in table  # noqa: B015


def _set(table: Any, keys: list[str]) -> None:
    for key in keys:
        table[key] = 5


def _set_dict(table: Any, keys: list[str]) -> None:
    for key in keys:
        table[key] = {"n": 1}


def _iterate(table: Any, keys: list[str]) -> None:
    for _ in table.items():
        pass


def _add_and_remove(table: Any, keys: list[str]) -> None:
    for key in keys:
        table[key + "?"] = 5
    for key in keys:
        del table[key + "?"]


def _timed(act: Callable[[Any, list[str]], None], table: Any, keys: list[str]) -> float:
    if isinstance(table, Map):
        # As if a capture had just been taken.
        table._turn()
    began = time.perf_counter()
    act(table, keys)
    return (time.perf_counter() - began) / len(keys)


ROWS: list[tuple[str, Callable[[Any, list[str]], None], float]] = [
    ("map_get", _get, 2.5),
    ("map_get_or", _get_or, 2.5),
    ("map_in", _contains, 3.5),
    ("map_set", _set, 10.0),
    ("map_add_and_remove", _add_and_remove, 10.0),
    ("map_iterate", _iterate, 1.2),
    ("map_set_dict", _set_dict, 12.0),
]


def measure(*, entries: int = 1_000_000, touched: int = 200_000, rounds: int = 9) -> list[Row]:
    """The rows; see the module's head."""
    chance = random.Random(1)
    plain = {f"key {number}": number for number in range(entries)}
    ours: Map[str, Any] = Map(plain)
    theirs: dict[str, Any] = dict(plain)
    keys = chance.sample(list(plain), touched)
    rows = []
    for name, act, at_most in ROWS:
        samples, baseline = interleave(
            rounds,
            lambda act=act: _timed(act, ours, keys),  # type: ignore[misc]
            lambda act=act: _timed(act, theirs, keys),  # type: ignore[misc]
        )
        note = f"{entries:,} entries, {touched:,} keys at random; seconds of one"
        rows.append(Row(name, "s", samples, baseline, at_most=at_most, note=note))
    return rows
