"""One file of the ingress log: its name, and what is in it.

``ingress/<lineage>.log`` is the first one; others have in their names the index of the record that they begin
with: ``<lineage>.0000000000000101.log``. A file consists of sealed records (`cutline.participant.sealed`),
whose context is the lineage. The body of one is a msgpack array: the record's index, 1, 2, 3, ..., the index
of the first record that was synced together with it, and what was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from cutline.errors import Corrupt
from cutline.storage.authentic import forged

from .sealed import Sealer

__all__ = ("MAGIC", "logs_in", "read_segment", "segment_path", "segments_of", "unpacked")

MAGIC = b"\xc1ing"
_NUMBERED = re.compile(r"(.+)\.(\d{16})\.log\Z")


def segment_path(log: Path, first: int) -> Path:
    """The file of a log that begins with record `first`."""
    return log if first == 1 else log.with_name(f"{log.stem}.{first:016d}.log")


def segments_of(log: Path) -> list[int]:
    """Which records the files of a log begin with, in order."""
    found = [1] if log.exists() else []
    for path in log.parent.glob("*.log"):
        parts = _NUMBERED.match(path.name)
        if parts is not None and parts[1] == log.stem:
            found.append(int(parts[2]))
    return sorted(found)


def logs_in(folder: Path) -> list[Path]:
    """The logs whose files are in a folder, each by the name of its first file, which may be gone."""
    stems = {parts[1] if (parts := _NUMBERED.match(p.name)) else p.stem for p in folder.glob("*.log")}
    return [folder / f"{stem}.log" for stem in sorted(stems)]


def read_segment(
    sealer: Sealer, path: Path, raw: bytes, first: int, *, is_last: bool, trusting: bool
) -> Iterator[tuple[list[Any], int]]:
    """Records (index, first of their sync, what was given) and where each ends.

    A crash can have left something unsynced at the end of the last file of a log, and nowhere else: there it
    ends the file, unless it hides a record that was acknowledged.

    Raises:
        Corrupt: an acknowledged record is damaged.
        NotAuthentic: somebody wrote one who does not have the store's key.
    """
    offset, expected = 0, first
    while offset < len(raw):
        found = sealer.read(raw, offset)
        if found is None:
            _check_rest(sealer, path, raw, offset, expected, is_last)
            return
        body, stop = found
        if not trusting and not sealer.is_ours(raw, body, stop):
            raise forged(f"record {expected} of the ingress log {path}", path=str(path))
        record = unpacked(body)
        if record[0] != expected:
            raise _damaged(path, offset, expected, f"record {record[0]} is in its place")
        yield record, stop
        offset, expected = stop, expected + 1


def _check_rest(sealer: Sealer, path: Path, raw: bytes, offset: int, expected: int, is_last: bool) -> None:
    """What does not read at `offset` must be the end of a sync that never was."""
    if not is_last:
        raise _damaged(path, offset, expected, "a later file of the log was begun after it")
    at = sealer.next(raw, offset + 1)
    while at >= 0:
        found = sealer.read(raw, at)
        record = None if found is None else unpacked(found[0])
        # A later record of the same sync may have reached the disk before this one.
        if record is not None and record[1] > expected:
            raise _damaged(path, offset, expected, f"record {record[0]} was acknowledged after it")
        at = sealer.next(raw, at + 1)


def _damaged(path: Path, offset: int, index: int, why: str) -> Corrupt:
    return Corrupt(
        f"ingress log {path}: record {index}, at byte {offset}, is damaged, and {why}. Nothing was changed."
        " Put the file back from a copy; or go on without the input that the log still holds:"
        " cutline.start(..., restore='newest') forks the newest checkpoint",
        path=str(path),
        offset=offset,
        record=index,
    )


def unpacked(body: bytes) -> list[Any]:
    """The array in the body of a record."""
    size = len(body)
    record: list[Any] = msgpack.unpackb(body, strict_map_key=False, max_bin_len=size, max_str_len=size)
    return record
