"""Payloads to wire messages and back, for one lane: no I/O, no clock, no thread of its own.

A wire message is a row of records, each a 4-byte little-endian header ``length << 2 | kind`` and
``length`` bytes. Payloads that wait together share one message, which spares the price per message; a
payload larger than a chunk is cut into records that other messages of the same lane cannot interleave.

``kind``: WHOLE one payload; PART a piece of one, more follows; LAST its last piece; BYE (empty, the last
record ever) the sender ended the lane on purpose. A lane that ends without BYE broke.
"""

from __future__ import annotations

import struct
from collections import deque

from .transport import CHUNK

__all__ = ("HEADER", "Outbox", "Reassembler", "WireError")

HEADER = struct.Struct("<I")
WHOLE, PART, LAST, BYE = range(4)
_BYE_RECORD = HEADER.pack(BYE)
_pack = HEADER.pack
_unpack = HEADER.unpack_from


class WireError(ValueError):
    """The peer sent bytes that are not a row of records."""


class Outbox:
    """Payloads that wait for the wire.

    `append` may be called by any thread while one other thread calls `take`: the deque is the only
    thing they share.
    """

    __slots__ = ("_offset", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._offset = 0  # how much of the first payload went out already

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, payload: bytes) -> None:
        self._waiting.append(payload)

    def clear(self) -> None:
        self._waiting.clear()
        self._offset = 0

    def take(self) -> tuple[bytes, int]:
        """The next wire message, and how many payload bytes it carries. The outbox must not be empty."""
        waiting = self._waiting
        first = waiting[0]
        if self._offset or len(first) > CHUNK:
            return self._take_part(first)
        waiting.popleft()
        size = len(first)
        if not waiting or size + len(waiting[0]) > CHUNK:
            return _pack(size << 2 | WHOLE) + first, size
        parts = [_pack(size << 2 | WHOLE), first]
        while waiting:
            following = waiting[0]
            length = len(following)
            if size + length > CHUNK:
                break
            waiting.popleft()
            parts.append(_pack(length << 2 | WHOLE))
            parts.append(following)
            size += length
            if len(parts) >= 8192:
                break
        return b"".join(parts), size

    def _take_part(self, payload: bytes) -> tuple[bytes, int]:
        start = self._offset
        piece = memoryview(payload)[start : start + CHUNK]
        size = len(piece)
        if start + size == len(payload):
            self._waiting.popleft()
            self._offset = 0
            return b"".join((_pack(size << 2 | LAST), piece)), size
        self._offset = start + size
        return b"".join((_pack(size << 2 | PART), piece)), size

    @staticmethod
    def farewell() -> bytes:
        """The wire message that ends a lane on purpose."""
        return _BYE_RECORD


class Reassembler:
    """Wire messages of one lane back to payloads; partial ones die with it."""

    __slots__ = ("_parts", "ended")

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self.ended = False

    def feed(self, message: bytes) -> list[bytes]:
        """The payloads that this wire message completes. Raises WireError, after which the lane is dead."""
        total = len(message)
        if total >= 4 and _unpack(message)[0] == (total - 4) << 2 and not (self._parts or self.ended):
            return [message[4:]]  # one whole payload: the path of small answers and of frames
        view = memoryview(message)
        done: list[bytes] = []
        at = 0
        while at < total:
            if self.ended:
                raise WireError("bytes after the end of the lane")
            if at + 4 > total:
                raise WireError("a cut-off record header")
            word: int = _unpack(message, at)[0]
            at += 4
            length, kind = word >> 2, word & 3
            if at + length > total:
                raise WireError(f"a record of {length} bytes in a message that has {total - at} left")
            self._accept(view[at : at + length], kind, done)
            at += length
        if not total:
            raise WireError("an empty message")
        return done

    def _accept(self, body: memoryview, kind: int, done: list[bytes]) -> None:
        if kind == WHOLE:
            if self._parts:
                raise WireError("a payload inside another one")
            done.append(bytes(body))
        elif kind == PART:
            if not body:
                raise WireError("an empty piece")
            self._parts.append(body)
        elif kind == LAST:
            if not self._parts:
                raise WireError("the last piece of a payload that never began")
            self._parts.append(body)
            done.append(b"".join(self._parts))
            self._parts = []
        elif body or self._parts:
            raise WireError("an end of the lane inside a payload")
        else:
            self.ended = True
