"""The catalog in a schema of a PostgreSQL database: any number of machines.

The tables are those of SQLite's catalog, and one more for marks (see `postgres_database`). Transactions that
change a system lock the row of its lease first, so those of one system come one after the other, and those
of different systems do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from .authentic import StoreKey
from .listing import LISTINGS, POSTGRES_VIEW
from .location import CatalogUrl
from .owners import Owner, is_dead
from .postgres_database import PostgresDatabase
from .rows import INSERT_META, SCHEMA, Connection
from .sealing import check_meta, first_meta
from .tables import TableCatalog

__all__ = ("PostgresCatalog",)

_TYPES = (
    (" INTEGER PRIMARY KEY AUTOINCREMENT", " BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    (" INTEGER", " BIGINT"),
    (" BLOB", " BYTEA"),
    (" REAL", " DOUBLE PRECISION"),
)
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('cutline'))"
_WRITES = (
    "CREATE TABLE IF NOT EXISTS writes"
    " (writer TEXT PRIMARY KEY, id BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now())"
)


class PostgresCatalog(TableCatalog):
    """A `Catalog` at ``url``; its schema exists (see `create`).

    ``dead`` says whether an owner surely runs no more; tests replace it, and ``server_clock``.
    """

    database: PostgresDatabase
    listings_there = "SELECT 1 WHERE to_regclass('participants') IS NOT NULL"
    # "IF NOT EXISTS" does not keep two that make the same from failing.
    listings_made = (_LOCK, LISTINGS.replace(" INTEGER", " BIGINT"), POSTGRES_VIEW)

    def __init__(
        self, url: CatalogUrl, *, dead: Callable[[Owner], bool] = is_dead, server_clock: bool = True
    ) -> None:
        database = PostgresDatabase(url.options, url.schema, str(url), server_clock=server_clock)
        super().__init__(database, dead=dead)

    def create(self, store_id: str, place: str, key: StoreKey) -> None:
        """Makes schema and tables, where they are not there. ``place``: where the blobs are. ``key`` is
        durable already; what somebody else has made meanwhile has its own id and key (`meta`)."""
        self.database.persist(lambda: self._create({**first_meta(store_id, key), "place": place}))
        if self.meta()["key"] == key.id:
            self.use_key(key)

    def _create(self, meta: dict[str, str]) -> None:
        statements = self._ddl(SCHEMA)
        database, schema = self.database, self.database.schema
        try:
            connection = database.connection()
            with connection.transaction():
                connection.execute(_LOCK)
                if not connection.execute(
                    "SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)
                ).fetchone():
                    connection.execute(f"CREATE SCHEMA {schema}".encode())
                for statement in (*statements.split(";")[:-1], _WRITES, *self.listings_made[1:]):
                    connection.execute(statement.encode())
                for name, value in meta.items():
                    connection.execute(INSERT_META.replace("?", "%s").encode(), (name, value))
        except psycopg.Error as error:
            raise database.meaning(error) from error

    def _ddl(self, statement: str) -> str:
        for ours, theirs in _TYPES:
            statement = statement.replace(ours, theirs)
        return statement

    def store_id(self) -> str:
        """The store it was made for. Raises Corrupt for a schema that is no catalog, NewerFormat."""
        return check_meta(self.meta(), self.database.place)

    def place(self) -> str:
        """Where the blobs were when it was made."""
        return self.meta().get("place", "")

    def is_missing(self) -> bool:
        """Whether the schema has no catalog at all."""
        return self.database.persist(lambda: self._asked(_has_none))

    def _asked(self, question: Callable[[Connection], bool]) -> bool:
        with self.database.reading() as connection:
            return question(connection)


def _has_none(connection: Connection) -> bool:
    return connection.execute("SELECT to_regclass('meta')").fetchone()[0] is None
