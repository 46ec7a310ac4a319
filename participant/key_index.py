"""Which block of a large segment has the entry of a key: what a Map is read by that is not read whole.

Theory of operation. A segment of a Map is a row of pickles: a head, then *blocks*, dicts of some thousand
entries in the order of the Map. Behind them a large segment has an index, if all that is in it is plain: keys
that are found again by an equal one of the same built-in type, values that need no class of the program. A
reader of the whole segment ends before the index and needs nothing of it.

The index has a number of 32 bits for each key, which follows from the key alone, in every process. Keys whose
numbers begin alike are one *bucket*, of about a thousand; of each it has the last 16 bits of the number and
the number of the block. So one key costs one bucket and one block; of keys that are not there one in some
forty costs a block for nothing. Nothing is sorted by key: blocks stay in the order of the Map.

Only plain things are ever made of blocks that are read by key, by an unpickler that knows no names.
"""

from __future__ import annotations

import io
import pickle
import struct
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from cutline.errors import CannotRestore
from cutline.storage.unread import Unread

from .container import CHUNK
from .immutable import KEYS
from .rebuild import UNSEEN

__all__ = ("ABSENT", "Indexed", "Indexing", "indexed", "is_plain")

# Keys from which on a segment has an index.
LEAST = 2 * CHUNK
# Buckets are halved while they have more keys than this.
_BUCKET = 2048
_MOST_BITS = 16
_MOST_BLOCKS = 1 << 16
# Buckets that are read one by one; then all others are read.
_FEW = 16

_MAGIC = b"\x89CUTKEYS"
# Blocks, bits of a bucket's number, keys, removed keys, where the buckets begin, whether it is whole; magic.
_FOOT = struct.Struct("<IIQQQB7x8s")
# Bytes that are read first: they have the tables too, of a million keys.
_TAIL = 64 * 1024
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_NONE = 1 << 40
_PLAIN: frozenset[type] = frozenset((type(None), bool, int, float, str, bytes))
_TEXT, _BYTES, _WHOLE = frozenset((str,)), frozenset((bytes,)), frozenset((int, bool))
# Stands for an entry that is not there.
ABSENT: Any = object()
# Makes an error of one that came of a part, which it names.
Teller: TypeAlias = Callable[[str, Exception], Exception]
Pairs: TypeAlias = "np.ndarray[Any, np.dtype[np.uint16]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"


def is_plain(document: Mapping[Any, Any]) -> bool:
    """Whether keys and values are of built-in types that nobody can change, tuples of such, and `UNSEEN`."""
    return KEYS.issuperset(map(type, document)) and _are_plain(document.values())


def _are_plain(level: Iterable[Any]) -> bool:
    while kinds := set(map(type, level)) - _PLAIN:
        if kinds == {tuple}:
            pass
        elif kinds <= {tuple, types.FunctionType}:
            level = [value for value in level if value is not UNSEEN]
            if types.FunctionType in set(map(type, level)):
                return False
        else:
            return False
        level = [part for value in level if type(value) is tuple for part in value]
    return True


def _raw(key: Any) -> int:
    """Raises UnicodeEncodeError, OverflowError for one that no index has."""
    kind = type(key)
    if kind is str:
        return crc32(key.encode())
    if kind is bytes:
        return crc32(key)
    if key is None:
        return _NONE
    if not -(1 << 63) <= key < 1 << 63:
        raise OverflowError(key)
    return int(key) & _MASK


def _number(key: Any) -> int:
    return (_raw(key) * _MIX & _MASK) >> 32


def _numbers(keys: Collection[Any], kinds: set[type]) -> Numbers:
    """The same of many keys, of these types."""
    count = len(keys)
    if kinds <= _TEXT:
        raw = np.fromiter(map(crc32, map(str.encode, keys)), np.uint64, count)
    elif kinds <= _BYTES:
        raw = np.fromiter(map(crc32, keys), np.uint64, count)
    elif kinds <= _WHOLE:
        raw = np.fromiter(keys, np.int64, count).view(np.uint64)
    else:
        raw = np.fromiter(map(_raw, keys), np.uint64, count)
    return (raw * np.uint64(_MIX) >> np.uint64(32)).astype(np.uint32)


