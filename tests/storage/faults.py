"""A store that fails at its k-th operation: with an error, with an error after the deed, or by dying."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence

from cutline.storage import DirectoryBlobs, SqliteCatalog, Store
from cutline.storage.database import Database
from cutline.storage.disk import Disk

Strike = Callable[[str], None]


class Counter:
    """Calls ``strike`` at operation ``at``, counted from 1, or at ``every`` one; counts on afterwards."""

    def __init__(self, at: int, strike: Strike) -> None:
        self.at, self.strike, self.count = at, strike, 0
        self.every = False

    def tick(self, name: str) -> None:
        self.count += 1
        if self.every or self.count == self.at:
            self.strike(name)


class FaultyDisk(Disk):
    """Counts what changes the disk."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def make_folder(self, name: str, folder: int) -> bool:
        self.counter.tick("make folder")
        return super().make_folder(name, folder)

    def open_new(self, name: str, folder: int) -> int:
        self.counter.tick("open new")
        return super().open_new(name, folder)

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        first = parts[0]
        done = super().write(fd, [first[: max(1, first.nbytes // 2)]])
        self.counter.tick("write")
        return done

    def sync(self, fd: int) -> None:
        self.counter.tick("sync")
        super().sync(fd)

    def publish(self, name: str, new_name: str, folder: int) -> None:
        self.counter.tick("publish")
        super().publish(name, new_name, folder)
        self.counter.tick("published")

    def remove(self, name: str, folder: int) -> None:
        self.counter.tick("remove")
        super().remove(name, folder)


class FaultyDatabase(Database):
    """Counts the beginning and both sides of the end of each transaction that writes."""

    counter: Counter

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        try:
            self.counter.tick("before the transaction")
            with super().writing() as connection:
                yield connection
                self.counter.tick("before its commit")
            self.counter.tick("after its commit")
        except sqlite3.Error as error:
            raise self._meaning(error) from error


def make_faulty(store: Store, at: int, strike: Strike) -> Counter:
    """From now on the store's operations count, and number ``at`` strikes."""
    counter = Counter(at, strike)
    assert isinstance(store.blobs, DirectoryBlobs) and isinstance(store.catalog, SqliteCatalog)
    store.blobs._disk = FaultyDisk(counter)
    database = FaultyDatabase(store.catalog.database.path)
    database.counter = counter
    store.catalog.database.close()
    store.catalog.database = database
    return counter


def ignore(name: str) -> None:
    """Strikes no more."""


def die(name: str) -> None:
    os._exit(137)


def io_error(name: str) -> None:
    if "transaction" in name or "commit" in name:
        raise sqlite3.OperationalError("disk I/O error")
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def disk_full(name: str) -> None:
    if "transaction" in name or "commit" in name:
        raise sqlite3.OperationalError("database or disk is full")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
