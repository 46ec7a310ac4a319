"""Pieces of an image that are read when somebody asks for a part of them, and not before.

Theory of operation. Whoever reads an image may leave large pieces unread. Their packs are *held*: what a
collector, another owner or a person removes meanwhile stays readable for as long as this process has use for
it (`BlobStore.hold`), so no lease, row or file says so, and nothing is left to be cleared away when the
process ends, however it ends. Where a store cannot promise that, as a bucket cannot, the bytes are read with
the image.

What is read later is checked as anything else is: extent by extent, each against its digest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from .pack import PackReader

__all__ = ("Left", "Unread")

# Which pieces are to be left unread, by name and length.
Left: TypeAlias = Callable[[str, int], bool]


class Unread:
    """The content of a piece, `length` bytes of it. Any thread may read."""

    def __init__(self, name: str, digest: bytes, length: int, read: Callable[[int, int], bytes]) -> None:
        self.name, self.digest, self.length = name, digest, length
        self._read = read

    @classmethod
    def of(cls, name: str, digest: bytes, content: bytes) -> Unread:
        """One whose bytes are in memory already."""
        return cls(name, digest, len(content), lambda start, length: content[start : start + length])

    @classmethod
    def in_pack(
        cls, name: str, digest: bytes, reader: PackReader, place: list[int], lock: threading.Lock
    ) -> Unread:
        """One that lies at a place of the stream of a pack that is held. `lock`: of that reader."""
        position, length = place

        def read(start: int, size: int) -> bytes:
            with lock:
                return reader.read(position + start, size)

        return cls(name, digest, length, read)

    def read(self, start: int, length: int) -> bytes:
        """A part of it, which it has. Raises Corrupt for a part that is damaged, other StorageError."""
        if not 0 <= start <= start + length <= self.length:
            raise ValueError(f"piece {self.name!r} has {self.length} bytes, none at {start}+{length}")
        return self._read(start, length)

    def whole(self) -> bytes:
        """All of it."""
        return self.read(0, self.length)
