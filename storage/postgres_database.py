"""A schema of a PostgreSQL database, over one connection that comes back when it was lost.

Transactions that write begin with a mark: the number of the transaction, in this process's row of the table
``writes``. When the connection breaks before COMMIT was sent, the server undoes the transaction. When it
breaks after, the answer is lost and nothing else: a new connection waits until the old transaction has
ended, and reads the mark back. So a lost answer is never taken for a failure, and a verb is run again only
where surely nothing was changed.

Leases are measured by the server's clock: those of several machines differ.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from cutline.errors import (
    Corrupt,
    CutlineError,
    NotAStore,
    RefusedOption,
    StorageError,
    StoreForbidden,
    StoreFull,
    StoreNotWritable,
    StoreUnreachable,
)

from .rows import Connection, Found

__all__ = ("PostgresDatabase",)

Told = TypeVar("Told")

# Seconds that a verb waits for a server that is away. The coordinator waits with it.
PATIENCE = 4.0
_PAUSE = 0.1
# A server that says nothing is away after about ten seconds, a client that does is forgotten after twenty.
_CONNECT = {
    "connect_timeout": 5,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "cutline",
}
_SESSION = (
    "SET search_path TO {schema}; SET idle_in_transaction_session_timeout = 20000; SET lock_timeout = 20000;"
    " SET statement_timeout = 30000;"
    " SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
# Who has waited for a row sees what was written to it meanwhile, whatever the server's own default is.
_MARK = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; INSERT INTO writes (writer, id) VALUES ('{writer}', {number})"
    " ON CONFLICT (writer) DO UPDATE SET id = excluded.id, at = now()"
)
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_AWAY = re.compile(r"08...|57P0.|53300|XX000")
_CREDENTIALS = ("authentication failed", "no password supplied", "pg_hba.conf", "role ")


class _Statements:
    """A transaction as `rows` speaks to it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Found:
        return self._connection.execute(statement.replace("?", "%s").encode(), values or None)


