"""The same as `stall_vs_pickle` where changes are found by hashing, as where userfaultfd is forbidden."""

from __future__ import annotations

from bench.bench_stall_vs_pickle import measure_with
from bench.row import Row
from bench.stall import Hashed

__all__ = ("measure",)


def measure() -> Row:
    """The row; see the module's head."""
    return measure_with("stall_vs_pickle_hash", Hashed, at_least=5.0)
