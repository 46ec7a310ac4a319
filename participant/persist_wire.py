"""What a participant and its machine's persister process say to each other over a Unix socket.

Each packet is a length of 8 bytes, with the descriptors of new buffers beside it, and a msgpack document; a
length of 0 says "still at it". Bytes of an image are named by where they lie in shared memory
(`cutline.participant.shared_memory`): what was captured elsewhere is moved to a buffer of its own, the
*spool*, by the thread that sends, which lets the handler run meanwhile.

    -> {"greeting": 1, "store": URL}                     once
    -> {"new": [[number, size], ...], "gone": [number, ...], "job": see `Packing.job`}; without a job there
       is no answer
    <- {"pid": ...}                                      to the greeting
    <- {"ref": ..., "reason": ..., "damaged": ..., "tables": ...}
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from cutline.storage.extents import Extents, in_order
from cutline.storage.image import Content, ImageRef, Piece, Region

from .memory import Bytes
from .page_log import Picked
from .persist import PersistJob
from .shared_memory import Place

__all__ = ("GREETING", "HungUp", "Packing", "Silent", "Spool", "receive", "send", "size_of_job", "unpacked")

GREETING = 1
_LENGTH = 8
_DESCRIPTORS = 200
_AT_ONCE = 1000
_LONGEST = 1 << 30

# From how many bytes on they may lie in shared memory already.
_WORTH_LOOKING = 2048
_NOTHING: Bytes = np.empty(0, np.uint8)

# The number of a buffer, 0 for the spool; start and size in it.
Reference = Sequence[int]


class HungUp(Exception):
    """The other end is gone."""


class Silent(HungUp):
    """The other end says nothing, for as many `seconds` as the socket's timeout has."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing was heard of it for {seconds:g} s")
        self.seconds = seconds


# -- packets -----------------------------------------------------------------------------------------