class PostgresDatabase:
    """``options``: what psycopg connects with. ``place`` names it to people, without secrets.

    ``server_clock``: False measures leases by the callers' clocks; for tests.
    """

    lock = " FOR UPDATE"
    table_named = "SELECT to_regclass(?::text)::text"

    def __init__(
        self, options: Mapping[str, Any], schema: str, place: str, *, server_clock: bool = True
    ) -> None:
        self.place = place
        self.schema = schema
        self._options = {**_CONNECT, **options}
        self._server_clock = server_clock
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._pid = 0
        self._writer = ""
        self._number = 0
        self._abandoned: list[psycopg.Connection[Any]] = []

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view."""
        with self._lock, self._errors():
            connection = self.connection()
            with self._undone(connection):
                connection.execute(_READ, prepare=False)
                yield _Statements(connection)
                connection.execute("COMMIT", prepare=False)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Durable when left without an error; undone when left with one, unless that says otherwise."""
        with self._lock, self._errors():
            connection = self.connection()
            self._number += 1
            with self._undone(connection):
                mark = _MARK.format(writer=self._writer, number=self._number)
                connection.execute(mark.encode(), prepare=False)
                yield _Statements(connection)
                self._commit(connection)

    def _commit(self, connection: psycopg.Connection[Any]) -> None:
        try:
            connection.execute("COMMIT", prepare=False)
        except psycopg.OperationalError as error:
            if not connection.closed:
                raise
            if not self._happened(error):
                raise self._no_connection(self._text(error)) from error

    def _happened(self, lost: psycopg.Error) -> bool:
        """Whether the transaction whose answer was lost was committed."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                connection = self.connection()
                # Both wait until the server is through with the transaction that the mark was written in.
                connection.execute(
                    "INSERT INTO writes (writer, id) VALUES (%s, 0) ON CONFLICT (writer) DO NOTHING",
                    (self._writer,),
                )
                found = connection.execute(
                    "SELECT id FROM writes WHERE writer = %s FOR UPDATE", (self._writer,)
                ).fetchone()
                return found is not None and found[0] == self._number
            except psycopg.OperationalError:
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE)
                    continue
            raise StoreUnreachable(
                f"{self.place}: the connection broke while a change was committed, and the server cannot be"
                " asked whether it was: the catalog's rows say so when it is back",
                path=self.place,
                unchanged=False,
            ) from lost

    @contextlib.contextmanager
    def _undone(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                with contextlib.suppress(psycopg.Error):
                    connection.execute("ROLLBACK", prepare=False)
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self.meaning(error) from error
        except UnicodeEncodeError as error:
            raise RefusedOption(f"{error.object!r:.80} has characters that no name can have") from error

    def connection(self) -> psycopg.Connection[Any]:
        """The open connection, a new one if it was lost or belongs to the process that forked this one."""
        if self._connection is not None and self._pid != os.getpid():
            # To close it would end the parent's session.
            self._abandoned.append(self._connection)
            self._connection = None
        if self._connection is not None and self._connection.closed:
            self._connection = None
        if self._connection is None:
            if self._pid != os.getpid():
                self._pid, self._writer, self._number = os.getpid(), secrets.token_hex(8), 0
            made = psycopg.connect(**self._options, autocommit=True)
            try:
                made.execute(_SESSION.format(schema=self.schema).encode())
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection

    def time(self, connection: Connection, now: float) -> float:
        """The server's clock."""
        if not self._server_clock:
            return now
        found = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        return float(found[0])

    def persist(self, work: Callable[[], Told]) -> Told:
        """Runs a verb; again, for a while, as long as the server is away and nothing was changed."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return work()
            except StoreUnreachable as error:
                if not error.facts.get("unchanged") or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def meaning(self, error: psycopg.Error) -> CutlineError:
        """The error of ours that one of psycopg's amounts to."""
        text, state = self._text(error), error.sqlstate or ""
        lost = self._connection is None or self._connection.closed
        if isinstance(error, psycopg.OperationalError) and (lost or _AWAY.fullmatch(state)):
            return self._no_connection(text)
        if state in ("53100", "53200"):
            return StoreFull(f"no space left for {self.place} ({text}): free some", path=self.place)
        if state in ("25006", "42501"):
            return StoreNotWritable(
                f"cannot write {self.place} ({text}): connect to the primary, and grant this role all on the"
                f" schema {self.schema}",
                path=self.place,
            )
        if state in ("42P01", "3F000", "42703"):
            return Corrupt(
                f"catalog {self.place} is damaged ({text}): it is not what was written. Nothing was changed;"
                " bring the schema back from a dump",
                key="catalog",
                path=self.place,
                what=text,
            )
        if isinstance(error, psycopg.ProgrammingError) and not state:
            return RefusedOption(f"{self.place} cannot be connected to: {text}", path=self.place)
        if isinstance(error, psycopg.DataError):
            return RefusedOption(f"{self.place} cannot hold a name: {text}", path=self.place)
        return StorageError(f"catalog {self.place}: {text}", path=self.place)

    def _no_connection(self, text: str) -> StorageError:
        if "does not exist" in text and "database" in text:
            return NotAStore(f"{self.place}: {text}; make the database first (createdb)", path=self.place)
        if any(sign in text for sign in _CREDENTIALS):
            return StoreForbidden(
                f"{self.place} does not let us in ({text}): check PGUSER and PGPASSWORD, or ~/.pgpass",
                path=self.place,
            )
        return StoreUnreachable(
            f"{self.place} cannot be reached ({text}). Nothing was changed, and what was committed is whole:"
            " try again when the server is back",
            path=self.place,
            unchanged=True,
        )

    def _text(self, error: psycopg.Error) -> str:
        text = " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
        password = self._options.get("password")
        return text.replace(password, "***") if password else text

    def tidy(self) -> None:
        """Removes marks of processes that are long gone."""
        with self.writing() as connection:
            connection.execute("DELETE FROM writes WHERE at < now() - interval '7 days'")

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None
