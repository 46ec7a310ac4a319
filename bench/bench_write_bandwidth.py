"""Bytes a second of writing an image, until it is durable, against writing and syncing the same bytes.

An image of one array of random numbers, which does not compress, through `write_image` into a folder: hashed,
synced, linked to its name, the folder synced. The plain side writes the same bytes to a file in pieces of
1 MiB, syncs it and nothing else.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.row import Row, interleave
from cutline.storage import DirectoryBlobs, Region, pack_key, write_image
from cutline.storage.image import check_image

__all__ = ("measure",)

PIECE = 1 << 20


def measure(*, rounds: int = 9, mebibytes: int = 256) -> Row:
    """The row; see the module's head."""
    content = np.random.default_rng(1).integers(0, 256, mebibytes << 20, dtype=np.uint8)
    view = memoryview(content.data)
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        blobs = DirectoryBlobs(folder)

        def ours() -> float:
            key = pack_key("bench", "line", 0, 1, "array", 1)
            began = time.perf_counter()
            ref = write_image(
                blobs,
                key,
                header={},
                sections={},
                pieces=[],
                regions=[Region(1, len(content), ((0, view),))],
                parent=None,
            )
            seconds = time.perf_counter() - began
            check_image(blobs, ref, deep=True)
            blobs.delete(key)
            return len(content) / seconds

        def plain() -> float:
            path = Path(folder) / ".plain"
            began = time.perf_counter()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            for start in range(0, len(view), PIECE):
                os.write(fd, view[start : start + PIECE])
            os.fsync(fd)
            os.close(fd)
            seconds = time.perf_counter() - began
            path.unlink()
            return len(content) / seconds

        written, baseline = interleave(rounds, ours, plain)
    return Row(
        name="write_bandwidth",
        unit="bytes/s",
        samples_ours=written,
        samples_baseline=baseline,
        at_least=0.8,
        note=f"an image of {mebibytes} MiB that does not compress",
    )
