"""A table of a PostgreSQL database that gets each emitted row once.

Rows, and the number of the last one of each origin, are written in one transaction: whoever writes second,
after a lost answer, in a second coordinator, or in a fork, finds the number and leaves out what is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from cutline.errors import MissingPackage, OutputRefused, StoreUnreachable

from .location import database_of
from .sinks import Origin, Record, identity

try:
    import psycopg
    from psycopg import sql
except ImportError as failure:
    raise MissingPackage(
        "a PostgresSink needs psycopg: pip install 'cutline[postgres]'", package="psycopg"
    ) from failure

__all__ = ("RowTable",)

NUMBERS = "cutline_output"
_CONNECT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
_SESSION = (
    "SET idle_in_transaction_session_timeout = 20000; SET lock_timeout = 20000;"
    " SET statement_timeout = 60000; SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
_MAKE = (
    "CREATE TABLE IF NOT EXISTS {} (sink TEXT NOT NULL, lineage TEXT NOT NULL, participant TEXT NOT NULL,"
    " birth BIGINT NOT NULL, number BIGINT NOT NULL, cut BIGINT NOT NULL,"
    " at TIMESTAMPTZ NOT NULL DEFAULT now(), PRIMARY KEY (sink, lineage, participant, birth))"
)
_FIND = (
    "SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p', 'f', 'v')"
)
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped"
_ID, _CUT = "cutline_id", "cutline_cut"


class RowTable:
    """See the module's head. A `cutline.storage.sinks.Sink`; `name` tells sinks of one table apart."""

    def __init__(self, name: str, url: str, table: str) -> None:
        self.name = name
        self.table = table
        self.place = database_of(url)
        self.news: list[str] = []
        self._connection: psycopg.Connection[Any] | None = None
        self._into: sql.Identifier
        self._numbers: sql.Identifier
        self._columns: frozenset[str] = frozenset()

    def open(self) -> dict[Origin, int]:
        """See `Sink.open`.

        Raises:
            StoreUnreachable: the server cannot be reached, or does not let us in.
            OutputRefused: there is no such table, or it may not be written.
        """
        self.close()
        try:
            with self._meant():
                self._connection = psycopg.connect(**{**_CONNECT, **self.place.options}, autocommit=True)
                self._connection.execute(_SESSION)
                self._find()
                return self._read()
        except BaseException:
            self.close()
            raise

    def _find(self) -> None:
        connection = self._open_one()
        quoted = ".".join(f'"{part}"' for part in self.table.split("."))
        found = None
        # As it is written, and as PostgreSQL writes names that nobody has quoted.
        for name in (quoted, quoted.lower()):
            found = found or connection.execute(_FIND, (name,)).fetchone()
        if found is None:
            raise OutputRefused(
                f"sink {self.name!r}: there is no table {self.table} in {self.place}: make it, with a column "
                "for each key that is emitted",
                sink=self.name,
            )
        number, schema, table = found
        (allowed,) = connection.execute(
            "SELECT has_table_privilege(%s::oid, 'INSERT')", (number,)
        ).fetchone() or (False,)
        if not allowed:
            raise OutputRefused(
                f"sink {self.name!r}: table {self.table} in {self.place} may not be written: grant this role "
                "INSERT",
                sink=self.name,
            )
        self._into, self._numbers = sql.Identifier(schema, table), sql.Identifier(schema, NUMBERS)
        self._columns = frozenset(row[0] for row in connection.execute(_COLUMNS, (number,)))
        if connection.execute(_FIND, (f'"{schema}"."{NUMBERS}"',)).fetchone() is None:
            connection.execute(sql.SQL(_MAKE).format(self._numbers))

    @property
    def _sink(self) -> str:
        # Of the name, which may have colons, all is there but the last.
        return f"{self.name}:{self.table.replace(':', '%3A')}"

    def _read(self) -> dict[Origin, int]:
        statement = sql.SQL("SELECT lineage, participant, birth, number FROM {} WHERE sink = %s")
        rows = self._open_one().execute(statement.format(self._numbers), (self._sink,))
        return {Origin(lineage, name, birth): number for lineage, name, birth, number in rows}

    def _open_one(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            raise psycopg.OperationalError("the connection is closed")
        return self._connection

    def publish(self, records: Sequence[Record]) -> None:
        """See `Sink.publish`. Rows before one that is refused are published.

        Raises:
            StoreUnreachable: all of it is there, or nothing.
            OutputRefused: the table does not take a row; the message names it.
        """
        try:
            self._write(records)
        except OutputRefused:
            for count in range(len(records)):
                # One by one, to find the one that is refused.
                self._write(records[count : count + 1])
            # Taken, this time.

    def _write(self, records: Sequence[Record]) -> None:
        with self._meant(records[0] if len(records) == 1 else None):
            connection = self._open_one()
            with connection.transaction(), connection.cursor() as cursor:
                fresh = self._claim(cursor, records)
                for columns, rows in self._rows(fresh):
                    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                        self._into,
                        sql.SQL(", ").join(map(sql.Identifier, columns)),
                        sql.SQL(", ").join(sql.Placeholder() * len(columns)),
                    )
                    cursor.executemany(statement, rows)

    def _claim(self, cursor: psycopg.Cursor[Any], records: Sequence[Record]) -> list[Record]:
        """Raises the numbers, whose rows stay locked; the records that are news."""
        last = {record.origin: record for record in records}
        before: dict[Origin, int] = {}
        # In one order, so that two never wait for each other.
        for origin in sorted(last):
            place = (self._sink, *origin)
            cursor.execute(
                sql.SQL("INSERT INTO {} (sink, lineage, participant, birth, number, cut)"
                        " VALUES (%s, %s, %s, %s, 0, 0) ON CONFLICT DO NOTHING").format(self._numbers),
                place,
            )  # fmt: skip
            where = "WHERE sink = %s AND lineage = %s AND participant = %s AND birth = %s"
            locked = sql.SQL(f"SELECT number FROM {{}} {where} FOR UPDATE").format(self._numbers)
            (before[origin],) = cursor.execute(locked, place).fetchone() or (0,)
            if last[origin].number > before[origin]:
                raised = sql.SQL(f"UPDATE {{}} SET number = %s, cut = %s, at = now() {where}")
                cursor.execute(
                    raised.format(self._numbers), (last[origin].number, last[origin].checkpoint, *place)
                )
        return [record for record in records if record.number > before[record.origin]]

    def _rows(self, records: Sequence[Record]) -> Iterator[tuple[tuple[str, ...], list[list[Any]]]]:
        """Neighbours with the same columns go together."""
        columns: tuple[str, ...] = ()
        rows: list[list[Any]] = []
        for record in records:
            row = self._row(record)
            if tuple(row) != columns and rows:
                yield columns, rows
                rows = []
            columns = tuple(row)
            rows.append(list(row.values()))
        if rows:
            yield columns, rows

    def _row(self, record: Record) -> Mapping[str, Any]:
        size = len(record.body)
        row: dict[str, Any] = msgpack.unpackb(record.body, max_bin_len=size, max_str_len=size)
        for name, value in ((_ID, identity(self.name, record)), (_CUT, record.checkpoint)):
            if name in self._columns:
                row.setdefault(name, value)
        return row

    @contextlib.contextmanager
    def _meant(self, record: Record | None = None) -> Iterator[None]:
        try:
            yield
        except psycopg.OperationalError as error:
            raise StoreUnreachable(
                f"sink {self.name!r}: {self.place} cannot be reached ({self._text(error)})",
                path=str(self.place),
            ) from error
        except psycopg.Error as error:
            which = "its rows" if record is None else f"row {record.number} of {record.origin.participant!r}"
            raise OutputRefused(
                f"sink {self.name!r}: table {self.table} does not take {which} ({self._text(error)}). "
                "Nothing is lost: it is tried again until the table takes it",
                sink=self.name,
            ) from error

    def _text(self, error: psycopg.Error) -> str:
        text = " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
        password = self.place.options.get("password")
        return text.replace(password, "***") if password else text

    def close(self) -> None:
        """See `Sink.close`."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
