"""Messages a second with ten checkpoints a second, against none (`bench.throughput`)."""

from __future__ import annotations

from bench.row import Row
from bench.throughput import measure_at

__all__ = ("measure",)


def measure(*, rounds: int = 20, spell: float = 4.0, mebibytes: int | None = None) -> Row:
    """The row; see the module's head."""
    return measure_at(
        "throughput_kept_10", 10.0, at_least=0.85, rounds=rounds, spell=spell, mebibytes=mebibytes
    )
