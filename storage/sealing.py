"""Whose a catalog is: what its table ``meta`` says, which key seals its rows, and giving it another key.

Part of `TableCatalog`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cutline.errors import Corrupt, NewerFormat, StoreInUse

from .authentic import Seals, StoreKey, damaged
from .rows import Connection
from .verbs import TableDatabase, verb

if TYPE_CHECKING:
    from .leases import LeaseTable

__all__ = ("CATALOG_FORMAT", "Sealing", "check_meta", "first_meta")

CATALOG_FORMAT = 1
# Table, its key, and the order in which its columns are sealed if that is not their own.
_TABLES = (
    ("leases", ("system",)),
    ("lineages", ("lineage",)),
    ("checkpoints", ("lineage", "checkpoint")),
    ("members", ("lineage", "name")),
    ("failures", ("lineage", "key")),
    ("effects", ("lineage", "key", "attempt")),
)
_HORIZON = "horizon:"


def first_meta(store_id: str, key: StoreKey) -> dict[str, str]:
    """What a new catalog says of itself. ``generation`` sets it apart from those made again in its place."""
    return {
        "format": str(CATALOG_FORMAT),
        "store": store_id,
        "key": key.id,
        "generation": os.urandom(8).hex(),
    }


def check_meta(meta: dict[str, str], place: str) -> str:
    """The id of the store that a catalog belongs to, from its table ``meta``.

    Raises Corrupt for what is no catalog, NewerFormat.
    """
    if not {"format", "store", "key", "generation"} <= set(meta) or not meta["format"].isdecimal():
        raise damaged("the catalog itself")
    if int(meta["format"]) > CATALOG_FORMAT:
        raise NewerFormat(
            f"{place} was written by a newer Cutline (format {meta['format']}, this reads"
            f" {CATALOG_FORMAT}): upgrade cutline",
            path=place,
        )
    return str(meta["store"])


class Sealing:
    """See the module's head."""

    database: TableDatabase
    seals: Seals
    _leases: LeaseTable

    @verb
    def meta(self) -> dict[str, str]:
        """What the catalog says of itself, unchecked."""
        with self.database.reading() as connection:
            return dict(connection.execute("SELECT key, value FROM meta"))

    def generation(self) -> str:
        """Another one for a catalog that was made again."""
        return self.meta()["generation"]

    def use_key(self, key: StoreKey | None) -> None:
        """From now on rows are checked and written with it. None: read with their digests alone.

        Raises ForeignStore if it is another store's.
        """
        meta = self.meta()
        self.seals.use(key, meta["store"], meta["key"])

    def _writing(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction that writes. Raises ForeignStore where the key of the store is not here."""
        self.seals.need_key()
        return self.database.writing()

    def take_over(self, key: StoreKey) -> None:
        """Seals every row anew, with another key. Where the old key is not here, what was written before
        counts as authentic from now on, whoever wrote it, and what is damaged stays so.

        Raises StoreInUse while somebody living holds a lease. Where the old key is here: NotAuthentic if it
        does not vouch for a row, because a new seal would; Corrupt for a damaged row, because the commit
        record that it can be made again from is by the old key.
        """
        meta = self._resealed(key)
        self.seals.use(key, meta["store"], key.id)

    @verb
    def _resealed(self, key: StoreKey) -> dict[str, str]:
        with self.database.writing() as connection:
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            before, after = Seals(), Seals(key, meta["store"])
            before.use(self.seals.key, meta["store"], meta["key"])
            now = self.database.time(connection, time.time())
            for system, owner in self._leases.living(connection, before, now):
                raise StoreInUse(f"system {system!r} is run by {owner}: stop it first", system=system)
            for table, columns in _TABLES:
                if connection.execute(self.database.table_named, (table,)).fetchone() in (None, (None,)):
                    # A catalog that was made before there was such a table.
                    continue
                statement = f"UPDATE {table} SET seal = ? WHERE {' AND '.join(f'{c} = ?' for c in columns)}"
                for values, place in list(_whole_rows(connection, before, table, columns)):
                    connection.execute(statement, (after.seal(table, *values), *place))
            for name, text in meta.items():
                if name.startswith(_HORIZON) and (mark := _mark(text, name, before)) is not None:
                    sealed = after.seal("horizons", name.removeprefix(_HORIZON), mark).hex()
                    connection.execute("UPDATE meta SET value = ? WHERE key = ?", (f"{mark}:{sealed}", name))
            connection.execute("UPDATE meta SET value = ? WHERE key = 'key'", (key.id,))
        return meta


def _whole_rows(
    connection: Connection, seals: Seals, table: str, columns: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """(values as they are sealed, what finds the row) of each row that is what was written."""
    for *values, seal in connection.execute(f"SELECT * FROM {table}").fetchall():
        if table == "lineages":
            values[:2] = values[1], values[0]
        place = tuple(values[: len(columns)])
        with _damage_left(seals):
            seals.check(seal, f"{table} {place}", table, *values)
            yield tuple(values), place


@contextlib.contextmanager
def _damage_left(seals: Seals) -> Iterator[None]:
    """Passes over what is damaged, where the key is not here."""
    try:
        yield
    except Corrupt:
        if seals.key is not None:
            raise


def _mark(text: str, name: str, seals: Seals) -> int | None:
    """The horizon in a value of ``meta``; None for one that is damaged."""
    number, _, sealed = text.partition(":")
    lineage = name.removeprefix(_HORIZON)
    with contextlib.suppress(ValueError), _damage_left(seals):
        mark, raw = int(number), bytes.fromhex(sealed)
        seals.check(raw, f"the horizon of lineage {lineage}", "horizons", lineage, mark, lineage=lineage)
        return mark
    return None
