"""Long pieces in parts, so that what did not change of a piece is not written again.

Theory of operation. The Pickler gives out a stream in chunks: frames, which end at the first opcode after
64 KiB, and the content of large strings and bytes as it is. A part is whole chunks, as many as `size` takes;
chunks of more than twice that are sliced. All boundaries follow from what comes before them, so something
appended changes the last part alone, and an edit that keeps lengths changes the part in which it is. An edit
that does not keep them mostly changes no more: the frame after the next one often begins at the same opcode
again, which slices of a fixed size never would.

A part is hashed as it lies, chunk by chunk, and joined only if it is written.

`size` grows with the stream, so that a piece has no more than some 256 parts. It changes only when it is off
by a factor of four: a change writes the piece whole once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from blake3 import blake3

__all__ = ("SMALLEST", "Part", "cut", "digest_of", "part_size")

# Bytes of a part; about a frame of the Pickler.
SMALLEST = 64 * 1024
_PARTS = 128
_OFF = 4

# The chunks that it consists of.
Part: TypeAlias = Sequence[bytes | memoryview]


def part_size(length: int, before: int, smallest: int = SMALLEST) -> int:
    """The size of the parts of a stream of `length` bytes whose parts had the size `before`."""
    wanted = smallest
    while wanted * _PARTS < length:
        wanted *= 2
    return before if wanted < before * _OFF and before < wanted * _OFF else wanted


def cut(chunks: Sequence[bytes], size: int) -> Sequence[Part]:
    """The stream in parts, each but the last one of at least `size` bytes. Nothing is copied."""
    parts: list[list[bytes | memoryview]] = [[]]
    room = size
    for chunk in chunks:
        for slice_ in [chunk] if len(chunk) <= 2 * size else _sliced(chunk, size):
            if room <= 0:
                parts.append([])
                room = size
            parts[-1].append(slice_)
            room -= len(slice_)
    return parts


def _sliced(chunk: bytes, size: int) -> list[memoryview]:
    view = memoryview(chunk)
    return [view[start : start + size] for start in range(0, len(chunk), size)]


def digest_of(part: Part) -> bytes:
    """BLAKE3-256 over a part."""
    hasher = blake3(part[0])
    for chunk in part[1:]:
        hasher.update(chunk)
    digest: bytes = hasher.digest()
    return digest