def send(connection: socket.socket, document: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises HungUp."""
    body = msgpack.packb(document)
    head = len(body).to_bytes(_LENGTH, "little")
    try:
        if descriptors:
            sent = socket.send_fds(connection, [head], list(descriptors))
            head = head[sent:]
        connection.sendall(head + body)
    except OSError as error:
        raise HungUp(str(error)) from error


def receive(connection: socket.socket, descriptors: list[int] | None = None) -> dict[str, Any] | None:
    """The next document, None for a sign of life; what comes beside it is added to `descriptors`.

    Raises:
        HungUp: the other end has closed, or is silent.
    """
    try:
        head = b""
        while len(head) < _LENGTH:
            part = _head(connection, _LENGTH - len(head), descriptors)
            if not part:
                raise HungUp("the connection was closed")
            head += part
        length = int.from_bytes(head, "little")
        if not length:
            return None
        if length > _LONGEST:
            raise HungUp(f"a packet of {length} bytes")
        body = bytearray(length)
        rest = memoryview(body)
        while rest:
            got = connection.recv_into(rest)
            if not got:
                raise HungUp("the connection was closed")
            rest = rest[got:]
    except TimeoutError as error:
        raise Silent(connection.gettimeout() or 0.0) from error
    except OSError as error:
        raise HungUp(str(error)) from error
    document: dict[str, Any] = msgpack.unpackb(body, strict_map_key=False)
    return document


def _head(connection: socket.socket, size: int, descriptors: list[int] | None) -> bytes:
    if descriptors is None:
        return connection.recv(size)
    part, found, _, _ = socket.recv_fds(connection, size, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    descriptors += found
    return part


# -- a participant's end -----------------------------------------------------------------------------


class Spool:
    """Shared memory of one sender that bytes are moved to; used again for each image."""

    def __init__(self, descriptor: Callable[[int], tuple[int, int]]) -> None:
        self._descriptor = descriptor
        self._waiting: list[memoryview] = []
        self.size = 0

    def add(self, content: bytes | bytearray | memoryview) -> tuple[int, int]:
        """(start, size) of where these bytes will be."""
        view = memoryview(content).cast("B") if memoryview(content).nbytes else memoryview(b"")
        start = self.size
        if view.nbytes:
            self._waiting.append(view)
            self.size += view.nbytes
        return start, view.nbytes

    def fill(self) -> int:
        """Moves all of it; the number of the buffer that has it. Raises OSError: there is no room."""
        number, descriptor = self._descriptor(self.size)
        waiting, at = self._waiting, 0
        while waiting:
            some = waiting[:_AT_ONCE]
            written = os.pwritev(descriptor, some, at)
            at += written
            done = 0
            while done < len(some) and written >= some[done].nbytes:
                written -= some[done].nbytes
                done += 1
            del waiting[:done]
            if written:
                waiting[0] = waiting[0][written:]
        return number


class Packing:
    """One image, as it is told to the persister process.

    `place` says where in shared memory bytes lie, if they do; `spool` takes the others.
    """

    def __init__(self, place: Callable[[memoryview], Place | None], spool: Spool) -> None:
        self._place = place
        self._spool = spool
        self.used: set[int] = set()

    def job(self, job: PersistJob, key: str, most: int | None) -> dict[str, Any]:
        """The document; what it names in the spool is there when that has been filled."""
        return {
            "key": key,
            "header": dict(job.header),
            "sections": [[name, self._content(body)] for name, body in job.sections.items()],
            "pieces": [
                [piece.name, piece.digest, None if piece.content is None else self._content(piece.content)]
                for piece in job.pieces
            ],
            "regions": [[each.number, each.size, self._extents(each.extents)] for each in job.regions],
            "parent": job.parent.to_doc() if job.parent is not None else None,
            "most": most,
        }

    def _content(self, content: Any) -> list[Any]:
        parts = content if isinstance(content, list) else [content]
        return [self._bytes(part) for part in parts]

    def _bytes(self, content: bytes | bytearray | memoryview) -> Reference:
        if memoryview(content).nbytes >= _WORTH_LOOKING:
            place = self._place(memoryview(content))
            if place is not None:
                self.used.add(place.number)
                return place
        return (0, *self._spool.add(content))

    def _extents(self, given: Sequence[tuple[int, Any]]) -> dict[str, Any]:
        extents = in_order(given)
        doc: dict[str, Any] = {"at": self._numbers(extents.offsets), "long": self._numbers(extents.lengths)}
        if isinstance(extents, Picked):
            chunks = {number: self._place(extents.chunks[number].data) for number in extents.needed}
            if all(chunks.values()):
                self.used.update(place.number for place in chunks.values() if place is not None)
                rows = self._numbers(extents.rows)
                return {**doc, "rows": rows, "skipped": extents.skipped, "chunks": list(chunks.items())}
        return {**doc, "parts": [self._bytes(part) for part in extents.parts]}

    def _numbers(self, numbers: Any) -> Reference:
        return self._bytes(np.ascontiguousarray(numbers, np.int64).view(np.uint8).data)


def size_of_job(job: PersistJob) -> int:
    """Bytes that are to be written."""
    sections = sum(_length(body) for body in job.sections.values())
    pieces = sum(_length(piece.content) for piece in job.pieces if piece.content is not None)
    return sections + pieces + sum(in_order(region.extents).nbytes for region in job.regions)


def _length(content: Any) -> int:
    parts = content if isinstance(content, list) else [content]
    return sum(memoryview(part).nbytes for part in parts)


# -- the persister's end -----------------------------------------------------------------------------


def unpacked(doc: Mapping[str, Any], memory: Callable[[int], memoryview], spool: int) -> PersistJob:
    """The image that a document describes. `memory`: the buffer of a number; `spool`: that of the spool.

    Raises:
        KeyError, ValueError, TypeError: it describes none.
    """

    def view(reference: Reference) -> memoryview:
        number, start, size = reference
        if not size:
            return memoryview(b"")
        whole = memory(number or spool)
        if start < 0 or start + size > whole.nbytes:
            raise ValueError(f"a part of {size} bytes at {start} of a buffer of {whole.nbytes}")
        return whole[start : start + size]

    def numbers(reference: Reference) -> Any:
        # It may begin anywhere; numpy is slow with numbers that do.
        return np.frombuffer(view(reference), np.int64).copy()

    def content(references: Sequence[Reference]) -> Content:
        parts: list[bytes | memoryview] = [view(each) for each in references]
        return parts

    def single(references: Sequence[Reference]) -> memoryview | bytes:
        parts = [view(each) for each in references]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def extents(told: Mapping[str, Any]) -> Extents:
        offsets, lengths = numbers(told["at"]), numbers(told["long"])
        if "rows" not in told:
            return Extents(offsets, lengths, [view(part) for part in told["parts"]])
        found = {number: np.frombuffer(view(place), np.uint8) for number, place in told["chunks"]}
        chunks = [found.get(number, _NOTHING) for number in range(max(found, default=-1) + 1)]
        return Picked(chunks, numbers(told["rows"]), (offsets, lengths), told["skipped"])

    return PersistJob(
        epoch=0,
        checkpoint=0,
        key=doc["key"],
        header=doc["header"],
        sections={name: content(body) for name, body in doc["sections"]},
        pieces=[
            Piece(name, digest, None if body is None else single(body))
            for name, digest, body in doc["pieces"]
        ],
        regions=[Region(number, size, extents(told)) for number, size, told in doc["regions"]],
        parent=ImageRef.from_doc(doc["parent"]) if doc["parent"] is not None else None,
        fold=doc["most"] is not None,
    )
