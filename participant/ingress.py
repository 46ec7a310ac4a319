"""The ingress log: what a driver tells the system, durable before it counts.

One append-only file per lineage. A record is ``length (u32) crc32 (u32) body``; the body is a msgpack
array that starts with the record's index, 1, 2, 3, ... A record that a crash cut off at the end of the
file is not a record: it was never acknowledged, and opening removes it. A damaged record before the end
is an error that names the file and the index, never a silent end (RULES 11).

Records after a cut's position are delivered again when the system recovers to that cut.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack

from cutline.errors import Corrupt, StoreFull, StoreNotWritable

__all__ = ("IngressLog",)

_HEAD = struct.Struct("<II")
_ENOSPC = 28


class IngressLog:
    """Appends, syncs, reads back. One writer at a time: the driver's runner, under the system's lease."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b")
        end = 0
        for index, _body, stop in self._scan():
            self.last, end = index, stop
        if end < self._file.seek(0, os.SEEK_END):
            self._file.truncate(end)
            os.fsync(self._file.fileno())
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _scan(self) -> Iterator[tuple[int, list[Any], int]]:
        raw = self.path.read_bytes()
        offset, expected = 0, 1
        while offset + _HEAD.size <= len(raw):
            length, crc = _HEAD.unpack_from(raw, offset)
            stop = offset + _HEAD.size + length
            body = raw[offset + _HEAD.size : stop]
            if len(body) < length or zlib.crc32(body) != crc:
                if stop < len(raw) and len(body) == length:
                    raise Corrupt(
                        f"ingress log {self.path}: record {expected} is damaged, and records "
                        "follow it; restore "
                        "the file from a copy, or start from a savepoint, which carries its own input",
                        path=str(self.path),
                    )
                return
            record = msgpack.unpackb(body, max_bin_len=length, max_str_len=length)
            if record[0] != expected:
                raise Corrupt(f"ingress log {self.path}: record {record[0]} where {expected} should be")
            yield expected, record, stop
            offset, expected = stop, expected + 1

    def append(self, records: Sequence[Sequence[Any]]) -> int:
        """Appends bodies (without their index) and syncs once; returns the index of the last.

        Raises:
            StoreFull, StoreNotWritable: nothing of these records counts; the file is as before.
        """
        parts = []
        for number, record in enumerate(records, self.last + 1):
            body = msgpack.packb([number, *record])
            parts.append(_HEAD.pack(len(body), zlib.crc32(body)) + body)
        start = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(b"".join(parts))
            self._file.flush()
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self._forget_from(start)
            kind = StoreFull if error.errno == _ENOSPC else StoreNotWritable
            raise kind(
                f"ingress log {self.path}: {error.strerror}; the input was not taken, make "
                "room and send it again",
                path=str(self.path),
            ) from error
        self.last += len(records)
        return self.last

    def _forget_from(self, start: int) -> None:
        # A descriptor whose sync failed may claim success the next time: reopen, then cut.
        try:
            self._file.close()
        finally:
            self._file = open(self.path, "a+b")
            self._file.truncate(start)

    def after(self, index: int) -> list[list[Any]]:
        """The records behind `index`, in order."""
        return [record for number, record, _ in self._scan() if number > index]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
