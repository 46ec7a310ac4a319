"""Bytes in deltas against bytes changed, counted by the workload itself in pages of 4 KiB.

One participant holds an array of random numbers, which no compression shortens. Between two checkpoints it
writes new random numbers to 1 % of its pages, at random places. What a checkpoint wrote is the size of its
packs, those of all participants.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

import cutline
from bench.row import Row

__all__ = ("Painter", "measure")

PAGE = 4096


class Painter:
    """An array, and how many of its pages were written."""

    def __init__(self, mebibytes: int) -> None:
        self.random = np.random.default_rng(1)
        self.pages = mebibytes * 1024 * 1024 // PAGE
        self.canvas = self.random.integers(0, 1 << 32, self.pages * PAGE // 4, dtype=np.uint32)

    def paint(self, share: float) -> int:
        """Writes new numbers to that share of the pages; returns the bytes of the pages written."""
        chosen = self.random.choice(self.pages, int(self.pages * share), replace=False)
        rows = self.canvas.reshape(self.pages, PAGE // 4)
        rows[chosen] = self.random.integers(0, 1 << 32, (len(chosen), PAGE // 4), dtype=np.uint32)
        return len(chosen) * PAGE


def measure(*, rounds: int = 12, mebibytes: int = 128, share: float = 0.01) -> Row:
    """The row; see the module's head."""
    written, changed = [], []
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(folder, name="painter", interval=None, full_every=rounds + 2, quiet=True)
        try:
            painter: Any = system.spawn("painter", Painter, mebibytes)
            system.checkpoint()
            for _ in range(rounds):
                changed.append(float(painter.paint.options(durable=False).remote(share).result(timeout=60)))
                number = system.checkpoint()
                row = next(row for row in system.checkpoints() if row.checkpoint == number)
                if row.kind != "delta":
                    raise AssertionError(f"checkpoint {number} is {row.kind}, the row is about deltas")
                written.append(float(row.summary["written_bytes"]))
        finally:
            system.stop()
    return Row(
        name="written_per_changed",
        unit="bytes",
        samples_ours=written,
        samples_baseline=changed,
        at_most=1.15,
        note=f"{mebibytes} MiB of random numbers, {share:.0%} of the pages written between checkpoints; "
        "manifest and catalog are not counted",
    )
