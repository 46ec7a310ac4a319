"""The files that steps are in: one for each time between two captures of a participant.

``steps/<lineage>/<participant>/<epoch>-<after>-<birth>-<random>.steps`` in the folder of the system.
`after` is the checkpoint that the participant captured last before; of a newborn, the newest one there
was. Whoever goes back to checkpoint `k` can need what was written after the capture of `k` or of a later
one, and nothing else.

A file consists of sealed records (`cutline.participant.sealed`). The first one is its *head*, which has
the *fence*: for each file of the participant that was there when this epoch began, how long it counted,
and whether anybody had looked at what is in it. A process of an older epoch that was taken for dead and
lives may go on to write to its own file; nobody who reads the new one reads what it wrote since. All
others are a step each: what it is recognised by, and its result. Each was synced before the next one was
written, so only the last one of a file can be torn, and no file is written to by two processes.

Behind the records there may be zeros: room that was written ahead. To sync bytes in room that is there takes
a third less time than to sync a file that has grown, whose new length has to be stored too. Closing gives
the rest of the room back; a process that is killed leaves it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from cutline.errors import Corrupt, NewerFormat
from cutline.storage.authentic import forged
from cutline.storage.blobs import encode_name
from cutline.storage.disk import sync, sync_folder, write_all

from .sealed import MAC, Sealer

__all__ = (
    "FOLDER",
    "Entry",
    "Fence",
    "Found",
    "Segment",
    "StepFile",
    "claim",
    "folder_of",
    "forget",
    "length_of",
    "read_segments",
    "reseal",
    "segments_in",
)

FOLDER = "steps"
_MAGIC = b"\xc1stp"
_SUFFIX, _CLAIM = ".steps", ".claim"
FORMAT = 1
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Bytes of room: what is written ahead first, and at most, twice as much each time.
_ROOM, ROOM_MOST = 16 << 10, 256 << 10
# By name: the length that counts, and whether whoever wrote that had read all of it.
Fence = dict[str, tuple[int, bool]]
_ALL = sys.maxsize, False


class Entry(NamedTuple):
    """One step: what it is recognised by, its result."""

    key: bytes
    result: bytes


class Segment(NamedTuple):
    """A file of steps, by its name."""

    epoch: int
    after: int
    birth: int
    name: str


class Found(NamedTuple):
    """What is in a file; `head` is empty where not even that was written."""

    head: Mapping[str, Any]
    entries: list[Entry]
    # Where the last whole record ends.
    stop: int


def folder_of(home: Path, lineage: str, participant: str) -> Path:
    """Where the steps of a participant are."""
    return home / FOLDER / encode_name(lineage) / encode_name(participant)


def segments_in(folder: Path) -> list[Segment]:
    """The files there, in the order of their making."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            parts = name.removesuffix(_SUFFIX).split("-")
            if name.endswith(_SUFFIX) and len(parts) == 4 and all(part.isdigit() for part in parts[:3]):
                found.append(Segment(int(parts[0]), int(parts[1]), int(parts[2]), name))
    return sorted(found)


def _sealer(folder: Path, name: str, key: bytes, former: Sequence[bytes] = ()) -> Sealer:
    return Sealer(_MAGIC, f"{folder.parent.name}/{folder.name}/{name}".encode(), key, former)


