"""What a catalog takes in as a whole: lineages made elsewhere, and the mark below which nobody goes back.

Part of `TableCatalog`. Both `refill` and `adopt` are one transaction: all of it is there, or nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cutline.errors import CheckpointNotFound, Misuse

from .catalog import CheckpointRow, Lease, LineageRow
from .owners import Owner
from .rows import CheckpointTable, Connection, damaged, lineage_values, seal, upsert
from .verbs import TableDatabase, verb

if TYPE_CHECKING:
    from .leases import LeaseTable

__all__ = ("Filling",)

_PUT_META = upsert("meta", ("key",), ("value",))
_NOBODY = Owner("nowhere", 0, 0.0, 0, "a catalog made again")


class Filling:
    """See the module's head."""

    database: TableDatabase
    _leases: LeaseTable
    _table: CheckpointTable

    @verb
    def held_lease(self, system: str) -> Lease | None:
        with self.database.reading() as connection:
            return self._leases.held(connection, system)

    @verb
    def refill(
        self, system: str, lines: Sequence[LineageRow], rows: Sequence[CheckpointRow], *, token: int
    ) -> None:
        with self.database.writing() as connection:
            known = connection.execute("SELECT 1 FROM lineages WHERE system = ?", (system,)).fetchone()
            if known is not None or self._leases.held(connection, system) is not None:
                raise Misuse(f"the catalog knows system {system!r} already", system=system)
            self._leases.put(connection, Lease(system, token, _NOBODY), 0.0, released=True)
            for line in lines:
                if line.system != system:
                    raise Misuse(f"lineage {line.lineage} is not one of system {system!r}")
                self._insert(connection, line)
            for row in rows:
                self._table.put(connection, row)

    @verb
    def adopt(self, lease: Lease, line: LineageRow, row: CheckpointRow) -> CheckpointRow:
        with self.database.writing() as connection:
            self._leases.fence(connection, lease)
            row = dataclasses.replace(row, fate="committed", horizon=line.next_checkpoint)
            if (line.system, row.system) != (lease.system,) * 2 or row.lineage != line.lineage:
                raise Misuse(f"{row} is not one of system {lease.system!r} and lineage {line.lineage}")
            if connection.execute("SELECT 1 FROM lineages WHERE lineage = ?", (line.lineage,)).fetchone():
                raise Misuse(f"the catalog knows lineage {line.lineage} already", lineage=line.lineage)
            self._insert(connection, line)
            self._table.put(connection, row)
        return row

    def _insert(self, connection: Connection, line: LineageRow) -> None:
        """A new lineage; the database numbers it."""
        connection.execute(
            "INSERT INTO lineages (lineage, system, epoch, next_checkpoint, next_birth, seal)"
            " VALUES (?, ?, 0, 0, 0, ?)",
            (line.lineage, line.system, b""),
        )
        found = connection.execute("SELECT number FROM lineages WHERE lineage = ?", (line.lineage,))
        (number,) = found.fetchone()
        self._put_lineage(connection, dataclasses.replace(line, order=number))

    def _put_lineage(self, connection: Connection, row: LineageRow) -> None:
        connection.execute(
            "UPDATE lineages SET system = ?, origin_lineage = ?, origin_checkpoint = ?, epoch = ?,"
            " next_checkpoint = ?, next_birth = ?, seal = ? WHERE lineage = ?",
            (*lineage_values(row), row.lineage),
        )

    # The horizon of a lineage

    @verb
    def raise_horizon(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        with self.database.writing() as connection:
            self._leases.fence(connection, lease)
            row = self._table.row(connection, lineage, checkpoint)
            if row is None or row.system != lease.system or row.fate != "committed":
                raise CheckpointNotFound(
                    f"no committed checkpoint {checkpoint} in lineage {lineage} of system {lease.system!r}",
                    checkpoint=checkpoint,
                    lineage=lineage,
                )
            mark = max(checkpoint, self._horizon(connection, lineage))
            sealed = f"{mark}:{seal(lineage, mark).hex()}"
            connection.execute(_PUT_META, (f"horizon:{lineage}", sealed))

    @verb
    def horizon(self, lineage: str) -> int:
        with self.database.reading() as connection:
            return self._horizon(connection, lineage)

    def _horizon(self, connection: Connection, lineage: str) -> int:
        statement = "SELECT value FROM meta WHERE key = ?"
        found = connection.execute(statement, (f"horizon:{lineage}",)).fetchone()
        if found is None:
            return 0
        text, _, sealed = found[0].partition(":")
        if not text.isdecimal() or seal(lineage, int(text)).hex() != sealed:
            raise damaged(f"the horizon of lineage {lineage}", lineage=lineage)
        return int(text)
