"""The ingress log: what a driver tells the system, durable before it counts.

One append-only file per lineage, of sealed records (`cutline.participant.sealed`); their context is the
lineage. The body of one is a msgpack array that starts with the record's index, 1, 2, 3, ..., and the index
of the first record that was synced together with it.
Records that a crash left unsynced at the end of the file are no records: they were never acknowledged,
and opening removes them. A damaged record that others were synced after is an error that names the file and
the index, never a silent end (RULES 11): the damage does not hide what follows it, since every record can be
found by its magic and says which sync it belongs to. What is whole and was not written with the store's key
is an error too: what it holds is going to be unpickled.

Records after a cut's position are delivered again when the system recovers to that cut.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack

from cutline.errors import Corrupt, StoreFull, StoreInUse, StoreNotWritable
from cutline.storage.authentic import forged

from .sealed import Sealer, sync_folder

__all__ = ("IngressLog",)

_MAGIC = b"\xc1ing"
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


class IngressLog:
    """Appends, syncs, reads back. One process at a time: a lock beside the file sees to that.

    ``key``: 32 bytes, from the store's key. For `reseal`: ``former``, keys that it replaces, with which
    records verify too; ``trust``: what was written with any other one is read.

    Raises:
        StoreInUse: another process has the log open.
        Corrupt: an acknowledged record is damaged.
        NotAuthentic: a record was written by somebody who does not have the store's key.
    """

    def __init__(
        self,
        path: Path,
        key: bytes,
        *,
        patience: float = 2.0,
        former: Sequence[bytes] = (),
        trust: bool = False,
    ) -> None:
        self.path = path
        self._sealer = Sealer(_MAGIC, path.stem.encode(), key, former)
        self._trusting = trust
        self.last = 0
        made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self.lock(path.with_suffix(".lock"), patience)
        try:
            self._file = open(path, "a+b")
            try:
                self._cut_tail()
            except BaseException:
                self._file.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise
        for folder in (path.parent, *(folder.parent for folder in made)):
            sync_folder(folder)

    def lock(self, path: Path, patience: float) -> int:
        """A descriptor that no other process has while this one lives."""
        return _locked(path, patience)

    def _cut_tail(self) -> None:
        end = 0
        for record, stop in self._scan():
            self.last, end = record[0], stop
        if end < self._file.seek(0, os.SEEK_END):
            self._file.truncate(end)
            os.fsync(self._file.fileno())

    def _scan(self) -> Iterator[tuple[list[Any], int]]:
        """Records (index, first of their sync, what was given) and where each ends."""
        raw = self.path.read_bytes()
        offset, expected = 0, 1
        while offset < len(raw):
            found = self._sealer.read(raw, offset)
            if found is None:
                self._check_rest(raw, offset, expected)
                return
            body, stop = found
            if not self._trusting and not self._sealer.is_ours(raw, body, stop):
                raise forged(f"record {expected} of the ingress log {self.path}", path=str(self.path))
            offset, record = stop, _unpacked(body)
            if record[0] != expected:
                raise Corrupt(
                    f"ingress log {self.path}: record {record[0]} where {expected} should be",
                    path=str(self.path),
                )
            yield record, offset
            expected += 1

    def _check_rest(self, raw: bytes, offset: int, expected: int) -> None:
        """What does not read at `offset` must be the end of a sync that never was."""
        at = self._sealer.next(raw, offset + 1)
        while at >= 0:
            found = self._sealer.read(raw, at)
            record = None if found is None else _unpacked(found[0])
            # A later record of the same sync may have reached the disk before this one.
            if record is not None and record[1] > expected:
                raise Corrupt(
                    f"ingress log {self.path}: record {expected} is damaged, and record {record[0]} was "
                    "acknowledged after it; restore the file from a copy, or start from a savepoint, which "
                    "carries its own input",
                    path=str(self.path),
                )
            at = self._sealer.next(raw, at + 1)

    def append(self, records: Sequence[Sequence[Any]]) -> int:
        """Appends records and syncs once; returns the index of the last.

        Raises:
            StoreFull, StoreNotWritable: nothing of these records counts; the file is as before.
        """
        first = self.last + 1
        parts = []
        for number, record in enumerate(records, first):
            body = msgpack.packb([number, first, *record])
            parts.append(self._sealer.seal(body))
        start = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(b"".join(parts))
            self._file.flush()
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self._forget_from(start)
            kind = StoreFull if error.errno in _FULL else StoreNotWritable
            raise kind(
                f"ingress log {self.path}: {error.strerror}; the input was not taken, make "
                "room and send it again",
                path=str(self.path),
            ) from error
        self.last += len(records)
        return self.last

    def _forget_from(self, start: int) -> None:
        # A descriptor whose sync failed may claim success the next time: reopen, then cut. Closing writes
        # what is still buffered, and may fail like the write did.
        try:
            self._file.close()
        except OSError as error:
            if error.errno not in _FULL:
                raise
        finally:
            self._file = open(self.path, "a+b")
            self._file.truncate(start)

    def after(self, index: int) -> list[list[Any]]:
        """The records behind `index`, in order: each its index, then what was given to `append`."""
        return [[number, *given] for (number, _, *given), _ in self._scan() if number > index]

    def reseal(self) -> None:
        """Writes all records again, with the key."""
        parts = [self._sealer.seal(msgpack.packb(record)) for record, _ in self._scan()]
        fresh = self.path.with_suffix(".new")
        with open(fresh, "wb") as file:
            file.write(b"".join(parts))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path)
        sync_folder(self.path.parent)

    def close(self) -> None:
        """Closes the file and lets others open it. Idempotent."""
        self._file.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _unpacked(body: bytes) -> list[Any]:
    size = len(body)
    record: list[Any] = msgpack.unpackb(body, strict_map_key=False, max_bin_len=size, max_str_len=size)
    return record


def _locked(path: Path, patience: float) -> int:
    """A descriptor of `path` that holds its lock; the lock ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN) or time.monotonic() >= deadline:
                os.close(descriptor)
                raise StoreInUse(
                    f"the driver that writes beside {path} still lives, even if its system seems lost (is it "
                    "paused?): end it first",
                    path=str(path),
                ) from error
        time.sleep(0.05)