class Indexing:
    """Makes the index of a segment while it is written. `bare`: all values are known to be plain."""

    def __init__(self, bare: bool = False) -> None:
        self._bare = bare
        self._starts: list[int] = []
        self._end = 0
        self._gone = 0
        self._whole = False
        self._found: list[Numbers] | None = []

    def add(self, document: Any, length: int) -> None:
        """The next document of the change, and how long its pickle is."""
        if self._end:
            self._starts.append(self._end)
            self._add_block(document)
        else:
            self._whole, gone, _ = document
            self._gone = len(gone)
            if not KEYS.issuperset(map(type, gone)):
                # What it removes is read as strictly as what it sets.
                self._found = None
        self._end += length

    def _add_block(self, document: dict[Any, Any]) -> None:
        if self._found is None:
            return
        kinds = set(map(type, document))
        if not kinds <= KEYS or not (self._bare or _are_plain(document.values())):
            self._found = None
            return
        try:
            self._found.append(_numbers(document, kinds))
        except (UnicodeEncodeError, OverflowError):
            self._found = None

    def content(self) -> bytes:
        """What comes behind the last document; empty if there is no index."""
        found, blocks = self._found, len(self._starts)
        if not found or blocks > _MOST_BLOCKS:
            return b""
        numbers, sizes = np.concatenate(found), [len(each) for each in found]
        where = np.repeat(np.arange(blocks, dtype=np.uint16), sizes)
        first = (numbers >> np.uint32(16)).astype(np.uint16)
        # By radix: of 16 bits that takes a few milliseconds for a million.
        order = np.argsort(first, kind="stable")
        bits = min(_MOST_BITS, max(0, (len(numbers) // _BUCKET).bit_length()))
        edges = np.searchsorted(first[order], np.arange(1 << bits, dtype=np.uint32) << (16 - bits))
        parts = [
            np.stack([numbers[order].astype("<u2"), where[order].astype("<u2")], axis=1),
            np.array([*self._starts, self._end], "<u8"),
            np.array(sizes, "<u4"),
            np.append(edges, len(numbers)).astype("<u4"),
        ]
        foot = _FOOT.pack(blocks, bits, len(numbers), self._gone, self._end, self._whole, _MAGIC)
        return b"".join([*(part.tobytes() for part in parts), foot])


class Indexed:
    """A segment that is read by key. `told`: makes an error of what went wrong with a part of it."""

    def __init__(self, piece: Unread, foot: tuple[Any, ...], tables: bytes, told: Teller) -> None:
        self.piece = piece
        self._told = told
        blocks, bits, count, gone, buckets, whole, _ = foot
        self.blocks: int = blocks
        self.count: int = count
        self.is_whole = bool(whole)
        self._bits: int = bits
        self._index: int = buckets
        ends = (blocks + 1) * 8, (blocks + 1) * 8 + blocks * 4
        self._starts: list[int] = np.frombuffer(tables[: ends[0]], "<u8").tolist()
        self._sizes: list[int] = np.frombuffer(tables[ends[0] : ends[1]], "<u4").tolist()
        self._edges: list[int] = np.frombuffer(tables[ends[1] :], "<u4").tolist()
        self._buckets: dict[int, Pairs] = {}
        # The blocks that were read.
        self.read: dict[int, dict[Any, Any]] = {}
        self._gone: dict[Any, None] | None = None if gone else {}

    def find(self, key: Any) -> Any:
        """The value of a key, or `ABSENT`. Raises what `told` makes."""
        try:
            number = _number(key)
        except (UnicodeEncodeError, OverflowError):
            # A segment with such a key has no index.
            return ABSENT
        pairs = self._bucket(number >> (32 - self._bits))
        for block in dict.fromkeys(pairs[pairs[:, 0] == number & 0xFFFF, 1].tolist()):
            found = self.block(block).get(key, ABSENT)
            if found is not ABSENT:
                return found
        return ABSENT

    def gone(self) -> dict[Any, None]:
        """The keys that it removes."""
        if self._gone is None:
            _, gone, _ = self._loaded("the keys that it removes", 0, self._starts[0])
            self._gone = dict.fromkeys(gone)
        return self._gone

    def block(self, number: int) -> dict[Any, Any]:
        """The entries of a block."""
        known = self.read.get(number)
        if known is None:
            name = f"block {number} of {self.blocks}"
            known = self._loaded(name, self._starts[number], self._starts[number + 1])
            if type(known) is not dict or len(known) != self._sizes[number]:
                raise self._told(name, CannotRestore(f"its index speaks of {self._sizes[number]} entries"))
            self.read[number] = known
        return known

    def replay(self, items: dict[Any, Any]) -> None:
        """All that it says, over what was before."""
        if self.is_whole:
            items.clear()
        for key in self.gone():
            items.pop(key, None)
        for number in range(self.blocks):
            items.update(self.block(number))

    def _bucket(self, number: int) -> Pairs:
        if number not in self._buckets:
            if len(self._buckets) >= _FEW:
                self._read_buckets(0, len(self._edges) - 1)
            else:
                self._read_buckets(number, number + 1)
        return self._buckets[number]

    def _read_buckets(self, first: int, last: int) -> None:
        start, stop = self._edges[first], self._edges[last]
        content = self._content("the index", self._index + 4 * start, self._index + 4 * stop)
        pairs = np.frombuffer(content, "<u2").reshape(-1, 2)
        for number in range(first, last):
            self._buckets[number] = pairs[self._edges[number] - start : self._edges[number + 1] - start]

    def _content(self, what: str, start: int, stop: int) -> bytes:
        try:
            return self.piece.read(start, stop - start)
        except Exception as error:
            raise self._told(what, error) from error

    def _loaded(self, what: str, start: int, stop: int) -> Any:
        content = self._content(what, start, stop)
        try:
            return _Plain(io.BytesIO(content)).load()
        except Exception as error:
            raise self._told(what, error) from error


def indexed(piece: Unread, told: Teller) -> Indexed | None:
    """A segment by its index; None if it has none."""
    first = max(0, piece.length - _TAIL)
    try:
        tail = piece.read(first, piece.length - first)
        if len(tail) < _FOOT.size or not tail.endswith(_MAGIC):
            return None
        foot = _FOOT.unpack_from(tail, len(tail) - _FOOT.size)
        start = foot[4] + 4 * foot[2]
        tables = tail[start - first :] if start >= first else piece.read(start, piece.length - start)
    except Exception as error:
        raise told("the index", error) from error
    return Indexed(piece, foot, tables[: -_FOOT.size], told)


class _Plain(pickle.Unpickler):
    """Knows one name: that of what stands for a value."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == (UNSEEN.__module__, UNSEEN.__name__):
            return UNSEEN
        raise CannotRestore(f"it names {module}.{name}, which nothing does that is read by key")
