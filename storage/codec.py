"""Bytes and their names: canonical msgpack, lz4 where it pays, BLAKE3-256.

A document has exactly one encoding: maps sorted by key, texts as str, bytes as bin, shortest integers,
floats as 64 bits. So equal documents have equal digests, whoever wrote them.

Compression is tried on three samples first: lz4 spends about as long on bytes that do not shrink as the
disk does on writing them.
"""

from __future__ import annotations

from typing import Any

import lz4.block
import msgpack
from blake3 import blake3

from cutline.errors import Misuse

__all__ = (
    "DIGEST_SIZE",
    "LZ4",
    "RAW",
    "canonical",
    "decode",
    "digest_of",
    "expand",
    "ordered",
    "packed",
    "squeeze",
)

DIGEST_SIZE = 32
RAW = 0
LZ4 = 1

_WORTH = 1.1
_SAMPLE = 4096
_MAX_RAW = 1 << 31
# How many times larger than its input nothing that lz4 gives back can be.
_LZ4_MOST = 256
_FLAT = frozenset((str, int, float, bytes, bool, type(None)))
_TEXT = frozenset((str,))


def canonical(value: Any) -> bytes:
    """The one msgpack encoding of a document (None, bool, int, float, str, bytes, lists, str-keyed maps).

    Raises Misuse for anything else, a map key that is no str included.
    """
    return packed(ordered(value))


def ordered(value: Any) -> Any:
    """The document with its maps in order, for a part of one that is put in order by hand. Raises Misuse."""
    try:
        return _ordered(value)
    except (TypeError, RecursionError) as error:
        raise _no_document(error) from error


def packed(value: Any) -> bytes:
    """The encoding of a document whose maps are in order. Raises Misuse."""
    try:
        encoded: bytes = msgpack.packb(value, use_bin_type=True, strict_types=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _no_document(error) from error
    return encoded


def _no_document(error: Exception) -> Misuse:
    return Misuse(f"this cannot be part of a stored document: {error}")


def _ordered(value: Any) -> Any:
    """The value itself where it is in order as it stands: manifests and rows are long, and mostly are."""
    if isinstance(value, dict):
        keys = list(value)
        if not _TEXT.issuperset(map(type, keys)):
            odd = next(key for key in keys if type(key) is not str)
            raise TypeError(f"a document's keys are texts, not {odd!r:.80}")
        in_order = sorted(keys)
        if in_order == keys and type(value) is dict and _FLAT.issuperset(map(type, value.values())):
            return value
        return {key: item if type(item := value[key]) in _FLAT else _ordered(item) for key in in_order}
    if isinstance(value, (list, tuple)):
        if _FLAT.issuperset(map(type, value)):
            return list(value)
        return [item if type(item) in _FLAT else _ordered(item) for item in value]
    return value


def decode(packed: bytes | memoryview) -> Any:
    """The document in ``packed``. Raises ValueError for bytes that hold none, or more than one."""
    try:
        return msgpack.unpackb(packed, raw=False, use_list=True, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as error:
        raise ValueError(f"no document: {error}") from error


def digest_of(content: bytes | bytearray | memoryview) -> bytes:
    """BLAKE3-256; lets other threads run while it hashes."""
    return blake3(content).digest()


def squeeze(content: bytes | bytearray | memoryview) -> tuple[int, bytes | bytearray | memoryview]:
    """(codec, stored bytes): lz4 if the result is at least 1.1 times smaller, else the bytes themselves."""
    size = len(content)
    if size < 32:
        return RAW, content
    if size > 8 * _SAMPLE:
        view = memoryview(content)
        starts = (0, (size - _SAMPLE) // 2, size - _SAMPLE)
        sampled = sum(len(_compressed(view[start : start + _SAMPLE])) for start in starts)
        if sampled * _WORTH > len(starts) * _SAMPLE:
            return RAW, content
    packed = _compressed(content)
    return (RAW, content) if len(packed) * _WORTH > size else (LZ4, packed)


def _compressed(content: bytes | bytearray | memoryview) -> bytes:
    packed: bytes = lz4.block.compress(content, store_size=False)
    return packed


def expand(codec: int, stored: bytes | memoryview, size: int) -> bytes | memoryview:
    """The ``size`` bytes behind ``stored``. Raises ValueError for another size or codec."""
    if codec == RAW:
        raw: bytes | memoryview = stored
    elif codec == LZ4:
        if not 0 <= size < min(_MAX_RAW, _LZ4_MOST * (len(stored) + 1)):
            raise ValueError(f"an impossible size, {size}")
        try:
            raw = lz4.block.decompress(stored, uncompressed_size=size)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(f"lz4: {error}") from error
    else:
        raise ValueError(f"codec {codec} is unknown to this version")
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes where {size} were written")
    return raw
