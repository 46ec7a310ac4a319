"""A file of lines that has each emitted value once, whatever is killed or loses its power when.

Beside the file lies a *journal*, ``PATH.cutline``. What is to be added, and the numbers that come with it, is
written there and synced before the file is touched. Whoever opens the file next finds the last entry and adds
what of it is not there: lines that somebody has read are never taken back, and none comes twice.

The journal holds a lock while the file is open, so that a second system, or a coordinator that was stopped
and wakes up, does not write beside the first. It is replaced when it has grown, and whenever it is opened:
what was read in it is durable before the file is changed, even if its last sync had failed.

People may change the file. As long as the last entry is known to be in it, adding goes on at its end,
whatever that is; so it does in a new file, if it was moved away. Where a death in the middle of an entry and
a change by a person come together, nobody can tell what of the entry is there, and that is an error which
says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from cutline.errors import OutputRefused, StoreInUse

from .disk import meaning, sync, sync_folder, write_all
from .sinks import Origin, Record

__all__ = ("JOURNAL_MAX", "LineFile")

# Bytes of a journal above which a new one is begun.
JOURNAL_MAX = 4 * 1024 * 1024
_MAGIC = b"\xc1out"
_HEAD = struct.Struct("<4sII")
_VERSION = 1


class _Entry(NamedTuple):
    """Bytes that are to be in the file, from a place on."""

    at: int
    data: bytes

    @property
    def end(self) -> int:
        return self.at + len(self.data)


class _Read(NamedTuple):
    """What a journal says: the numbers, how long the file is, and the entry that may be incomplete."""

    numbers: dict[Origin, int]
    end: int | None
    open: _Entry | None


class LineFile:
    """See the module's head. A `cutline.storage.sinks.Sink`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path.with_name(f"{path.name}.cutline")
        self.numbers: dict[Origin, int] = {}
        self.news: list[str] = []
        self._journal = -1
        # Bytes of the journal, and how many of them were synced before the last note.
        self._written = 0
        self._synced = 0
        self._file = -1
        self._end = 0

    # -- opening -------------------------------------------------------------------------------

    def open(self) -> dict[Origin, int]:
        """See `Sink.open`.

        Raises:
            StoreInUse: another system has it open.
            StoreFull, StoreNotWritable, StorageError: it cannot be written.
            OutputRefused: the journal is damaged, or a newer Cutline's, or the file was changed in the middle
                of an entry.
        """
        self.close()
        try:
            with self._meant(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._meant(self.place):
                self._journal = self._locked()
                found = self._read()
                # Durable before the file is touched, and with nothing behind it.
                self._renew(found)
            with self._meant(self.path):
                self._mend(found)
        except BaseException:
            self.close()
            raise
        return dict(self.numbers)

    @contextlib.contextmanager
    def _meant(self, place: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise meaning(error, str(place), writing=True) from error

    def _locked(self) -> int:
        """The journal, locked, and still the one of that name."""
        while True:
            descriptor = os.open(self.place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(self.place, descriptor):
                    return descriptor
            except BlockingIOError as error:
                os.close(descriptor)
                raise StoreInUse(
                    f"{self.path} is written by another system, or by a coordinator of this one that stands "
                    "still: one at a time writes a file; end it, or give this system a file of its own",
                    path=str(self.path),
                ) from error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _read(self) -> _Read:
        raw = _content(self._journal)
        numbers: dict[Origin, int] = {}
        end: int | None = None
        entry: _Entry | None = None
        at = 0
        while at < len(raw):
            found = _record(raw, at)
            if found is None:
                self._check_rest(raw, at)
                break
            doc, at = found
            if doc.get("version", _VERSION) > _VERSION:
                raise OutputRefused(
                    f"{self.place} was written by a newer Cutline (its version is {doc['version']}, this one "
                    f"reads {_VERSION}): go on with that one",
                    path=str(self.place),
                )
            for lineage, participant, birth, number in doc.get("numbers", ()):
                numbers[Origin(lineage, participant, birth)] = number
            if "data" in doc:
                entry = _Entry(doc["at"], doc["data"])
                end = entry.end
            elif "end" in doc:
                # Of a head, or of what is surely in the file.
                entry, end = None, doc["end"]
        return _Read(numbers, end, entry)

    def _check_rest(self, raw: bytes, at: int) -> None:
        """What does not read must be the end of an entry that was never finished."""
        is_damage = at == 0
        after = raw.find(_MAGIC, at + 1)
        while after >= 0 and not is_damage:
            found = _record(raw, after)
            # A later note of the same sync may have reached the disk before this one.
            is_damage = found is not None and found[0].get("synced", 0) > at
            after = raw.find(_MAGIC, after + 1)
        if is_damage:
            raise OutputRefused(
                f"{self.place} is damaged: it says what of the output is in {self.path} already, and without "
                "it lines could come twice. Bring it back from a copy, or compare by hand what is there",
                path=str(self.place),
            )

    def _renew(self, found: _Read) -> None:
        """A journal with what counts of the old one takes its place."""
        rows = [[*origin, number] for origin, number in found.numbers.items()]
        head: dict[str, Any] = {"version": _VERSION, "numbers": rows}
        if found.open is None and found.end is not None:
            head["end"] = found.end
        parts = [_packed(head)]
        if found.open is not None:
            parts.append(_packed({"at": found.open.at, "data": found.open.data}))
        fresh = self.place.with_name(f"{self.place.name}.new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, b"".join(parts), 0)
            os.fsync(descriptor)
            os.replace(fresh, self.place)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self._journal)
        self._journal = descriptor
        self._written = self._synced = sum(map(len, parts))
        sync_folder(self.place.parent)
        self.numbers = found.numbers

    def _mend(self, found: _Read) -> None:
        """Opens the file, with the last entry in it, whole."""
        was_there = self.path.exists()
        size = self._open_file(was_there)
        entry = found.open
        if entry is None:
            if found.end is not None and found.end != size:
                self._changed(size)
            # What lines are added to must not be shorter after a power cut.
            sync(self._file)
            self._end = size
            return
        if not was_there or (size == 0 and entry.at > 0):
            # Nothing of it is in a new file.
            entry = _Entry(0, entry.data)
            self._note({"at": 0, "data": entry.data})
            self._sync_journal()
            if found.open is not None and found.open.at:
                self._changed(0)
        self._end = max(entry.end, size)
        self._check_like(entry, size)
        write_all(self._file, entry.data, entry.at)
        sync(self._file)
        self._note({"end": self._end})

    def _check_like(self, entry: _Entry, size: int) -> None:
        """What is there of the entry is what a death, or a power cut, leaves of it."""
        there = os.pread(self._file, len(entry.data), entry.at)
        whole = len(there) == len(entry.data)
        alike = all(a in (b, 0) for a, b in zip(there, entry.data, strict=False))
        if size >= entry.at and alike and (size <= entry.end or (whole and there == entry.data)):
            return
        raise OutputRefused(
            f"{self.path} was changed after a death in the middle of adding lines to it, so nobody can tell "
            f"which of them are there. Put it back as it was (its first {entry.at:,} bytes; what follows is "
            "added again), or move it away: a new file begins with those lines",
            path=str(self.path),
        )

    def _changed(self, size: int) -> None:
        self.news.append(
            f"{self.path} is not as it was left: somebody has changed, replaced or removed it; lines are "
            f"added behind its {size:,} bytes"
        )

    # -- adding --------------------------------------------------------------------------------

    def publish(self, records: Sequence[Record]) -> None:
        """See `Sink.publish`.

        Raises:
            StoreFull, StoreNotWritable, StorageError: some of it may be there; `open` completes it.
        """
        records = [record for record in records if record.number > self.numbers.get(record.origin, 0)]
        if not records:
            return
        with self._meant(self.path):
            self._stay()
            last = os.pread(self._file, 1, self._end - 1) if self._end else b"\n"
        start = b"" if last == b"\n" else b"\n"
        entry = _Entry(self._end, start + b"".join(record.body for record in records))
        numbers = {record.origin: record.number for record in records}
        with self._meant(self.place):
            rows = [[*origin, number] for origin, number in numbers.items()]
            self._note({"at": entry.at, "data": entry.data, "numbers": rows})
            self._sync_journal()
        self.numbers.update(numbers)
        with self._meant(self.path):
            write_all(self._file, entry.data, entry.at)
            sync(self._file)
        self._end = entry.end
        with self._meant(self.place):
            # Not synced: it only says that a change from now on is a person's.
            self._note({"end": self._end})
            if self._written > JOURNAL_MAX:
                self._renew(_Read(self.numbers, self._end, None))

    def _stay(self) -> None:
        """The file as it is now; another one than it was if somebody has put one in its place."""
        if _same(self.path, self._file):
            size = os.fstat(self._file).st_size
            if size != self._end:
                self._changed(size)
                self._end = size
            return
        os.close(self._file)
        self._file = -1
        self._end = self._open_file(False)
        self._changed(self._end)

    def _open_file(self, was_there: bool) -> int:
        """Its size."""
        # Without waiting for whoever is at the other end of a pipe.
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise OutputRefused(
                f"{self.path} is no regular file, so what is in it cannot be told", path=str(self.path)
            )
        try:
            # Under another name (a link, another mount) it has another journal, whose lock keeps nobody out.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreInUse(
                f"{self.path} is written as another sink, under another of its names, or locked by another "
                "program: one at a time writes a file; give each sink a file of its own",
                path=str(self.path),
            ) from error
        if not was_there:
            sync_folder(self.path.parent)
        return found.st_size

    def _note(self, doc: dict[str, Any]) -> None:
        packed = _packed({**doc, "synced": self._synced})
        write_all(self._journal, packed, self._written)
        self._written += len(packed)

    def _sync_journal(self) -> None:
        sync(self._journal)
        self._synced = self._written

    def close(self) -> None:
        """See `Sink.close`."""
        for descriptor in (self._file, self._journal):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._journal = -1


def _packed(doc: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(doc)
    return _HEAD.pack(_MAGIC, len(body), zlib.crc32(body)) + body


def _record(raw: bytes, at: int) -> tuple[dict[str, Any], int] | None:
    """The record there, and where it ends; None if there is no whole one."""
    if at + _HEAD.size > len(raw):
        return None
    magic, length, crc = _HEAD.unpack_from(raw, at)
    start = at + _HEAD.size
    body = raw[start : start + length]
    if magic != _MAGIC or len(body) != length or zlib.crc32(body) != crc:
        return None
    doc: dict[str, Any] = msgpack.unpackb(body, max_bin_len=length, max_str_len=length)
    return doc, start + length


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts = []
    at = 0
    while at < size:
        part = os.pread(descriptor, size - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _same(path: Path, descriptor: int) -> bool:
    """Whether that name still means the open file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
