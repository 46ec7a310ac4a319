"""Where the bodies of frames go that do not fit into memory: files that nobody else sees.

A body that is moved is from then on a view of a mapped file: whoever reads a frame's body takes any
bytes-like object, so nothing else knows. The operating system keeps of it in memory what it has room for.
Files are unlinked as soon as they are open, so none outlives the process; one is gone when the last frame in
it is.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgpack

from cutline.barrier import Endpoint, Outgoing
from cutline.errors import Overloaded

__all__ = ("Spill", "SPILL_BYTES", "in_memory")

SPILL_BYTES = 4 * 1024 * 1024 * 1024
# Smaller bodies stay: the view would take as much.
_SMALLEST = 1024


def in_memory(endpoint: Endpoint) -> int:
    """Bytes of the outbox that are in memory."""
    total = 0
    for sender in endpoint.outgoing.values():
        total += sender.pending_bytes
        total += sum(len(frame.body) for frame in sender.frames if type(frame.body) is bytes)
    return total


class Spill:
    """The disk behind the outbox of one participant."""

    def __init__(self, folder: Path, limit: int = SPILL_BYTES) -> None:
        self.folder = folder
        self.limit = limit

    def used(self, endpoint: Endpoint) -> int:
        """Bytes of files that frames of the outbox still lie in."""
        files = {}
        for sender in endpoint.outgoing.values():
            for frame in sender.frames:
                body: Any = frame.body
                if type(body) is memoryview:
                    files[id(body.obj)] = len(cast(mmap.mmap, body.obj))
        return sum(files.values())

    def move(self, endpoint: Endpoint) -> int:
        """Moves what the outbox has in memory to disk; returns how many bytes that were.

        Raises:
            Overloaded: there is no room for it: the limit is reached, or the disk is full.
        """
        places: list[tuple[Outgoing, int]] = []
        bodies: list[bytes] = []
        for sender in endpoint.outgoing.values():
            for index, frame in enumerate(sender.frames):
                if type(frame.body) is bytes and len(frame.body) >= _SMALLEST:
                    places.append((sender, index))
                    bodies.append(frame.body)
        size = sum(map(len, bodies))
        if not size:
            return 0
        if self.used(endpoint) + size > self.limit:
            raise Overloaded(f"its outbox does not fit into {self.limit:,} bytes of disk")
        view = self._file(bodies)
        at = 0
        for (sender, index), body in zip(places, bodies, strict=True):
            moved = cast(bytes, view[at : at + len(body)])
            sender.frames[index] = sender.frames[index]._replace(body=moved)
            at += len(body)
        return size

    def pack(self, outgoing: Sequence[Any]) -> bytes:
        """The section "unreleased out" of an image, as msgpack: as much as there is on disk does not fit
        into memory a second time.

        Raises:
            Overloaded: the disk is full.
        """
        frames = [frame for channel in outgoing for frame in channel[5]]
        if not any(type(frame[2]) is memoryview for frame in frames):
            packed: bytes = msgpack.packb(outgoing)
            return packed
        return cast(bytes, self._file(_packed(outgoing)))

    def _file(self, parts: Iterable[bytes]) -> memoryview:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                for part in parts:
                    file.write(part)
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise Overloaded(f"its outbox cannot be kept in {self.folder}: {error.strerror}") from error


def _packed(outgoing: Sequence[Any]) -> Iterable[bytes]:
    """What `msgpack.packb` would make of it, in pieces."""
    packer = msgpack.Packer()
    array: Callable[[int], bytes] = packer.pack_array_header
    yield array(len(outgoing))
    for *head, frames in outgoing:
        yield array(len(head) + 1)
        for value in head:
            yield packer.pack(value)
        yield array(len(frames))
        for frame in frames:
            yield packer.pack(frame)
