"""One blob of a participant's changed bytes: header, extents, a document, footer.

The content is one *stream* of bytes, cut every EXTENT bytes; each cut is stored as an extent, compressed
where it pays, and hashed as stored, so that it can be checked without being unpacked and nothing unchecked
is ever unpacked. The document comes last, because it holds the extents' digests; the footer holds the
document's. Every byte of the blob is under a digest or compared with what it must be.

A reader gets a *plan*: which parts of the stream go where in memory. An extent that is stored as it is and
goes to one place is read straight into that place.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cutline.errors import BlobNotFound

from .blobs import BlobStore, corrupt
from .codec import DIGEST_SIZE, RAW, canonical, decode, digest_of, expand, squeeze
from .runs import Runs, Spans, shown
from .scatter import Memory, Share, Wanted, copy_out, shares

__all__ = (
    "EXTENT",
    "FORMAT",
    "Fill",
    "PackReader",
    "PackWriter",
    "Task",
    "WORKERS",
    "check_alone",
    "fetched",
    "perform",
)

FORMAT = 1
EXTENT = 1 << 20

_HEADER = struct.Struct("<8sII")
_FOOTER = struct.Struct("<QQQB7s32s8s")
_START = b"\x89CUTLINE"
_END = b"ENILTUC\x89"
_NOTHING = bytes(7)
_TAIL = 64 * 1024
_SPAN = 8 * EXTENT
# Reads at once, and from how many bytes on that is worth threads. A disk of this machine answers as fast as
# cores check what it gives: more threads than those only take turns.
WORKERS = 4
_NEAR = max(2, min(WORKERS, os.cpu_count() or 1))
_MUCH = 4 * EXTENT


# Fills memory with the part of something that begins at a position.
Fill: TypeAlias = Callable[[int, Memory], None]


class Drawn(NamedTuple):
    """A part of the stream that is made only when it is written."""

    length: int
    fill: Fill


def _prepare(extent: bytes | memoryview) -> tuple[int, bytes | bytearray | memoryview, bytes]:
    codec, stored = squeeze(extent)
    return codec, stored, digest_of(stored)


class PackWriter:
    """Collects the stream, then yields the blob's parts. Keeps references to what is added, no copies."""

    def __init__(self) -> None:
        self._items: list[memoryview | Drawn] = []
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

    def draw(self, length: int, fill: Fill) -> int:
        """Appends what ``fill`` makes when it is written, a part at a time; returns the position."""
        position = self.length
        if length:
            self._items.append(Drawn(length, fill))
            self.length += length
        return position

    def parts(self, document: dict[str, Any]) -> Iterator[bytes | bytearray | memoryview]:
        """The blob, part by part; afterwards ``digest`` is the document's."""
        yield _HEADER.pack(_START, FORMAT, 0)
        offset = _HEADER.size
        table: list[list[Any]] = []
        for codec, stored, digest in self._prepared():
            table.append([len(stored), codec, digest])
            offset += len(stored)
            yield stored
        packed = canonical({**document, "stream": [self.length, EXTENT, table]})
        self.digest = digest_of(packed)
        codec, stored = squeeze(packed)
        yield stored
        yield _FOOTER.pack(offset, len(stored), len(packed), codec, _NOTHING, self.digest, _END)

    def _prepared(self) -> Iterator[tuple[int, bytes | bytearray | memoryview, bytes]]:
        """The extents as they are stored; where there are many, the next ones are compressed and hashed while
        those before are written."""
        if self.length < _MUCH:
            yield from map(_prepare, self._extents())
            return
        with ThreadPoolExecutor(1, thread_name_prefix="cutline-hash") as pool:
            ahead: deque[Future[tuple[int, bytes | bytearray | memoryview, bytes]]] = deque()
            for extent in self._extents():
                ahead.append(pool.submit(_prepare, extent))
                if len(ahead) > WORKERS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _views(self) -> Iterator[memoryview]:
        for item in self._items:
            if isinstance(item, memoryview):
                yield item
                continue
            for start in range(0, item.length, _SPAN):
                target = np.empty(min(_SPAN, item.length - start), np.uint8)
                item.fill(start, target)
                yield memoryview(target.data)

    def _extents(self) -> Iterator[bytes | memoryview]:
        waiting: list[memoryview] = []
        size = 0
        for item in self._views():
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


class Fetched(NamedTuple):
    """The ends of a blob, as read; what they say is not checked."""

    size: int
    head: bytes
    tail: bytes


