"""What checkpoints leave of a counter's rate: ours, and Bytewax with its recovery snapshots.

See `bench.peers.counting`.
"""

from __future__ import annotations

from bench.peers.child import Child
from bench.peers.counting import GROUP, compared
from bench.row import Missing, Row

__all__ = ("GROUP", "measure")


def measure(*, rounds: int = 5, spell: float = 5.0, keys: int = 10_000) -> list[Row | Missing]:
    """The rows; see the module's head."""
    return compared(
        "bytewax",
        "Bytewax, epochs with recovery",
        lambda: Child("bench.peers.bytewax_counter"),
        clock="from the first event taken from its source to the last count at its sink",
        rounds=rounds,
        spell=spell,
        keys=keys,
    )
