"""Records of an append-only file: each says where it ends, whether it is whole, and that we wrote it.

A record is ``magic (4) length (u32) crc32 (u32) body mac (32)``; length and crc are those of body and mac,
the mac is over a context, which says what file this is, and the body. The crc tells what a crash left
unwritten, or damage, from what somebody has written who does not have the store's key.
"""

from __future__ import annotations

import hmac
import struct
import zlib
from collections.abc import Sequence

from blake3 import blake3

__all__ = ("MAC", "Sealer")

_HEAD = struct.Struct("<4sII")
MAC = 32


class Sealer:
    """The records of one file. `former`: keys with which records verify too."""

    def __init__(self, magic: bytes, context: bytes, key: bytes, former: Sequence[bytes] = ()) -> None:
        # A file that is put in another's place says something else.
        self._magic, self._context = magic, context + b"\0"
        self._keys = (key, *former)

    def seal(self, body: bytes) -> bytes:
        """The record."""
        sealed = body + self._mac(body, self._keys[0])
        return _HEAD.pack(self._magic, len(sealed), zlib.crc32(sealed)) + sealed

    def read(self, raw: bytes, offset: int) -> tuple[bytes, int] | None:
        """The body of the record at `offset`, and where it ends; None if there is no whole one."""
        if offset + _HEAD.size > len(raw):
            return None
        magic, length, crc = _HEAD.unpack_from(raw, offset)
        stop = offset + _HEAD.size + length
        sealed = raw[offset + _HEAD.size : stop]
        if magic != self._magic or not MAC < length == len(sealed) or zlib.crc32(sealed) != crc:
            return None
        return sealed[:-MAC], stop

    def next(self, raw: bytes, offset: int) -> int:
        """Where the next record may begin; -1 if there is none."""
        return raw.find(self._magic, offset)

    def is_ours(self, raw: bytes, body: bytes, stop: int) -> bool:
        """Whether one of the keys made the record with that body that ends at `stop`."""
        mac = raw[stop - MAC : stop]
        return any(hmac.compare_digest(self._mac(body, key), mac) for key in self._keys)

    def _mac(self, body: bytes, key: bytes) -> bytes:
        return blake3(self._context + body, key=key).digest()
