"""A DBOS workflow whose steps each give a message, which DBOS keeps before the next one begins.

The steps' answers are all that is kept: DBOS has no state that grows with them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.bench_step_vs_append import answer_of
from bench.peers.child import serve

__all__ = ("open_steps",)


@contextmanager
def open_steps(url: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """What answers the orders of `bench.peers.threads`."""
    from dbos import DBOS, SetWorkflowID

    config: Any = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config={**config, "run_admin_server": False})
    step: Any = DBOS.step()(answer_of)

    def run(first: int, count: int) -> None:
        for number in range(first, first + count):
            step(number)

    workflow: Any = DBOS.workflow()(run)
    DBOS.launch()
    numbers: list[int] = []
    runs: list[str] = []

    def kept_numbers() -> list[int]:
        """Of the messages that were not steps, and of all that DBOS has kept."""
        found = [step["output"]["number"] for run in runs for step in DBOS.list_workflow_steps(run)]
        return sorted(numbers + found)

    def answer(order: str, first: int = 0, count: int = 0) -> dict[str, Any]:
        if order == "check":
            return {"numbers": kept_numbers()}
        if order == "grow":
            numbers.extend(range(first, first + count))
            return {}
        runs.append(f"run-{first}")
        before = _kept(url)
        began = time.perf_counter()
        with SetWorkflowID(runs[-1]):
            workflow(first, count)
        seconds = time.perf_counter() - began
        return {"seconds": seconds / count, "bytes": (_kept(url) - before) / count}

    try:
        yield answer
    finally:
        DBOS.destroy()


def _kept(url: str) -> int:
    if url.startswith("postgresql"):
        import psycopg

        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return int(row[0])
    path = url.removeprefix("sqlite:///")
    return sum(os.stat(f"{path}{end}").st_size for end in ("", "-wal") if os.path.exists(f"{path}{end}"))


if __name__ == "__main__":
    where = sys.argv[1] if "://" in sys.argv[1] else f"sqlite:///{Path(sys.argv[1]) / 'dbos.db'}"
    serve(lambda: open_steps(where))
