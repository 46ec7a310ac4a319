"""What the program `writing` has left in its file, its table and with its function."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cutline.storage.location import database_of
from tests.effects.writing import TABLE

__all__ = ("differences", "prepare")


def prepare(url: str) -> None:
    """Makes the table."""
    with _connected(url) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {TABLE.partition('.')[0]}")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (at bigserial, who text, number int)")


def _connected(url: str) -> Any:
    import psycopg

    options: dict[str, Any] = dict(database_of(url).options)
    return psycopg.connect(**options, autocommit=True)


def differences(folder: Path, url: str, goal: int) -> tuple[int, list[str], list[str]]:
    """How many lines there are; what is there twice or in a wrong place; what is not there."""
    lines = [json.loads(line) for line in _lines(folder / "lines")]
    written = [(line["who"], line["number"]) for line in lines]
    doubled, lost = _compared("line", written, goal)
    heard = [line.split() for line in _lines(folder / "heard")]
    # At least once: with the same key each time, and in order when doubles are left out.
    once = dict.fromkeys((who, int(number)) for who, number, _ in heard)
    more, less = _compared("call", once, goal)
    keys = Counter(key for _, _, key in {(who, number, key) for who, number, key in heard})
    doubled += more + [f"key {key} of several values" for key, times in keys.items() if times > 1]
    doubled += [f"{goal} values and {len(keys)} keys"] if len(keys) > 2 * goal else []
    lost += less
    if url:
        with _connected(url) as connection:
            rows = connection.execute(f"SELECT who, number FROM {TABLE} ORDER BY at").fetchall()
        more, less = _compared("row", rows, goal)
        doubled, lost = doubled + more, lost + less
    return len(written), doubled, lost


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _compared(what: str, found: Iterable[tuple[str, int]], goal: int) -> tuple[list[str], list[str]]:
    by_writer: dict[str, list[int]] = {"ann": [], "bob": []}
    for who, number in found:
        by_writer[who].append(number)
    doubled, lost = [], []
    for who, numbers in by_writer.items():
        doubled += [f"{what} {who} {number}" for number, times in Counter(numbers).items() if times > 1]
        lost += [f"{what} {who} {number}" for number in sorted(set(range(goal)) - set(numbers))]
        if numbers != sorted(numbers):
            doubled.append(f"{what}s of {who} are out of order")
    return doubled, lost