class StepFile:
    """A new file of steps, open for appending. Nothing of it counts before `append` returns."""

    def __init__(self, folder: Path, head: Mapping[str, Any], key: bytes) -> None:
        nonce = os.urandom(4).hex()
        name = f"{head['epoch']:08d}-{head['after']:08d}-{head['birth']:08d}-{nonce}{_SUFFIX}"
        self.path = folder / name
        self._sealer = _sealer(folder, name, key)
        self._first = self._sealer.seal(msgpack.packb({"format": FORMAT, **head}))
        made = _make_folder(folder)
        try:
            self._file = os.open(self.path, _NEW, 0o600)
        except FileNotFoundError:
            # Somebody has just removed it because it was empty.
            made = _make_folder(folder)
            self._file = os.open(self.path, _NEW, 0o600)
        # Where the records end, and the room behind them.
        self._length = self._end = 0
        self._room = _ROOM
        for each in (folder, *(each.parent for each in made)):
            sync_folder(each)

    def append(self, entry: Entry) -> None:
        """Writes one step and syncs it.

        Raises:
            OSError: it may be there or not; nothing more may be written.
        """
        record = self._first + self._sealer.seal(msgpack.packb(entry))
        try:
            if self._length + len(record) > self._end:
                self._write_with_room(record)
            else:
                write_all(self._file, record, self._length)
            sync(self._file)
        except BaseException:
            # Whoever reads it would take it for a step that was returned, which does no harm; but what comes
            # after something half written would be lost.
            self._give_back()
            raise
        self._length += len(record)
        self._first = b""

    def _write_with_room(self, record: bytes) -> None:
        try:
            write_all(self._file, record + bytes(self._room), self._length)
        except OSError:
            # The record may fit where the room does not.
            os.ftruncate(self._file, self._length)
            write_all(self._file, record, self._length)
            return
        self._end = self._length + len(record) + self._room
        self._room = min(2 * self._room, ROOM_MOST)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._length)
        self._end = self._length

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            self._give_back()
            os.close(self._file)
            self._file = -1


def read_segments(folder: Path, key: bytes, after: int) -> tuple[list[tuple[Segment, Found]], Fence]:
    """What counts of files that begin after the capture of `after` or later, each synced; and a fence.

    Raises:
        Corrupt: a step that was returned is damaged or gone.
        NotAuthentic: somebody wrote it who does not have the store's key.
        NewerFormat: a newer Cutline wrote it.
    """
    segments = segments_in(folder)
    fence: Fence = {}
    read: list[tuple[Segment, Found]] = []
    limits: Fence = {}
    # The newest first: their fences say what counts of the older ones.
    for segment in reversed(segments):
        limit = limits.get(segment.name, _ALL)
        if segment.after < after:
            with contextlib.suppress(FileNotFoundError):
                fence[segment.name] = min(limit, (length_of(folder, segment.name, key), False))
            continue
        found = _read(folder, segment.name, key, limit)
        fence[segment.name] = found.stop, True
        if not found.head:
            continue
        read.append((segment, found))
        fenced: Mapping[str, tuple[int, bool]] = found.head["fence"]
        _check_fence(folder, segment.name, fenced, segments, after)
        for older in segments:
            if older.epoch < segment.epoch:
                length, looked_at = fenced.get(older.name, (0, False))
                limits[older.name] = min(limits.get(older.name, _ALL), (length, looked_at))
    return read[::-1], fence


def length_of(folder: Path, name: str, key: bytes) -> int:
    """Of a file, without the room behind its records."""
    with open(folder / name, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAC))
        if file.read().strip(b"\0"):
            # No record ends like room.
            return size
        file.seek(0)
        raw = file.read()
    sealer, stop = _sealer(folder, name, key), 0
    while (found := sealer.read(raw, stop)) is not None:
        stop = found[1]
    return max(stop, len(raw.rstrip(b"\0")))


def _check_fence(
    folder: Path,
    name: str,
    fence: Mapping[str, tuple[int, bool]],
    segments: Sequence[Segment],
    after: int,
) -> None:
    """Raises Corrupt if something is gone that was there when this file was begun."""
    there = {each.name for each in segments}
    for older, (length, _) in fence.items():
        if length and older not in there and int(older.split("-")[1]) >= after:
            raise _damaged(folder / older, f"is gone, and was there when {name} was begun")


