"""Where the bodies of frames go that do not fit into memory: files that nobody else sees.

A body that is moved is from then on a view of a mapped file: whoever reads a frame's body takes any
bytes-like object, so nothing else knows. The operating system keeps of it in memory what it has room for.
Files are unlinked as soon as they are open, so none outlives the process; one is gone when the last frame in
it is.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

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
