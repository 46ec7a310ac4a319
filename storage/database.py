"""One SQLite file, opened so that a commit is a commit.

WAL with synchronous=FULL: with NORMAL a commit returns before the log is synced, and a cut that effects
were run for would vanish with the power. Transactions that write are IMMEDIATE: they wait for each other at
their beginning, never fail in the middle.

A connection is shared by the threads of a process behind a lock, and never carried through a fork: SQLite's
file locks would be lost.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from cutline.errors import Corrupt, CutlineError, RefusedOption, StorageError, StoreFull, StoreNotWritable

from .disk import Disk, meaning
from .rows import Connection

__all__ = ("Database",)

Told = TypeVar("Told")
_WAIT_MS = 30_000
_AGAIN = 0.005
_DAMAGE = ("malformed", "not a database", "no such table", "no such column", "unsupported file format")


def _write_ahead(connection: sqlite3.Connection) -> str:
    """The mode of the file's journal after asking for a write-ahead log.

    Two who turn a new file's mode at once each hold what the other needs; SQLite then refuses one at once and
    does not wait, whatever the time-out (sqlite.org/c3ref/busy_handler.html).
    """
    last = time.monotonic() + _WAIT_MS / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > last:
                raise
        time.sleep(_AGAIN)


class Database:
    """``path``: the file, or ":memory:". Opened at first use."""

    # A transaction that writes locks everything from its beginning.
    lock = ""
    table_named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._abandoned: list[sqlite3.Connection] = []

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view."""
        yield from self._transaction("BEGIN")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Durable when left without an error; undone when left with one."""
        yield from self._transaction("BEGIN IMMEDIATE")

    def time(self, connection: Connection, now: float) -> float:
        """The caller's clock: it is this machine's."""
        return now

    def persist(self, work: Callable[[], Told]) -> Told:
        """Once: a file does not come back by itself."""
        return work()

    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                connection = self._open()
                connection.execute(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    # After some errors SQLite has rolled back by itself.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._meaning(error) from error
            except UnicodeDecodeError as error:
                raise self._corrupt("it holds text that is none") from error
            except UnicodeEncodeError as error:
                raise RefusedOption(f"{error.object!r:.80} has characters that no name can have") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid != os.getpid():
            self._abandoned.append(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection = self._connect()
            self._pid = os.getpid()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self.path == ":memory:":
            return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection = self._file("mode=rw")
        try:
            if _write_ahead(connection) != "wal":
                raise StorageError(
                    f"{self.path}: this file system cannot hold a SQLite write-ahead log; put the store on a"
                    " local disk",
                    path=self.path,
                )
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")
            self._sync_names()
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError) and self._is_still():
                return self._file("mode=ro&immutable=1")
            raise
        return connection

    def _sync_names(self) -> None:
        """Makes the name of the log durable, which is there by now.

        SQLite does so too, with the first transaction, and takes no notice if that fails: every commit after
        it would be gone with the power.
        """
        disk = Disk()
        try:
            folder = disk.open_root(os.path.dirname(os.path.abspath(self.path)))
            try:
                disk.sync(folder)
            finally:
                disk.close(folder)
        except OSError as error:
            raise meaning(error, f"{self.path}-wal", writing=True) from error

    def _file(self, options: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{Path(os.path.abspath(self.path)).as_uri()}?{options}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=_WAIT_MS / 1000,
        )

    def _is_still(self) -> bool:
        """Whether it can be read and not written, and has no log: a copy on a read-only place, say."""
        log = f"{self.path}-wal"
        readable = os.access(self.path, os.R_OK) and not os.access(os.path.dirname(self.path) or ".", os.W_OK)
        return readable and not (os.path.exists(log) and os.path.getsize(log))

    def tidy(self) -> None:
        """Moves the log into the file as far as readers allow, so that it does not happen inside a commit."""
        with self._lock:
            try:
                self._open().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                raise self._meaning(error) from error

    def check(self) -> None:
        """Raises Corrupt if the file's structure is damaged."""
        with self.reading() as connection:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if found != ["ok"]:
            raise self._corrupt("; ".join(map(str, found)))

    def _corrupt(self, why: str) -> Corrupt:
        return Corrupt(
            f"catalog {self.path} is damaged ({why}): it is not what was written. Nothing was changed; put"
            " the file back from a copy, or have it made again from the blobs: `cutline rebuild-catalog`",
            key=os.path.basename(self.path),
            path=self.path,
            what=why,
        )

    def _meaning(self, error: sqlite3.Error) -> CutlineError:
        text = str(error)
        if "disk is full" in text:
            return StoreFull(f"no space left for {self.path}: free some", path=self.path)
        if "readonly" in text or "unable to open" in text:
            return StoreNotWritable(
                f"cannot write {self.path} ({text}): check the folder's owner, mode and mount", path=self.path
            )
        # The class itself, not one below it: SQLite found the file wrong, or of no known kind.
        if type(error) is sqlite3.DatabaseError or any(sign in text for sign in _DAMAGE):
            return self._corrupt(text or "not readable")
        return StorageError(f"catalog {self.path}: {text}", path=self.path)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None
