"""The ingress log: what a driver tells the system, durable before it counts.

One log per lineage, in files (*segments*; `cutline.participant.ingress_segment`) that are only appended to: a
file that has its size is followed by another one, whose name is durable before anything in it counts. Records
that a crash left unsynced at the end of the last file are no records: they were never acknowledged, and
opening removes them. A damaged record that others were synced after is an error that names the file and the
place, never a silent end (RULES 11): the damage does not hide what follows it, since every record can be
found by its magic and says which sync it belongs to. What is whole and was not written with the store's key
is an error too: what it holds is going to be unpickled.

Records after a cut's position are delivered again when the system recovers to that cut. Those that no cut
needs to which it may recover are forgotten: whole files go, the oldest first, and each removal is durable
before the next one, so that a power cut never leaves a gap.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from cutline.errors import Corrupt, CutlineError, StoreFull, StoreInUse, StoreNotWritable
from cutline.storage.disk import meaning, sync, sync_folder, write_all

from .ingress_segment import MAGIC, read_segment, segment_path, segments_of
from .sealed import Sealer

__all__ = ("IngressLog", "SEGMENT_BYTES", "SPENT_BYTES")

SEGMENT_BYTES = 4 << 20
# A file that has so much that may be forgotten is followed by another one, though it is not large.
SPENT_BYTES = 64 << 10
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class IngressLog:
    """Appends, syncs, reads back, forgets. One process at a time: a lock beside the files sees to that.

    ``path``: its first file. ``key``: 32 bytes, from the store's key. For `reseal`: ``former``, keys that it
    replaces, with which records verify too; ``trust``: what was written with any other one is read.

    Raises:
        StoreInUse: another process has the log open.
        Corrupt: an acknowledged record is damaged, or a file is gone.
        NotAuthentic: a record was written by somebody who does not have the store's key.
        StoreFull, StoreNotWritable: it cannot be opened, or made.
    """

    def __init__(
        self,
        path: Path,
        key: bytes,
        *,
        patience: float = 2.0,
        former: Sequence[bytes] = (),
        trust: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        spent_bytes: int = SPENT_BYTES,
    ) -> None:
        self.path = path
        self._sealer = Sealer(MAGIC, path.stem.encode(), key, former)
        self._trusting = trust
        self._segment_bytes, self._spent_bytes = segment_bytes, spent_bytes
        self.last = 0
        # What may be forgotten, of this opening.
        self._spent = 0
        # Which record each file begins with; where the records of the last one and of the one before end; the
        # descriptor of the last one, if it may be appended to.
        self._starts: list[int] = []
        self._end = self._older_end = 0
        self._file = -1
        # Why nothing can be appended any more.
        self._broken = ""
        self._lock = -1
        try:
            self._open(patience)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, CutlineError):
                raise meaning(error, str(path), writing=True) from error
            raise

    def lock(self, path: Path, patience: float) -> int:
        """A descriptor that no other process has while this one lives."""
        return _locked(path, patience)

    @property
    def first(self) -> int:
        """The index of the first record that it can have; those before it were forgotten."""
        return self._starts[0] if self._starts else self.last + 1

    @property
    def segments(self) -> list[Path]:
        """Its files, in order."""
        return [segment_path(self.path, start) for start in self._starts]

    # -- opening ---------------------------------------------------------------------------

    def _open(self, patience: float) -> None:
        folder = self.path.parent
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = self.lock(self.path.with_suffix(".lock"), patience)
        self._starts = segments_of(self.path) or [1]
        newest = segment_path(self.path, self._starts[-1])
        self._file = os.open(newest, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.last = self._starts[0] - 1
        for record, stop in self._scan(self._starts):
            self.last, self._end = record[0], stop
        if self.last < self._starts[-1]:
            # Nothing of the newest one was ever acknowledged.
            self._end, self._older_end = 0, self._end
        if self._end < os.fstat(self._file).st_size:
            os.ftruncate(self._file, self._end)
            os.fsync(self._file)
        for each in (folder, *(each.parent for each in made)):
            sync_folder(each)

    def _scan(self, starts: Sequence[int], end: int | None = None) -> Iterator[tuple[list[Any], int]]:
        """The records of those files; `end`: where those of the last one end, if that is known."""
        expected = starts[0] if starts else 0
        for start in starts:
            path, is_last = segment_path(self.path, start), start == self._starts[-1]
            if start != expected:
                raise self._gap(expected, start)
            raw = path.read_bytes()[: end if is_last else None]
            for record, stop in read_segment(
                self._sealer, path, raw, start, is_last=is_last, trusting=self._trusting
            ):
                expected = record[0] + 1
                yield record, stop

    def _gap(self, expected: int, start: int) -> Corrupt:
        if start < expected:
            text = (
                f"{segment_path(self.path, start)} begins with record {start}, and the one before has it too"
            )
        else:
            text = f"records {expected} to {start - 1} are not there: a file is gone, or was cut"
        return Corrupt(
            f"ingress log {self.path}: {text}. Put the files back from a copy; or go on without the input"
            " that the log still holds: cutline.start(..., restore='newest') forks the newest checkpoint",
            path=str(segment_path(self.path, start)),
            record=expected,
        )

    # -- appending -------------------------------------------------------------------------

    def append(self, records: Sequence[Sequence[Any]]) -> int:
        """Appends records and syncs once; returns the index of the last.

        Raises:
            StoreFull, StoreNotWritable: nothing of these records counts; the log is as before.
        """
        if self._broken:
            raise StoreNotWritable(f"ingress log {self.path}: {self._broken}", path=str(self.path))
        first = self.last + 1
        content = b"".join(
            self._sealer.seal(msgpack.packb([number, first, *record]))
            for number, record in enumerate(records, first)
        )
        try:
            if self._file < 0 or self._is_over():
                self._begin_segment(first)
            write_all(self._file, content, self._end)
            sync(self._file)
        except OSError as error:
            self._take_back(error)
            kind = StoreFull if error.errno in _FULL else StoreNotWritable
            raise kind(
                f"ingress log {self.path}: {error.strerror}; the input was not taken, make "
                "room and send it again",
                path=str(self.path),
            ) from error
        self._end += len(content)
        self.last += len(records)
        return self.last

    def _is_over(self) -> bool:
        """Whether the newest file is to be followed by another one."""
        start = self._starts[-1]
        held = self.last - start + 1
        if held <= 0:
            return False
        spent = self._end * (min(self._spent, self.last) - start + 1) // held
        return self._end >= self._segment_bytes or spent >= self._spent_bytes

    def _begin_segment(self, first: int) -> None:
        path = segment_path(self.path, first)
        self._let_go()
        self._starts.append(first)
        self._end, self._older_end = 0, self._end
        self._file = os.open(path, _NEW, 0o600)
        # Before anything in it counts: a power cut must not take the name.
        sync_folder(path.parent)

    def _take_back(self, cause: OSError) -> None:
        """Nothing of what was just written may be there later. A descriptor whose sync has failed may claim
        success the next time, so the file is opened again for this, and no more is appended to it.
        """
        try:
            self._let_go()
            start = self._starts[-1]
            path = segment_path(self.path, start)
            if start > self.last:
                # It has no other records.
                with suppress(FileNotFoundError):
                    os.unlink(path)
                sync_folder(path.parent)
                self._starts.pop()
                self._end = self._older_end
                return
            again = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(again, self._end)
                os.fsync(again)
            finally:
                os.close(again)
        except OSError as error:
            self._broken = (
                f"{cause.strerror}, and what was written could not be taken back ({error.strerror}): whether"
                " that input counts shows when the program is started again; no other is taken until then"
            )
            raise StoreNotWritable(f"ingress log {self.path}: {self._broken}", path=str(self.path)) from cause

    def _let_go(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    # -- reading, forgetting ---------------------------------------------------------------

    def after(self, index: int) -> list[list[Any]]:
        """The records behind `index`, in order: each its index, then what was given to `append`.

        Raises:
            Corrupt: some of them were forgotten.
        """
        if index + 1 < self.first:
            raise Corrupt(
                f"ingress log {self.path} begins with record {self.first}: records {index + 1} to"
                f" {self.first - 1}, which follow the checkpoint that the system goes back to, were removed,"
                " because newer checkpoints had them behind; those are damaged now. Put them back from a"
                " copy; or go on without that input: cutline.start(..., restore=CHECKPOINT) makes a fork",
                path=str(self.path),
                record=index + 1,
            )
        behind = [start for start in self._starts if start > index + 1]
        from_here = len(self._starts) - len(behind) - 1
        records = self._scan(self._starts[max(0, from_here) :], self._end)
        return [[number, *given] for (number, _, *given), _ in records if number > index]

    def forget(self, index: int) -> int:
        """No record up to `index` will be asked for again; returns how many files went.

        Raises:
            StoreNotWritable: a file cannot be removed. Nothing that is needed is gone.
        """
        self._spent = max(self._spent, min(index, self.last))
        removed = 0
        while len(self._starts) > 1 and self._starts[1] <= self._spent + 1:
            path = segment_path(self.path, self._starts[0])
            try:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                self._starts.pop(0)
                # Before the next one goes: after a power cut there must be no gap.
                sync_folder(path.parent)
            except OSError as error:
                raise StoreNotWritable(
                    f"{path} cannot be removed: {error.strerror}", path=str(path)
                ) from error
            removed += 1
        return removed

    def reseal(self) -> None:
        """Writes all records again, with the key."""
        for path, start in zip(self.segments, self._starts, strict=True):
            is_last = start == self._starts[-1]
            raw = path.read_bytes()[: self._end if is_last else None]
            records = read_segment(self._sealer, path, raw, start, is_last=is_last, trusting=self._trusting)
            content = b"".join(self._sealer.seal(msgpack.packb(record)) for record, _ in records)
            fresh = path.with_suffix(".new")
            with open(fresh, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
            sync_folder(path.parent)
        self._let_go()

    def close(self) -> None:
        """Closes the file and lets others open it. Idempotent."""
        self._let_go()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


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
