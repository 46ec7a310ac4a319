"""The catalog in a SQLite file: one machine, any number of processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .authentic import StoreKey
from .database import Database
from .keys import process_key
from .listing import LISTINGS, SQLITE_VIEW
from .owners import Owner, is_dead
from .rows import INSERT_META, SCHEMA
from .sealing import check_meta, first_meta
from .tables import TableCatalog

__all__ = ("SqliteCatalog",)


class SqliteCatalog(TableCatalog):
    """A `Catalog` in ``path``, which exists (see `create`), or in memory for ":memory:".

    ``dead`` says whether an owner surely runs no more; tests replace it.
    """

    database: Database
    listings_there = "SELECT 1 FROM sqlite_master WHERE name = 'participants'"
    listings_made = (LISTINGS, SQLITE_VIEW)

    def __init__(self, path: str | Path, *, dead: Callable[[Owner], bool] = is_dead) -> None:
        super().__init__(Database(path), dead=dead)
        if str(path) == ":memory:":
            key = process_key()
            self._set_up("memory", key)
            self.use_key(key)

    @classmethod
    def create(cls, path: str | Path, store_id: str, key: StoreKey) -> SqliteCatalog:
        """Makes the file, or finishes one that was interrupted being made, or finds the one that somebody
        else has made meanwhile: its id and its key count (`meta`). ``key`` is durable already."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        made = cls(path)
        try:
            made._set_up(store_id, key)
            if made.meta()["key"] == key.id:
                made.use_key(key)
        except BaseException:
            made.close()
            raise
        return made

    def _set_up(self, store_id: str, key: StoreKey) -> None:
        with self.database.writing() as connection:
            for statement in (*SCHEMA.split(";")[:-1], *self.listings_made):
                connection.execute(statement)
            for name, value in first_meta(store_id, key).items():
                connection.execute(INSERT_META, (name, value))

    def store_id(self) -> str:
        """The store it was made for. Raises Corrupt for a file that is no catalog, NewerFormat."""
        return check_meta(self.meta(), self.database.path)

    def is_blank(self) -> bool:
        """Whether it was never set up, or nothing was ever put into it."""
        with self.database.reading() as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if "lineages" not in tables:
                return not tables
            return connection.execute("SELECT 1 FROM lineages LIMIT 1").fetchone() is None
