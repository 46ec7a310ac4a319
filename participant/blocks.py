"""Hashes of memory in blocks: finds what changed in a region without being told and without a copy of it.

Theory of operation. A region is hashed at two grains. The coarse blocks (16 fine ones, 64 KiB by default)
are hashed at every capture, at memory speed; only where a coarse hash differs are the fine blocks (4 KiB)
inside it hashed and compared, so what is written stays near what changed. The hash is xxh3-128 with a
secret seed: 64 bits without a seed could be forged by whoever chooses the bytes, and a forged collision
is a lost write. `Hashes` are values: an unchanged block shares its entry with the capture before, so that
the tables of several undecided captures cost little, and none of them is ever changed in place.

Hashing knows no object and no address, so a buffer that moved, or an address that now holds something
else, can cost bytes but never truth.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from xxhash import xxh3_128_digest

__all__ = ("Hashes", "Hasher", "changed_runs")

FINE_PER_COARSE = 16
_DIGEST = 16


@dataclass(frozen=True)
class Hashes:
    """The hashes of one region at one moment: coarse[i] of a block, fine[i] the digests inside it, joined."""

    size: int
    coarse: tuple[bytes, ...]
    fine: tuple[bytes, ...]


class Hasher:
    """Hashes memory under one secret seed; `block` is the fine grain in bytes."""

    def __init__(self, block: int = 4096) -> None:
        self.block = block
        self.seed = secrets.randbits(64)

    def first(self, memory: memoryview) -> Hashes:
        """Both grains of all of `memory`, a flat view of bytes."""
        step = self.block * FINE_PER_COARSE
        starts = range(0, memory.nbytes, step)
        seed = self.seed
        return Hashes(
            size=memory.nbytes,
            coarse=tuple([xxh3_128_digest(memory[at : at + step], seed) for at in starts]),
            fine=tuple([self._fine(memory[at : at + step]) for at in starts]),
        )

    def next(self, before: Hashes, memory: memoryview) -> Hashes:
        """The same, fine grain only where the coarse one differs from `before` (of the same size)."""
        step = self.block * FINE_PER_COARSE
        seed = self.seed
        coarse = tuple(
            [xxh3_128_digest(memory[at : at + step], seed) for at in range(0, memory.nbytes, step)]
        )
        if coarse == before.coarse:
            return before
        fine = list(before.fine)
        for index, (old, new) in enumerate(zip(before.coarse, coarse, strict=True)):
            if old != new:
                fine[index] = self._fine(memory[index * step : index * step + step])
        return Hashes(memory.nbytes, coarse, tuple(fine))

    def _fine(self, memory: memoryview) -> bytes:
        block, seed = self.block, self.seed
        return b"".join(
            [xxh3_128_digest(memory[at : at + block], seed) for at in range(0, memory.nbytes, block)]
        )


def changed_runs(old: Hashes, new: Hashes, block: int) -> list[tuple[int, int]]:
    """(start, stop) in bytes of the runs of fine blocks in which two hashes of one size differ."""
    runs: list[tuple[int, int]] = []
    step = block * FINE_PER_COARSE
    for index, (before, after) in enumerate(zip(old.coarse, new.coarse, strict=True)):
        if before == after:
            continue
        olds, news = old.fine[index], new.fine[index]
        for at in range(0, len(news), _DIGEST):
            if olds[at : at + _DIGEST] == news[at : at + _DIGEST]:
                continue
            start = index * step + at // _DIGEST * block
            stop = min(start + block, new.size)
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], stop)
            else:
                runs.append((start, stop))
    return runs