def fetched(blobs: BlobStore, keys: Sequence[str]) -> list[Fetched | None]:
    """The ends of several packs, read at once where a read is a journey; None for one that is missing."""

    def ends(key: str) -> Fetched | None:
        try:
            size = blobs.size(key)
            start = max(0, size - _TAIL)
            tail = blobs.read(key, start)
            return Fetched(size, tail if start == 0 else blobs.read(key, 0, _HEADER.size), tail)
        except BlobNotFound:
            return None

    if len(keys) > 1 and blobs.far:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="cutline-read") as pool:
            return list(pool.map(ends, keys))
    return [ends(key) for key in keys]


class Task(NamedTuple):
    """A piece of reading that needs no other, and how many stored bytes it reads."""

    size: int
    run: Callable[[], None]


def perform(blobs: BlobStore, tasks: Sequence[Task]) -> None:
    """Reads: several pieces at once where there is much to read, so that reading, checking and expanding
    overlap. As much memory is taken at once as the pieces on their way have. Raises what the first raised."""
    total = sum(task.size for task in tasks)
    if len(tasks) < 2 or not (blobs.far or total >= _MUCH):
        for task in tasks:
            task.run()
        return
    with ThreadPoolExecutor(WORKERS if blobs.far else _NEAR, thread_name_prefix="cutline-read") as pool:
        going = [pool.submit(task.run) for task in tasks]
        try:
            for each in going:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class PackReader:
    """A pack's document, checked, and its stream on demand.

    ``digest`` and ``size`` are what the reference says; ``fetched``, if given, its ends as read before.
    Raises Corrupt for a pack that is not the one referred to, a missing one included.
    """

    def __init__(
        self,
        blobs: BlobStore,
        key: str,
        digest: bytes,
        size: int | None = None,
        ends: Fetched | None = None,
    ) -> None:
        self._blobs = blobs
        self._read_into: Callable[[int, memoryview], int] = partial(blobs.read_into, key)
        self.key = key
        self.digest = digest
        ends = ends or fetched(blobs, [key])[0]
        if ends is None:
            raise corrupt(key, "is missing")
        self.size = ends.size
        if size is not None and size != self.size:
            raise corrupt(key, f"has {self.size} bytes where {size} were written")
        self.document = self._read_document(digest, ends)
        self.stream_length, self._extent, self._table = self._checked_table()
        self._offsets = [_HEADER.size]
        for stored, _, _ in self._table:
            self._offsets.append(self._offsets[-1] + stored)
        if self._offsets[-1] != self._document_offset:
            raise corrupt(key, "has extents that do not fill it")
        self._kept: tuple[int, memoryview] | None = None

    def _read_document(self, digest: bytes, ends: Fetched) -> dict[str, Any]:
        key, size, head, tail = self.key, *ends
        tail_start = max(0, size - _TAIL)
        if size < _HEADER.size + _FOOTER.size:
            raise corrupt(key, f"has {size} bytes, too few for a pack")
        if len(tail) != size - tail_start or len(head) < _HEADER.size:
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

    def hold(self) -> bool:
        """From now on the stream can be read whoever deletes the blob, if this is true. Raises Corrupt."""
        try:
            held = self._blobs.hold(self.key)
        except BlobNotFound as error:
            raise corrupt(self.key, "is missing") from error
        if held is not None:
            self._read_into = held.read_into
        return held is not None

    def check_stream(self) -> None:
        """Reads and checks every extent. Raises Corrupt."""
        for first, last in self._spans(range(len(self._table))):
            self._checked_span(first, last)

    def read(self, position: int, length: int) -> bytes:
        """A part of the stream. Raises Corrupt."""
        target = np.empty(length, np.uint8)
        if length:
            self.scatter([Wanted(target, Runs.of([(position, 0, length)]))])
        return target.tobytes()

    def scatter(self, plan: Sequence[Wanted]) -> None:
        """Reads parts of the stream into memory, one after the other, and keeps the last extent: who reads
        on from there next does not read it again. Raises Corrupt."""
        found = self._shares(plan)
        if self._kept is not None:
            for share in found.pop(self._kept[0], ()):
                copy_out(share, self._kept[1])
        if not found:
            return
        last = max(found)
        ahead = found.pop(last)
        for task in self._tasks(found):
            task.run()
        stored = self._checked_span(last, last + 1)
        self._kept = last, self._expanded(last, stored)
        for share in ahead:
            copy_out(share, self._kept[1])

    def tasks(self, plan: Sequence[Wanted]) -> list[Task]:
        """The same in pieces that may be run at once, in any order. Raises Corrupt, and so do the pieces."""
        return self._tasks(self._shares(plan))

    def whole_extents(self, runs: Runs, parts: Runs) -> Runs:
        """Of runs what lies in extents of which any of the ``parts`` is wanted: it is read anyway."""
        touched = np.zeros(len(self._table) + 1, np.bool_)
        first, last = parts.positions // self._extent, (parts.positions + parts.lengths - 1) // self._extent
        touched[first] = touched[last] = True
        for start, stop in zip(first.tolist(), last.tolist(), strict=True):
            if stop - start > 1:
                touched[start:stop] = True
        edges = np.diff(np.concatenate([[0], touched.view(np.int8), [0]]))
        starts, stops = np.flatnonzero(edges > 0) * self._extent, np.flatnonzero(edges < 0) * self._extent
        # By positions in the stream here: where the runs go, is what is to be found.
        inside, _ = shown(Runs(runs.offsets, runs.positions, runs.lengths), Spans(starts, stops))
        return Runs(inside.offsets, inside.positions, inside.lengths)

    def _shares(self, plan: Sequence[Wanted]) -> dict[int, list[Share]]:
        for _, runs in plan:
            wrong = len(runs.positions) and (
                int(runs.positions.min()) < 0
                or int((runs.positions + runs.lengths).max()) > self.stream_length
            )
            if wrong:
                raise corrupt(self.key, "refers to bytes that it does not have")
        return shares(plan, self._extent)

    def _tasks(self, found: dict[int, list[Share]]) -> list[Task]:
        tasks: list[Task] = []
        shared: list[int] = []
        straight: list[tuple[int, Memory, int, int]] = []  # first extent, target, [offset, stop)
        for number in sorted(found):
            place = self._straight(number, found[number])
            if place is None:
                shared.append(number)
                continue
            target, offset = place
            stop = offset + self._raw_size(number)
            if straight:
                first, into, start, end = straight[-1]
                reached = first + (end - start) // self._extent
                follows = into is target and end == offset and reached == number
                if follows and stop - start <= _SPAN:
                    straight[-1] = first, into, start, stop
                    continue
            straight.append((number, target, offset, stop))
        for first, target, start, stop in straight:
            view = memoryview(target.data)[start:stop]
            tasks.append(Task(stop - start, partial(self._read_straight, first, view)))
        for first, last in self._spans(shared):
            size = self._offsets[last] - self._offsets[first]
            tasks.append(Task(size, partial(self._copy_span, first, last, found)))
        return tasks

    def _straight(self, number: int, found: list[Share]) -> tuple[Memory, int] | None:
        """Where an extent goes as it is stored, if it goes to one place."""
        if self._table[number][1] != RAW or len(found) != 1 or len(found[0].runs.lengths) != 1:
            return None
        target, runs = found[0]
        return (target, int(runs.offsets[0])) if int(runs.lengths[0]) == self._raw_size(number) else None

    def _raw_size(self, number: int) -> int:
        return min(self._extent, self.stream_length - number * self._extent)

    def _read_straight(self, first: int, target: memoryview) -> None:
        got = self._read_into(self._offsets[first], target)
        if got != target.nbytes:
            raise corrupt(self.key, "is cut short")
        for start in range(0, target.nbytes, self._extent):
            number = first + start // self._extent
            stored, _, digest = self._table[number]
            if stored != self._raw_size(number):
                raise corrupt(self.key, f"has a wrong size for extent {number}")
            if digest_of(target[start : start + stored]) != digest:
                raise corrupt(self.key, f"has a damaged extent {number}")

    def _copy_span(self, first: int, last: int, found: dict[int, list[Share]]) -> None:
        span = self._checked_span(first, last)
        for number in range(first, last):
            start = self._offsets[number] - self._offsets[first]
            raw = self._expanded(number, span[start : start + self._table[number][0]])
            for share in found[number]:
                copy_out(share, raw)

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
        span = memoryview(np.empty(self._offsets[last] - start, np.uint8).data)
        if span.nbytes and self._read_into(start, span) != span.nbytes:
            raise corrupt(self.key, "is cut short")
        for number in range(first, last):
            stored, _, digest = self._table[number]
            inside = self._offsets[number] - start
            if digest_of(span[inside : inside + stored]) != digest:
                raise corrupt(self.key, f"has a damaged extent {number}")
        return span

    def _expanded(self, number: int, stored: memoryview) -> memoryview:
        try:
            return memoryview(expand(self._table[number][1], stored, self._raw_size(number)))
        except ValueError as error:
            raise corrupt(self.key, f"has a damaged extent {number}: {error}") from error


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
