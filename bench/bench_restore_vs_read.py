"""Bytes a second of a restore against reading the same packs and expanding them into fresh memory.

The image is one array of 256 MiB, three quarters random numbers and one quarter small ones, which compress.
One row restores it from one full pack, the other after 100 checkpoints between which 1 % of the pages were
written at random, through all that was folded. Both sides begin with the packs out of the page cache. The
plain side reads each pack from the first byte to the last, in large pieces, into memory that was never used
before, and expands what is compressed; it checks nothing and puts nothing together. Ours ends with the array
as it was, which is compared.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import lz4.block
import numpy as np

from bench.row import Row, interleave
from cutline.storage import DirectoryBlobs, ImageRef, Region, pack_key, read_image, write_image
from cutline.storage.folding import MOST
from cutline.storage.layers import layers_of

__all__ = ("measure",)

PAGE = 4096
PIECE = 8 << 20


class _Stored:
    """An array that is written to, and its images."""

    def __init__(self, folder: str, mebibytes: int) -> None:
        self.blobs = DirectoryBlobs(folder)
        self.random = np.random.default_rng(1)
        self.content = self.random.integers(0, 256, mebibytes << 20, dtype=np.uint8)
        self.content[: len(self.content) // 4] &= 3
        self.number = 0
        self.ref = self._write([(0, self.content)], None)

    def _write(self, runs: list[tuple[int, Any]], parent: ImageRef | None) -> ImageRef:
        self.number += 1
        extents = tuple((offset, memoryview(run.data)) for offset, run in runs)
        return write_image(
            self.blobs,
            pack_key("bench", "line", 0, self.number, "array", 1),
            header={},
            sections={},
            pieces=[],
            regions=[Region(1, len(self.content), extents)],
            parent=parent,
            most=MOST,
        )

    def change(self, share: float) -> None:
        """Other numbers in some pages, and an image of that."""
        pages = len(self.content) // PAGE
        chosen = np.sort(self.random.choice(pages, max(1, int(pages * share)), replace=False))
        rows = self.content.reshape(pages, PAGE)
        rows[chosen] = self.random.integers(0, 256, (len(chosen), PAGE), dtype=np.uint8)
        quarter = chosen[chosen < pages // 4]
        rows[quarter] &= 3
        self.ref = self._write([(int(page) * PAGE, rows[page].copy()) for page in chosen], self.ref)

    def files(self) -> list[str]:
        return [os.path.join(self.blobs.root, key) for key in self.ref.chain]

    def forget(self) -> None:
        """Takes the packs out of the page cache."""
        for path in self.files():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def extents(self) -> list[list[tuple[int, int, int]]]:
        """(stored bytes, codec, bytes expanded) of each extent of each pack."""
        found = []
        for layer in reversed(layers_of(self.blobs, self.ref)):
            length, extent, table = layer.reader.document["stream"]
            sizes = [min(extent, length - number * extent) for number in range(len(table))]
            rows = zip(table, sizes, strict=True)
            found.append([(stored, codec, size) for (stored, codec, _), size in rows])
        return found

    def restore(self) -> float:
        """Bytes a second."""
        self.forget()
        began = time.perf_counter()
        image = read_image(self.blobs, self.ref)
        seconds = time.perf_counter() - began
        if not np.array_equal(image.regions[1], self.content):
            raise AssertionError("the restored array is another one")
        return self.size / seconds

    def read(self, extents: list[list[tuple[int, int, int]]]) -> float:
        """Bytes a second of the plain side."""
        self.forget()
        began = time.perf_counter()
        kept = [_plainly(path, table) for path, table in zip(self.files(), extents, strict=True)]
        seconds = time.perf_counter() - began
        if len(kept) != len(self.ref.chain):
            raise AssertionError("not all packs were read")
        return self.size / seconds

    @property
    def size(self) -> int:
        """Bytes of the packs."""
        return sum(os.path.getsize(path) for path in self.files())


def _plainly(path: str, table: list[tuple[int, int, int]]) -> Any:
    """A pack's bytes in memory that was never used; and what is compressed in it, expanded."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        room = np.empty(size, np.uint8)
        view = memoryview(room.data)
        done = 0
        while done < size:
            done += os.preadv(fd, [view[done : done + PIECE]], done)
    finally:
        os.close(fd)
    at, expanded = 16, []
    for stored, codec, length in table:
        if codec:
            expanded.append(lz4.block.decompress(view[at : at + stored], uncompressed_size=length))
        at += stored
    return room, expanded


def _row(name: str, stored: _Stored, rounds: int, note: str) -> Row:
    extents = stored.extents()
    plain: Callable[[], float] = lambda: stored.read(extents)  # noqa: E731
    ours, baseline = interleave(rounds, stored.restore, plain)
    return Row(
        name=name,
        unit="bytes/s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_least=0.8,
        note=f"{note}; {len(stored.ref.chain)} packs of {stored.size >> 20} MiB for an array of "
        f"{len(stored.content) >> 20} MiB",
    )


def measure(
    *, rounds: int = 25, mebibytes: int = 256, checkpoints: int = 100, share: float = 0.01
) -> list[Row]:
    """The rows; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        stored = _Stored(folder, mebibytes)
        rows = [_row("restore_vs_read", stored, rounds, "one full image")]
        for _ in range(checkpoints):
            stored.change(share)
        note = f"after {checkpoints} checkpoints, {share:.0%} of the pages written between two"
        rows.append(_row("restore_vs_read_after_100", stored, rounds, note))
    return rows
