"""Channels as a section of an image, in parts: the bodies of their frames are referred to, not copied.

A queue may be longer than the state, and a capture that put it together would hold its handler up for as long
as that takes. Bodies never change; whoever writes the image goes through them in the background.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgpack

__all__ = ("in_parts",)

# Smaller bodies are copied: a part of its own would cost as much.
_SMALLEST = 4096


def in_parts(channels: Sequence[Any]) -> list[bytes | memoryview]:
    """What `msgpack.packb` would make of channels, in parts; each is a row that ends with its frames."""
    packer = msgpack.Packer()
    parts: list[bytes | memoryview] = []
    head = bytearray(packer.pack_array_header(len(channels)))
    for *row, frames in channels:
        head += packer.pack_array_header(len(row) + 1)
        for value in row:
            head += packer.pack(value)
        head += packer.pack_array_header(len(frames))
        for first, last, body, digest in frames:
            head += packer.pack_array_header(4) + packer.pack(first) + packer.pack(last)
            if len(body) < _SMALLEST:
                head += packer.pack(body)
            else:
                parts += [bytes(head + _binary_header(len(body))), body]
                head.clear()
            head += packer.pack(digest)
    return [*parts, bytes(head)]


def _binary_header(size: int) -> bytes:
    return struct.pack(">BH", 0xC5, size) if size < 1 << 16 else struct.pack(">BI", 0xC6, size)
