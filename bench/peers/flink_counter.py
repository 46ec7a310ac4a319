"""A counter by key in Apache Flink: a streaming SQL query in a cluster inside one JVM, state on the heap.

Counts are checked in a small job, whose results are collected; what is timed goes to Flink's sink of nothing,
since collecting costs more than counting. The time is that which Flink itself gives for the job, so that the
start of its cluster is not in it, but the start and the end of the job's tasks are: a sink of nothing has no
clock that could say when the last count came. This module runs in an interpreter of its own, which has
apache-flink and nothing of ours.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.peers.child import Absent, serve

__all__ = ("open_counter",)

# Keys at random: one of Flink's sequences writes all that it has not yet told into each checkpoint.
_SOURCE = """CREATE TEMPORARY TABLE events (k INT) WITH ('connector' = 'datagen',
  'rows-per-second' = '1000000000', 'number-of-rows' = '{events}', 'fields.k.kind' = 'random',
  'fields.k.min' = '0', 'fields.k.max' = '{last}')"""
_SINK = "CREATE TEMPORARY TABLE nothing (k INT, c BIGINT) WITH ('connector' = 'blackhole')"
_COUNT = "SELECT k, COUNT(*) AS c FROM events GROUP BY k"


def _environment(interval: float, folder: str) -> Any:
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    settings = Configuration()
    settings.set_string("parallelism.default", "1")
    if interval:
        settings.set_string("execution.checkpointing.interval", f"{round(interval * 1000)} ms")
        settings.set_string("execution.checkpointing.dir", f"file://{folder}")
    built = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    return TableEnvironment.create(built)


def _job(events: int, keys: int, interval: float) -> float:
    """Seconds of one job, as Flink counts them."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        tables = _environment(interval, folder)
        tables.execute_sql(_SOURCE.format(events=events, last=keys - 1))
        tables.execute_sql(_SINK)
        client = tables.execute_sql(f"INSERT INTO nothing {_COUNT}").get_job_client()
        return float(client.get_job_execution_result().result().get_net_runtime()) / 1000


def _check(interval: float) -> None:
    events, keys = 2007, 10
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        tables = _environment(interval, folder)
        tables.execute_sql(_SOURCE.format(events=events, last=keys - 1))
        latest: dict[int, int] = {}
        with tables.execute_sql(_COUNT).collect() as rows:
            for row in rows:
                latest[row[0]] = max(row[1], latest.get(row[0], 0))
    if set(latest) != set(range(keys)) or sum(latest.values()) != events:
        raise AssertionError(f"Flink counted {latest} of {events} events")


@contextmanager
def open_counter() -> Iterator[Callable[..., dict[str, Any]]]:
    """Answers with events a second."""
    import pyflink.table  # noqa: F401

    if shutil.which("java") is None:
        raise Absent("Flink needs a Java runtime, and there is none here (Debian's package default-jre)")
    _check(0.1)
    yield lambda events, keys, interval: {"rate": events / _job(events, keys, interval)}


if __name__ == "__main__":
    serve(open_counter)
