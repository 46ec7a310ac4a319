"""One blob of a participant's changed bytes: header, extents, a document, footer.

The content is one *stream* of bytes, cut every EXTENT bytes; each cut is stored as an extent, compressed
where it pays, and hashed as stored, so that it can be checked without being unpacked and nothing unchecked
is ever unpacked. The document comes last, because it holds the extents' digests; the footer holds the
document's. Every byte of the blob is under a digest or compared with what it must be.

A reader gets a *plan*: which parts of the stream go where in memory. An extent that is stored as it is and
goes to one place is read straight into that place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cutline.errors import BlobNotFound

from .blobs import BlobStore, corrupt
from .codec import DIGEST_SIZE, RAW, canonical, decode, digest_of, expand, squeeze

__all__ = ("EXTENT", "FORMAT", "PackReader", "PackWriter", "Wanted", "check_alone")

FORMAT = 1
EXTENT = 1 << 20

_HEADER = struct.Struct("<8sII")
_FOOTER = struct.Struct("<QQQB7s32s8s")
_START = b"\x89CUTLINE"
_END = b"ENILTUC\x89"
_NOTHING = bytes(7)
_TAIL = 64 * 1024
_SPAN = 8 * EXTENT


class Wanted(NamedTuple):
    """A part of the stream and where it goes; ``target`` has its length."""

    position: int
    target: memoryview


class PackWriter:
    """Collects the stream, then yields the blob's parts. Keeps references to what is added, no copies."""

    def __init__(self) -> None:
        self._items: list[memoryview] = []
        self.length = 0
        self.digest = b""

    def add(self, content: bytes | bytearray | memoryview) -> int:
        """Appends to the stream; returns the position."""
        view = memoryview(content)
        position = self.length
        if view.nbytes:
            self._items.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
            self.length += view.nbytes
        return position

    def parts(self, document: dict[str, Any]) -> Iterator[bytes | bytearray | memoryview]:
        """The blob, part by part; afterwards ``digest`` is the document's."""
        yield _HEADER.pack(_START, FORMAT, 0)
        offset = _HEADER.size
        table: list[list[Any]] = []
        for extent in self._extents():
            codec, stored = squeeze(extent)
            table.append([len(stored), codec, digest_of(stored)])
            offset += len(stored)
            yield stored
        packed = canonical({**document, "stream": [self.length, EXTENT, table]})
        self.digest = digest_of(packed)
        codec, stored = squeeze(packed)
        yield stored
        yield _FOOTER.pack(offset, len(stored), len(packed), codec, _NOTHING, self.digest, _END)

    def _extents(self) -> Iterator[bytes | memoryview]:
        waiting: list[memoryview] = []
        size = 0
        for item in self._items:
            start = 0
            while start < item.nbytes:
                piece = item[start : start + EXTENT - size]
                start += piece.nbytes
                size += piece.nbytes
                waiting.append(piece)
                if size == EXTENT:
                    yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
                    waiting, size = [], 0
        if waiting:
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)


