"""Long pieces in parts, so that what did not change of a piece is not written again.

Theory of operation. The Pickler gives out a stream in chunks: frames, which end at the first opcode after
64 KiB, and the content of large strings and bytes as it is. A part is whole chunks, as many as `size` takes;
chunks of more than twice that are sliced. All boundaries follow from what comes before them, so something
appended changes the last part alone, and an edit that keeps lengths changes the part in which it is. An edit
that does not keep them mostly changes no more: the frame after the next one often begins at the same opcode
again, which slices of a fixed size never would.

A part is hashed as it comes, and kept only if it is not the one that is known: a stream that did not change
takes no memory, and memory that is touched first costs three times what pickling does. That hash is xxh3-128
with a secret seed (see `blocks`); what is kept gets the digest of the image.

`size` grows with the stream, one capture later, so that a piece has at most some 256 parts. It changes only
when it is off by a factor of four: a change writes the piece whole once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from blake3 import blake3
from xxhash import xxh3_128

__all__ = ("SMALLEST", "Collector", "Cutter", "Cutting", "Part", "digest_of", "part_size")

# Bytes of a part; about a frame of the Pickler.
SMALLEST = 64 * 1024
_PARTS = 128
_OFF = 4
# Bytes that are hashed without giving the GIL away: from 100,000 on xxhash would.
_AT_ONCE = 96 * 1024
_NONE: Mapping[str, Any] = MappingProxyType({})


class Part(NamedTuple):
    """Some of a stream. `known`: it is what was known, and its `chunks` are not kept. `quick`: the quick
    hash; a stream that is one small part has none.
    """

    quick: bytes
    length: int
    known: bool
    chunks: Sequence[bytes | memoryview]


def part_size(length: int, before: int, smallest: int = SMALLEST) -> int:
    """The size of the parts of a stream of `length` bytes whose parts had the size `before`."""
    wanted = smallest
    while wanted * _PARTS < length:
        wanted *= 2
    return before if wanted < before * _OFF and before < wanted * _OFF else wanted


class Cutting:
    """How the streams of one capture are cut. `sizes`: of the parts of those that had several before;
    `known`: the quick hashes of parts, by stream, that need not be kept.
    """

    def __init__(
        self,
        seed: int,
        smallest: int = SMALLEST,
        sizes: Mapping[str, int] = _NONE,
        known: Mapping[str, Sequence[bytes]] = _NONE,
    ) -> None:
        self._seed, self._sizes, self._known = seed, sizes, known
        self._collector = Collector(seed, smallest)

    def begin(self, name: str) -> Cutter | Collector:
        """What takes the stream of that name; those of before are over."""
        size = self._sizes.get(name)
        if size is None:
            self._collector.begin()
            return self._collector
        return Cutter(size, self._seed, self._known.get(name, ()))


class Collector:
    """A file for a Pickler: a stream of which nobody knows how long it will be is cut when it is over.

    It takes one stream after the other.
    """

    def __init__(self, seed: int, smallest: int) -> None:
        self._seed, self._smallest = seed, smallest
        self.begin()

    def begin(self) -> None:
        """A stream begins; one before may have been left off."""
        self._chunks: list[bytes] = []

    def write(self, chunk: Any) -> None:
        """The next bytes of the stream."""
        self._chunks.append(chunk if type(chunk) is bytes else bytes(chunk))

    def parts(self) -> list[Part]:
        """All of them, when the stream is over; at least one."""
        chunks = self._chunks
        if len(chunks) == 1 and len(chunks[0]) <= self._smallest:
            return [Part(b"", len(chunks[0]), False, chunks)]
        length = sum(map(len, chunks))
        cutter = Cutter(part_size(length, self._smallest, self._smallest), self._seed)
        for chunk in chunks:
            cutter.write(chunk)
        return cutter.parts()


class Cutter:
    """A file for a Pickler that cuts a stream into parts, each but the last one of at least `size` bytes.

    `known`: the quick hashes of the parts that it may have; made with the same `seed`.
    """

    def __init__(self, size: int, seed: int, known: Sequence[bytes] = ()) -> None:
        self._size, self._seed, self._known = size, seed, known
        self._parts: list[Part] = []
        self._begin()

    def _begin(self) -> None:
        self._hash = xxh3_128(seed=self._seed)
        self._chunks: list[bytes | memoryview] = []
        self._length = 0

    def write(self, chunk: Any) -> None:
        """The next bytes of the stream."""
        # What is not bytes (a bytearray of the state) is copied before anybody can change it.
        whole: bytes = chunk if type(chunk) is bytes else bytes(chunk)
        if len(whole) <= 2 * self._size:
            self._add(whole)
            return
        view = memoryview(whole)
        for start in range(0, len(whole), self._size):
            self._add(view[start : start + self._size])

    def _add(self, some: bytes | memoryview) -> None:
        if self._length >= self._size:
            self._end()
        view = memoryview(some)
        for start in range(0, len(some), _AT_ONCE):
            self._hash.update(view[start : start + _AT_ONCE])
        self._chunks.append(some)
        self._length += len(some)

    def _end(self) -> None:
        quick, number = self._hash.digest(), len(self._parts)
        known = number < len(self._known) and self._known[number] == quick
        self._parts.append(Part(quick, self._length, known, () if known else self._chunks))
        self._begin()

    def parts(self) -> list[Part]:
        """All of them, when the stream is over; at least one."""
        if self._length or not self._parts:
            self._end()
        return self._parts


def digest_of(chunks: Sequence[bytes | memoryview]) -> bytes:
    """BLAKE3-256 over all of them."""
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
    digest: bytes = hasher.digest()
    return digest
