"""Bytes in deltas against bytes changed, counted by the workload itself in pages of 4 KiB.

One participant holds an array of random numbers, which no compression shortens. Between two checkpoints it
writes 16 new random numbers into each of 1 % of its pages, at random places. (A write that lies across two
pages of the machine changes both: whole rows of 4 KiB in an array that begins anywhere would count half where
the kernel tracks.) What a checkpoint wrote is the size of its packs in the folder, those of all participants.
At the end the array of the newest image, read through all of
its deltas, must be the one that the participant holds.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from blake3 import blake3

import cutline
from bench.row import Row
from cutline.storage.image import ImageRef, read_image

__all__ = ("Painter", "digest_of_region", "measure")

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
        columns = self.random.integers(0, PAGE // 4 - 16, (len(chosen), 1)) + np.arange(16)
        rows[chosen[:, None], columns] = self.random.integers(0, 1 << 32, (len(chosen), 16), dtype=np.uint32)
        return len(chosen) * PAGE

    def digest(self) -> bytes:
        """What the array holds."""
        return _digest(self.canvas)


def _digest(content: Any) -> bytes:
    digest: bytes = blake3(memoryview(content).cast("B")).digest()
    return digest


def digest_of_region(system: cutline.System, ref: ImageRef) -> bytes:
    """What the one array of an image holds."""
    (kept,) = read_image(system.store.blobs, ref).regions.values()
    return _digest(kept)


def _written(system: cutline.System, number: int) -> tuple[float, ImageRef]:
    """Bytes of the checkpoint's packs, and the painter's image."""
    row = next(row for row in system.checkpoints() if row.checkpoint == number)
    if row.kind != "delta":
        raise AssertionError(f"checkpoint {number} is {row.kind}, the row is about deltas")
    images = system.store.read_manifest(row).images
    size = sum(system.store.blobs.size(image.ref.key) for image in images.values())
    return float(size), images["painter"].ref


def measure(*, rounds: int = 12, mebibytes: int = 256, share: float = 0.01) -> Row:
    """The row; see the module's head."""
    written, changed = [], []
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(folder, name="painter", interval=None, full_every=rounds + 2, quiet=True)
        try:
            painter: Any = system.spawn("painter", Painter, mebibytes)
            system.checkpoint()
            for _ in range(rounds):
                changed.append(float(painter.paint.options(durable=False).remote(share).result(timeout=60)))
                size, ref = _written(system, system.checkpoint())
                written.append(size)
            if digest_of_region(system, ref) != painter.digest.options(durable=False).remote().result(
                timeout=60
            ):
                raise AssertionError("the newest image is not what the participant holds")
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
