"""What checkpoints leave of a counter's rate: ours, and Apache Flink with state on the heap.

Flink pins packages that others need newer, so it may have a Python of its own: CUTLINE_BENCH_FLINK names one
that has apache-flink. See `bench.peers.counting`.
"""

from __future__ import annotations

import os
import sys

from bench.peers.child import Child
from bench.peers.counting import GROUP, compared
from bench.row import Missing, Row

__all__ = ("GROUP", "measure")


def measure(*, rounds: int = 5, spell: float = 5.0, keys: int = 10_000) -> list[Row | Missing]:
    """The rows; see the module's head."""
    python = os.environ.get("CUTLINE_BENCH_FLINK", sys.executable)
    return compared(
        "flink",
        "Apache Flink, SQL, checkpoints of the heap",
        lambda: Child("bench.peers.flink_counter", python=python),
        clock="is Flink's own of the job, with the start and the end of its tasks",
        rounds=rounds,
        spell=spell,
        keys=keys,
    )