class PackReader:
    """A pack's document, checked, and its stream on demand.

    ``digest`` and ``size`` are what the reference says. Raises Corrupt for a pack that is not the one
    referred to, a missing one included.
    """

    def __init__(self, blobs: BlobStore, key: str, digest: bytes, size: int | None = None) -> None:
        self._blobs = blobs
        self.key = key
        self.digest = digest
        try:
            self.size = blobs.size(key)
        except BlobNotFound as error:
            raise corrupt(key, "is missing") from error
        if size is not None and size != self.size:
            raise corrupt(key, f"has {self.size} bytes where {size} were written")
        self.document = self._read_document(digest)
        self.stream_length, self._extent, self._table = self._checked_table()
        self._offsets = [_HEADER.size]
        for stored, _, _ in self._table:
            self._offsets.append(self._offsets[-1] + stored)
        if self._offsets[-1] != self._document_offset:
            raise corrupt(key, "has extents that do not fill it")

    def _read_document(self, digest: bytes) -> dict[str, Any]:
        key, size = self.key, self.size
        if size < _HEADER.size + _FOOTER.size:
            raise corrupt(key, f"has {size} bytes, too few for a pack")
        tail_start = max(0, size - _TAIL)
        tail = self._blobs.read(key, tail_start)
        head = tail if tail_start == 0 else self._blobs.read(key, 0, _HEADER.size)
        if len(tail) != size - tail_start:
            raise corrupt(key, "is cut short")
        magic, version, reserved = _HEADER.unpack_from(head)
        offset, stored, raw, codec, padding, found, end = _FOOTER.unpack_from(tail, len(tail) - _FOOTER.size)
        if (magic, version, reserved, padding, end) != (_START, FORMAT, 0, _NOTHING, _END):
            raise corrupt(key, "does not begin and end like a pack of this format")
        if found != digest:
            raise corrupt(key, "is another pack than the one referred to")
        if offset < _HEADER.size or offset + stored + _FOOTER.size != size:
            raise corrupt(key, "has a damaged footer")
        if offset >= tail_start:
            packed: bytes | memoryview = memoryview(tail)[offset - tail_start :][:stored]
        else:
            packed = self._blobs.read(key, offset, stored)
        try:
            plain = expand(codec, packed, raw)
        except (ValueError, MemoryError, OverflowError) as error:
            raise corrupt(key, "has a damaged document") from error
        if digest_of(plain) != digest:
            raise corrupt(key, "has a damaged document")
        self._document_offset = offset
        # Its digest is right, so what is wrong from here on was written wrong.
        document: dict[str, Any] = decode(plain)
        return document

    def _checked_table(self) -> tuple[int, int, list[tuple[int, int, bytes]]]:
        try:
            length, extent, rows = self.document["stream"]
            table = [(int(stored), int(codec), bytes(digest)) for stored, codec, digest in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise corrupt(self.key, "has no table of extents") from error
        whole = extent > 0 and len(table) == -(-length // extent)
        if not whole or any(stored < 0 or len(digest) != DIGEST_SIZE for stored, _, digest in table):
            raise corrupt(self.key, "has a wrong table of extents")
        return length, extent, table

    def check_stream(self) -> None:
        """Reads and checks every extent. Raises Corrupt."""
        for first, last in self._spans(range(len(self._table))):
            self._checked_span(first, last)

    def read(self, position: int, length: int) -> bytes:
        """A part of the stream. Raises Corrupt."""
        target = bytearray(length)
        self.scatter([Wanted(position, memoryview(target))])
        return bytes(target)

    def scatter(self, plan: Sequence[Wanted]) -> None:
        """Reads parts of the stream, in ascending order and not overlapping, into memory. Raises Corrupt."""
        whole, shared = self._sorted_out(plan)
        for first, target in whole:
            self._read_straight(first, target)
        for first, last in self._spans(sorted(shared)):
            span = self._checked_span(first, last)
            for number in range(first, last):
                start = self._offsets[number] - self._offsets[first]
                stored = span[start : start + self._table[number][0]]
                self._copy_out(number, stored, shared[number])

    def _sorted_out(
        self, plan: Sequence[Wanted]
    ) -> tuple[list[tuple[int, memoryview]], dict[int, list[Wanted]]]:
        """Runs of extents that go straight to one place, and extents that are copied out of a buffer."""
        whole: list[tuple[int, memoryview]] = []
        shared: dict[int, list[Wanted]] = {}
        for position, target in plan:
            if position < 0 or position + target.nbytes > self.stream_length:
                raise corrupt(self.key, "refers to bytes that it does not have")
            done = began = 0
            while done < target.nbytes:
                number, inside = divmod(position + done, self._extent)
                size = min(self._extent - inside, target.nbytes - done)
                if size == self._raw_size(number) and self._table[number][1] == RAW:
                    if done - began >= _SPAN:
                        whole.append(((position + began) // self._extent, target[began:done]))
                        began = done
                else:
                    if began < done:
                        whole.append(((position + began) // self._extent, target[began:done]))
                    shared.setdefault(number, []).append(Wanted(inside, target[done : done + size]))
                    began = done + size
                done += size
            if began < done:
                whole.append(((position + began) // self._extent, target[began:done]))
        return whole, shared

    def _raw_size(self, number: int) -> int:
        return min(self._extent, self.stream_length - number * self._extent)

    def _read_straight(self, first: int, target: memoryview) -> None:
        got = self._blobs.read_into(self.key, self._offsets[first], target)
        if got != target.nbytes:
            raise corrupt(self.key, "is cut short")
        for start in range(0, target.nbytes, self._extent):
            number = first + start // self._extent
            stored, _, digest = self._table[number]
            if stored != self._raw_size(number):
                raise corrupt(self.key, f"has a wrong size for extent {number}")
            if digest_of(target[start : start + stored]) != digest:
                raise corrupt(self.key, f"has a damaged extent {number}")

    def _spans(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Neighbouring extents as [first, last) pieces of the file of at most _SPAN bytes."""
        first: int | None = None
        last = 0
        for number in numbers:
            if first is not None:
                if number == last and self._offsets[number + 1] - self._offsets[first] <= _SPAN:
                    last = number + 1
                    continue
                yield first, last
            first, last = number, number + 1
        if first is not None:
            yield first, last

    def _checked_span(self, first: int, last: int) -> memoryview:
        start = self._offsets[first]
        span = memoryview(self._blobs.read(self.key, start, self._offsets[last] - start))
        for number in range(first, last):
            stored, _, digest = self._table[number]
            inside = self._offsets[number] - start
            if digest_of(span[inside : inside + stored]) != digest:
                raise corrupt(self.key, f"has a damaged extent {number}")
        return span

    def _copy_out(self, number: int, stored: memoryview, wanted: list[Wanted]) -> None:
        try:
            raw = memoryview(expand(self._table[number][1], stored, self._raw_size(number)))
        except ValueError as error:
            raise corrupt(self.key, f"has a damaged extent {number}: {error}") from error
        for inside, target in wanted:
            target[:] = raw[inside : inside + target.nbytes]


def check_alone(blobs: BlobStore, key: str, digest: bytes | None = None) -> None:
    """Reads and checks every byte of one pack; without ``digest`` against the one in its own footer, which
    does not find one whole pack put in the place of another. Raises Corrupt."""
    if digest is None:
        try:
            size = blobs.size(key)
        except BlobNotFound as error:
            raise corrupt(key, "is missing") from error
        if size < _HEADER.size + _FOOTER.size:
            raise corrupt(key, f"has {size} bytes, too few for a pack")
        digest = blobs.read(key, size - len(_END) - DIGEST_SIZE, DIGEST_SIZE)
    PackReader(blobs, key, digest).check_stream()
