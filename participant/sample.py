"""A few blocks of a region, looked at to find out whether it still changes nearly everywhere.

A region that is written whole each time has no account of its pages and no hashes: they would cost more than
they save. When its program stops writing to it, that has to be noticed soon, or each capture writes all of
it for nothing. Some dozens of blocks at places drawn at random tell it, for the price of hashing these. They
only decide how the next captures find out what changed; no capture relies on them for what it writes.
"""

from __future__ import annotations

import random

from xxhash import xxh3_128_digest

from .memory import Bytes

__all__ = ("Sample",)

_BLOCK = 4096
_MOST = 64
# Of small regions less is looked at: at most this part of their blocks.
_PART = 8
# Not the module's own numbers: a program that has seeded those goes by what comes next.
_chance = random.Random()


class Sample:
    """The blocks of one region as they were when it was last looked at."""

    def __init__(self) -> None:
        self._size = -1
        self._places: list[int] = []
        self._digests: list[bytes] = []

    def look(self, memory: Bytes) -> float:
        """The part of the blocks that differ from the last look; 1 at the first one and at another size."""
        if memory.nbytes != self._size:
            self._size = memory.nbytes
            blocks = max(1, memory.nbytes // _BLOCK)
            chosen = _chance.sample(range(blocks), min(_MOST, max(1, blocks // _PART)))
            self._places = [_BLOCK * block for block in sorted(chosen)]
            self._digests = []
        before = self._digests
        with memory.data as view:
            self._digests = [xxh3_128_digest(view[at : at + _BLOCK]) for at in self._places]
        if not before:
            return 1.0
        differ = sum(old != new for old, new in zip(before, self._digests, strict=True))
        return differ / len(before)
