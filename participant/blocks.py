"""Hashes of memory in blocks: finds what changed in a region without being told and without a copy of it.

Theory of operation. A region is hashed at two grains. The coarse blocks (16 fine ones, 64 KiB by default)
are hashed at every capture, at memory speed; only where a coarse hash differs are the fine blocks (4 KiB)
inside it hashed and compared, so what is written stays near what changed, and is still in the cache. The hash
is xxh3-128 with a secret seed: 64 bits without a seed could be forged by whoever chooses the bytes, and a
forged collision is a lost write. `Hashes` are values: an unchanged block shares its entry with the capture
before, so that the tables of several undecided captures cost little, and none of them is ever changed in
place.

Hashing knows no object and no address, so a buffer that moved, or an address that now holds something
else, can cost bytes but never truth.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from xxhash import xxh3_128_digest

from .runs import Runs, runs_of

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
        return self._hashes(memory, None)

    def next(self, before: Hashes, memory: memoryview) -> Hashes:
        """The same, fine grain only where the coarse one differs from `before` (of the same size)."""
        hashes = self._hashes(memory, before)
        return before if hashes.coarse == before.coarse else hashes

    def agree(self, hashes: Hashes, runs: Iterable[tuple[int, memoryview]]) -> bool:
        """Whether these runs, (offset, bytes), hold what was hashed there.

        Each begins and ends where a fine block does, or at the end of all.
        """
        block, coarse, seed = self.block, self.block * FINE_PER_COARSE, self.seed
        for offset, run in runs:
            at, size = 0, run.nbytes
            ends = offset + size == hashes.size
            while at < size:
                index, inside = divmod(offset + at, coarse)
                if not inside and (at + coarse <= size or ends):
                    step, known = coarse, hashes.coarse[index]
                else:
                    step, first = block, inside // block * _DIGEST
                    known = hashes.fine[index][first : first + _DIGEST]
                if xxh3_128_digest(run[at : at + step], seed) != known:
                    return False
                at += step
        return True

    def _hashes(self, memory: memoryview, before: Hashes | None) -> Hashes:
        step, seed = self.block * FINE_PER_COARSE, self.seed
        count = -(-memory.nbytes // step)
        coarse, fine = [b""] * count, [b""] * count
        for index in range(count):
            block = memory[index * step : index * step + step]
            digest = coarse[index] = xxh3_128_digest(block, seed)
            if before is not None and before.coarse[index] == digest:
                fine[index] = before.fine[index]
            else:
                fine[index] = self._fine(block)
        return Hashes(memory.nbytes, tuple(coarse), tuple(fine))

    def _fine(self, memory: memoryview) -> bytes:
        block, seed = self.block, self.seed
        return b"".join(
            [xxh3_128_digest(memory[at : at + block], seed) for at in range(0, memory.nbytes, block)]
        )


def changed_runs(old: Hashes, new: Hashes, block: int) -> Runs:
    """The runs of fine blocks in which two hashes of one size differ, as ranges in bytes."""
    differ = [
        index for index, (one, two) in enumerate(zip(old.coarse, new.coarse, strict=True)) if one != two
    ]
    if not differ:
        return runs_of(np.empty(0, np.int64), block)
    # Only the last of all may have fewer digests than others, so they lie in rows.
    blocks = (np.array(differ)[:, None] * FINE_PER_COARSE + np.arange(FINE_PER_COARSE)).ravel()
    olds, news = (_words([hashes.fine[index] for index in differ]) for hashes in (old, new))
    starts, stops = runs_of(blocks[: len(olds)][(olds != news).any(axis=1)], block)
    return starts, np.minimum(stops, new.size)


def _words(digests: list[bytes]) -> Any:
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, _DIGEST // 8)