def _read(folder: Path, name: str, key: bytes, limit: tuple[int, bool]) -> Found:
    path, sealer = folder / name, _sealer(folder, name, key)
    length, looked_at = limit
    with open(path, "rb") as file:
        raw = file.read() if limit == _ALL else file.read(length)
        # What is taken from here may only be in the memory of the system yet.
        sync(file.fileno())
    head: Mapping[str, Any] = {}
    entries: list[Entry] = []
    offset = 0
    while offset < len(raw):
        found = sealer.read(raw, offset)
        if found is None:
            _check_rest(path, sealer, raw, offset, len(entries))
            break
        body, stop = found
        if not sealer.is_ours(raw, body, stop):
            raise forged(f"a record of the steps {path}", path=str(path))
        if head:
            entries.append(Entry(*msgpack.unpackb(body, max_bin_len=len(body))))
        else:
            head = msgpack.unpackb(body)
            if head["format"] > FORMAT:
                raise NewerFormat(f"{path} was written by a newer Cutline: use that", path=str(path))
        offset = stop
    if looked_at and offset < length:
        raise _damaged(path, f"ends after {offset} bytes; {length} counted when a newer one was begun")
    return Found(head, entries, offset)


def _check_rest(path: Path, sealer: Sealer, raw: bytes, offset: int, number: int) -> None:
    """What does not read must be the end: nothing was written after a step that was not whole."""
    at = sealer.next(raw, offset + 1)
    while at >= 0:
        if sealer.read(raw, at) is not None:
            raise _damaged(path, f"has a damaged record, number {number}, before one that is whole")
        at = sealer.next(raw, at + 1)


def _damaged(path: Path, what: str) -> Corrupt:
    return Corrupt(
        f"the steps of a participant are damaged: {path} {what}. Put it back from a copy; or remove the "
        f"folder {path.parent}, then the functions of steps since the last checkpoint are called again",
        path=str(path),
        what="steps",
    )


def claim(folder: Path, epoch: int) -> bool:
    """Whether whoever asks is the first one to do so in this epoch."""
    try:
        os.close(os.open(folder / f"{epoch:08d}{_CLAIM}", _NEW, 0o600))
    except FileExistsError:
        return False
    return True


def forget(home: Path, lineage: str, before: int, epoch: int) -> None:
    """Removes the files that begin before the capture of checkpoint `before`, in that lineage, and what was
    claimed before that epoch.
    """
    folder = home / FOLDER / encode_name(lineage)
    for each in _folders(folder):
        gone = [segment.name for segment in segments_in(each) if segment.after < before]
        gone += [path.name for path in each.glob(f"*{_CLAIM}") if path.name < f"{epoch:08d}"]
        for name in gone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(each / name)
        if gone:
            # Of a participant that has left, perhaps.
            with contextlib.suppress(OSError):
                each.rmdir()


def reseal(
    home: Path, key: bytes, former: Sequence[bytes], *, trust: bool = False, only_check: bool = False
) -> None:
    """Writes all records again, with the key; they were written with one of `former`, or are NotAuthentic,
    unless `trust`. Damaged ones stay as they are, and say so to whoever reads them.
    """
    for lineage in _folders(home / FOLDER):
        for folder in _folders(lineage):
            for segment in segments_in(folder):
                _reseal(folder, segment.name, key, () if trust else (key, *former), only_check)


def _reseal(folder: Path, name: str, key: bytes, known: Sequence[bytes], only_check: bool) -> None:
    """`known`: the keys that vouch for what is there; none: nobody has to."""
    path = folder / name
    sealer, raw = _sealer(folder, name, key, known), path.read_bytes()
    parts, offset = [], 0
    while (found := sealer.read(raw, offset)) is not None:
        body, stop = found
        if known and not sealer.is_ours(raw, body, stop):
            raise forged(f"a record of the steps {path}", path=str(path))
        parts.append(sealer.seal(body))
        offset = stop
    if only_check:
        return
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(b"".join([*parts, raw[offset:].rstrip(b"\0")]))
        file.flush()
        sync(file.fileno())
    os.replace(fresh, path)
    sync_folder(folder)


def _folders(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        yield from sorted(each for each in folder.iterdir() if each.is_dir())


def _make_folder(folder: Path) -> list[Path]:
    """Makes it; returns what was not there before."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return made
