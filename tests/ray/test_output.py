"""What is emitted on Ray, for a file, a function and a table, when its participant is killed.

The file is written where the coordinator runs, the function is called in the participant's actor, and the
table is one of a real PostgreSQL where that can be had.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.storage.location import database_of
from tests.effects.writing import TABLE
from tests.effects.written import prepare
from tests.system.living import again, comes_to, kill

pytest.importorskip("ray")

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("local_ray")]

PATIENCE = 60.0


class Clerk:
    """Emits a number to all sinks."""

    def write(self, number: int, heard: str, in_rows: bool) -> int:
        cutline.emit("lines", {"number": number})
        cutline.emit("ears", [heard, number])
        if in_rows:
            cutline.emit("rows", {"who": "clerk", "number": number})
        return number


def hear(value: Any, key: str) -> None:
    """Appends whatever it is given."""
    path, number = value
    with open(path, "a") as file:
        file.write(f"{number} {key}\n")


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A server's; empty where none can be had."""
    try:
        found: str = request.getfixturevalue("postgres_server").url("emitted")
    except pytest.skip.Exception:
        return ""
    prepare(found)
    return found


@contextmanager
def connected(url: str) -> Iterator[Any]:
    import psycopg

    options: dict[str, Any] = dict(database_of(url).options)
    with psycopg.connect(**options, autocommit=True) as connection:
        yield connection


def test_what_is_emitted_on_ray_comes_once_over_a_killed_participant(
    folder: str, tmp_path: Path, url: str
) -> None:
    path, heard = tmp_path / "lines", tmp_path / "heard"
    sinks: dict[str, Any] = {"lines": cutline.FileSink(path), "ears": hear}
    if url:
        sinks["rows"] = cutline.PostgresSink(url, TABLE)

    def lines() -> list[int]:
        found = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["number"] for line in found]

    with cutline.start(folder, interval=None, quiet=True, sinks=sinks) as system:
        clerk = system.spawn("clerk", Clerk)

        def written(number: int) -> int:
            write = clerk.write.options(key=f"number {number}")
            answer: int = write.remote(number, os.fspath(heard), bool(url)).result(timeout=PATIENCE)
            return answer

        again(partial(written, 0))
        again(system.checkpoint)
        comes_to(lines, [0], "the first line", timeout=PATIENCE)
        # Undone with its actor, and done again: of the first time nothing is published.
        again(partial(written, 1))
        kill(system, "clerk")
        again(partial(written, 2))
        again(system.checkpoint)
        # Committed; what of it has been published by now, nobody says.
        kill(system, "clerk")
        comes_to(lines, [0, 1, 2], "what had committed", timeout=PATIENCE)
        again(partial(written, 3))
    assert lines() == [0, 1, 2, 3]
    calls = [line.split() for line in heard.read_text().splitlines()]
    # At least once, each with a key of its own, in order where doubles are left out.
    assert list(dict.fromkeys(number for number, _ in calls)) == ["0", "1", "2", "3"]
    assert len({key for _, key in calls}) == len({(number, key) for number, key in calls}) == 4
    if url:
        with connected(url) as connection:
            rows = connection.execute(f"SELECT number FROM {TABLE} ORDER BY at").fetchall()
        assert rows == [(0,), (1,), (2,), (3,)]
