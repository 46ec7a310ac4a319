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


class _Clock:
    """Seconds from the first event that is taken to the last count that comes out."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    def events(self, events: int, keys: int) -> Iterator[tuple[str, int]]:
        """The events, one after the other."""
        names = [f"key {number}" for number in range(keys)]
        self.began = time.perf_counter()
        for number in range(events):
            yield names[number % keys], 1

    def sink(self, out: list[tuple[str, int]]) -> Any:
        """Bytewax's sink of counts. Its own for tests tells nobody when something came."""
        from bytewax.outputs import DynamicSink, StatelessSinkPartition

        clock = self

        class Part(StatelessSinkPartition):  # type: ignore[misc]
            def write_batch(self, items: list[tuple[str, int]]) -> None:
                out.extend(items)
                clock.ended = time.perf_counter()

        class Sink(DynamicSink):  # type: ignore[misc]
            def build(self, _step: str, _worker: int, _workers: int) -> Part:
                return Part()

        return Sink()


def _counted(count: int | None, more: int) -> tuple[int, int]:
    total = (count or 0) + more
    return total, total


def _run(events: int, keys: int, interval: float) -> float:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import TestingSource, run_main

    out: list[tuple[str, int]] = []
    clock = _Clock()
    flow = Dataflow("counter")
    source = TestingSource(clock.events(events, keys), batch_size=_BATCH)
    stream: Any = op.input("events", flow, source)
    op.output("counts", op.stateful_map("count", stream, _counted), clock.sink(out))
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        settings: dict[str, Any] = {}
        if interval:
            init_db_dir(Path(folder), 1)
            settings = {
                "epoch_interval": timedelta(seconds=interval),
                "recovery_config": RecoveryConfig(folder),
            }
        run_main(flow, **settings)
    latest = dict(out)
    if len(out) != events or sum(latest.values()) != events or len(latest) != min(keys, events):
        raise AssertionError(f"Bytewax counted {sum(latest.values())} of {events} events")
    return events / (clock.ended - clock.began)


@contextmanager
def open_counter() -> Iterator[Callable[..., dict[str, Any]]]:
    """Answers with events a second."""
    import bytewax.testing

    if not hasattr(bytewax.testing, "run_main"):
        raise ImportError("this bytewax has no bytewax.testing.run_main")
    yield lambda events, keys, interval: {"rate": _run(events, keys, interval)}


if __name__ == "__main__":
    serve(open_counter)
