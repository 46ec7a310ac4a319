"""Bugs that the crash points must find: each is a small change of the product, made in the child alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cutline.participant import ingress, step_files
from cutline.participant.ingress_segment import segment_path
from cutline.storage import DirectoryBlobs, SqliteCatalog, collect
from cutline.storage.database import Database
from cutline.storage.disk import Disk

__all__ = ("PLANTED", "Bug")

Parts = Iterable["bytes | bytearray | memoryview"]


@dataclass(frozen=True)
class Bug:
    """``way``: by which of the two ways it must be caught; ``deed``: during what; ``how`` it is struck."""

    name: str
    plant: Callable[[], None]
    way: str
    deed: str
    how: str = "kill"


def _no_folder_sync() -> None:
    real = Disk.sync

    def sync(self: Disk, fd: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            real(self, fd)

    vars_of(Disk, sync=sync)


def _no_file_sync() -> None:
    real = Disk.sync

    def sync(self: Disk, fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            real(self, fd)

    vars_of(Disk, sync=sync)


def _row_before_pack() -> None:
    """Packs wait until the row is there."""
    waiting: list[tuple[DirectoryBlobs, str, list[bytes]]] = []
    real_create, real_commit = DirectoryBlobs.create, SqliteCatalog.commit

    def create(self: DirectoryBlobs, key: str, parts: Parts) -> int:
        if not key.endswith(".pack"):
            return real_create(self, key, parts)
        waiting.append((self, key, [bytes(part) for part in parts]))
        return sum(map(len, waiting[-1][2]))

    def commit(self: SqliteCatalog, *arguments: Any, **options: Any) -> Any:
        row = real_commit(self, *arguments, **options)
        while waiting:
            real_create(*waiting.pop(0))
        return row

    vars_of(DirectoryBlobs, create=create)
    vars_of(SqliteCatalog, commit=commit)


def _synchronous_normal() -> None:
    real = Database._connect

    def connect(self: Database) -> sqlite3.Connection:
        connection = real(self)
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    vars_of(Database, _connect=connect)


def _collection_by_age() -> None:
    """Whatever no living cut lists goes at once, also what a checkpoint has just written."""

    def dead(state: Any, present: set[str], unfinished: Sequence[str]) -> list[str]:
        rows = [row for row in state.rows if row.fate == "committed" and not row.condemned]
        living = {key for row in rows for key in row.blobs}
        living |= {f"{row.manifest_key}.commit" for row in state.rows}
        return sorted({*present, *unfinished} - living)

    vars(collect)["_dead"] = dead


def _packs_before_rows() -> None:
    """A collection removes the blobs first and gives up the cuts afterwards."""
    real = SqliteCatalog.condemn

    def condemn(self: SqliteCatalog, lease: Any, choose: Any) -> Any:
        lines = self.lineages(lease.system)
        rows = self.checkpoints(lease.system, fates=("begun", "committed", "aborted"))
        going = choose(lines, rows)
        blobs = DirectoryBlobs(os.path.join(os.path.dirname(str(self.database.path)), "blobs"))
        stay = {key for row in rows if row.place not in going for key in row.blobs}
        for row in rows:
            for key in row.blobs if row.place in going else ():
                if key not in stay:
                    blobs.delete(key)
        return real(self, lease, choose)

    vars_of(SqliteCatalog, condemn=condemn)


def vars_of(kind: type, **changed: Any) -> None:
    """Replaces attributes of a class."""
    for name, value in changed.items():
        setattr(kind, name, value)


def _names_unsynced() -> None:
    """The name of a file of the log, or that one is gone, may be known or not after a power cut."""
    vars(ingress)["sync_folder"] = lambda path: None


def _input_unsynced() -> None:
    vars(ingress)["sync"] = lambda file: None


def _steps_unsynced() -> None:
    vars(step_files)["sync"] = lambda file: None


def _step_names_unsynced() -> None:
    vars(step_files)["sync_folder"] = lambda path: None


def _newest_first() -> None:
    """Files of the log go in any order, and nobody sees to it that they are gone."""

    def forget(self: ingress.IngressLog, index: int) -> int:
        spent = [start for start in self._starts[1:] if start <= min(index, self.last) + 1]
        going, self._starts = self._starts[: len(spent)], self._starts[len(spent) :]
        for start in reversed(going):
            os.unlink(segment_path(self.path, start))
        return len(going)

    vars_of(ingress.IngressLog, forget=forget)


def _not_taken_back() -> None:
    """What could not be synced stays where it is."""

    def take_back(self: ingress.IngressLog, cause: OSError) -> None:
        self._end = os.fstat(self._file).st_size

    vars_of(ingress.IngressLog, _take_back=take_back)


PLANTED = {
    bug.name: bug
    for bug in (
        Bug("no directory fsync", _no_folder_sync, "power", "commit"),
        Bug("no file fsync", _no_file_sync, "power", "commit"),
        Bug("row before pack", _row_before_pack, "power", "commit"),
        Bug("synchronous=NORMAL", _synchronous_normal, "power", "commit"),
        Bug("collection by age", _collection_by_age, "process", "gc"),
        Bug("blobs before rows in a collection", _packs_before_rows, "process", "gc"),
        Bug("files of the log without their names", _names_unsynced, "power", "input"),
        Bug("input before it is durable", _input_unsynced, "power", "input"),
        Bug("files of the log removed in any order", _newest_first, "process", "input"),
        Bug("refused input stays in the log", _not_taken_back, "process", "input", "EIO"),
        Bug("step before it is durable", _steps_unsynced, "power", "step"),
        Bug("files of steps without their names", _step_names_unsynced, "power", "step"),
        Bug("an export without fsync", _no_file_sync, "power", "export"),
    )
}
