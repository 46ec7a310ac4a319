"""A counter by key in Bytewax: `stateful_map` over events, with and without recovery snapshots.

Every event comes out with its key's count, so that what came out last says whether each was counted once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.peers.child import serve

__all__ = ("open_counter",)

# Events that the source hands over at once.
_BATCH = 1000


def _events(events: int, keys: int) -> Iterator[tuple[str, int]]:
    names = [f"key {number}" for number in range(keys)]
    for number in range(events):
        yield names[number % keys], 1


def _counted(count: int | None, more: int) -> tuple[int, int]:
    total = (count or 0) + more
    return total, total


def _run(events: int, keys: int, interval: float) -> float:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import TestingSink, TestingSource, run_main

    out: list[tuple[str, int]] = []
    flow = Dataflow("counter")
    stream: Any = op.input("events", flow, TestingSource(_events(events, keys), batch_size=_BATCH))
    op.output("counts", op.stateful_map("count", stream, _counted), TestingSink(out))
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        settings: dict[str, Any] = {}
        if interval:
            init_db_dir(Path(folder), 1)
            settings = {
                "epoch_interval": timedelta(seconds=interval),
                "recovery_config": RecoveryConfig(folder),
            }
        began = time.perf_counter()
        run_main(flow, **settings)
        seconds = time.perf_counter() - began
    latest = dict(out)
    if len(out) != events or sum(latest.values()) != events or len(latest) != min(keys, events):
        raise AssertionError(f"Bytewax counted {sum(latest.values())} of {events} events")
    return events / seconds


@contextmanager
def open_counter() -> Iterator[Callable[..., dict[str, Any]]]:
    """Answers with events a second."""
    import bytewax.testing

    if not hasattr(bytewax.testing, "run_main"):
        raise ImportError("this bytewax has no bytewax.testing.run_main")
    yield lambda events, keys, interval: {"rate": _run(events, keys, interval)}


if __name__ == "__main__":
    serve(open_counter)
