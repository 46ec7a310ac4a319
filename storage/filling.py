"""What a catalog takes in as a whole: lineages made elsewhere, and the mark below which nobody goes back.

Part of `TableCatalog`. Both `refill` and `adopt` are one transaction: all of it is there, or nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from cutline.errors import CheckpointNotFound, Corrupt, Misuse

from .authentic import damaged
from .blobs import parts_of
from .catalog import CheckpointRow, Lease, LineageRow
from .effects import EffectRow
from .owners import NOBODY
from .rows import CheckpointTable, Connection, lineage_values, upsert
from .sealing import Sealing
from .verbs import verb

__all__ = ("Filling", "living")

_PUT_META = upsert("meta", ("key",), ("value",))


def living(rows: list[CheckpointRow]) -> list[CheckpointRow]:
    """Filtered here and not by SQL: a row's fate counts only after its seal was checked."""
    return [row for row in rows if row.fate == "committed" and not row.condemned]


class Filling(Sealing):
    """See the module's head."""

    _table: CheckpointTable

    def _check_borrowed(self, connection: Connection, row: CheckpointRow, blobs: Sequence[str]) -> None:
        """Blobs of other checkpoints must be held by a living cut: only those are safe from collection."""
        own = [row.lineage, str(row.checkpoint)]
        borrowed = {key for key in blobs if key.split("/")[1:4:2] != own}
        # Mostly all of it is the parent's.
        for where, values in (
            ("c.lineage = ? AND c.checkpoint = ?", row.parent or ("", 0)),
            ("l.system = ?", (row.system,)),
        ):
            for holder in living(self._table.rows(connection, where, values, [])):
                borrowed.difference_update(holder.blobs)
            if not borrowed:
                return
        # Keys of other shapes are nothing that collection would touch.
        lost = next((key for key in sorted(borrowed) if parts_of(key) is not None), None)
        if lost is None:
            return
        raise Corrupt(
            f"{row} builds on {lost}, which no checkpoint holds any more: abort it and take a full one",
            key=lost,
            checkpoint=row.checkpoint,
            lineage=row.lineage,
        )

    @verb
    def held_lease(self, system: str) -> Lease | None:
        with self.database.reading() as connection:
            return self._leases.held(connection, system)

    @verb
    def refill(
        self, system: str, lines: Sequence[LineageRow], rows: Sequence[CheckpointRow], *, token: int
    ) -> None:
        with self._writing() as connection:
            known = connection.execute("SELECT 1 FROM lineages WHERE system = ?", (system,)).fetchone()
            if known is not None or self._leases.held(connection, system) is not None:
                raise Misuse(f"the catalog knows system {system!r} already", system=system)
            self._leases.put(connection, Lease(system, token, NOBODY), 0.0, released=True)
            for line in lines:
                if line.system != system:
                    raise Misuse(f"lineage {line.lineage} is not one of system {system!r}")
                self._insert(connection, line)
                self._refilled(connection, line.lineage)
            for row in rows:
                self._table.put(connection, row)
            # What came before this is not in it: see `collect`.
            connection.execute(_PUT_META, ("generation", os.urandom(8).hex()))

    def _refilled(self, connection: Connection, lineage: str) -> None:
        """A lineage whose further rows are lost was put in."""

    @verb
    def adopt(
        self, lease: Lease, line: LineageRow, row: CheckpointRow, answers: Sequence[EffectRow] = ()
    ) -> CheckpointRow:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            row = dataclasses.replace(row, fate="committed", horizon=line.next_checkpoint)
            if (line.system, row.system) != (lease.system,) * 2 or row.lineage != line.lineage:
                raise Misuse(f"{row} is not one of system {lease.system!r} and lineage {line.lineage}")
            if connection.execute("SELECT 1 FROM lineages WHERE lineage = ?", (line.lineage,)).fetchone():
                raise Misuse(f"the catalog knows lineage {line.lineage} already", lineage=line.lineage)
            self._check_borrowed(connection, row, row.blobs)
            self._insert(connection, line)
            self._table.put(connection, row)
            self._take_answers(connection, answers)
        return row

    def _take_answers(self, connection: Connection, answers: Sequence[EffectRow]) -> None:
        """Outcomes that come with a lineage."""

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
        values = lineage_values(row)
        connection.execute(
            "UPDATE lineages SET system = ?, origin_lineage = ?, origin_checkpoint = ?, epoch = ?,"
            " next_checkpoint = ?, next_birth = ?, seal = ? WHERE lineage = ?",
            (*values, self.seals.seal("lineages", row.lineage, row.order, *values), row.lineage),
        )

    # The horizon of a lineage

    @verb
    def raise_horizon(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            row = self._table.row(connection, lineage, checkpoint)
            if row is None or row.system != lease.system or row.fate != "committed":
                raise CheckpointNotFound(
                    f"no committed checkpoint {checkpoint} in lineage {lineage} of system {lease.system!r}",
                    checkpoint=checkpoint,
                    lineage=lineage,
                )
            self._put_horizon(connection, lineage, checkpoint)

    def _put_horizon(self, connection: Connection, lineage: str, checkpoint: int) -> None:
        mark = self._horizon(connection, lineage)
        if checkpoint > mark:
            sealed = f"{checkpoint}:{self.seals.seal('horizons', lineage, checkpoint).hex()}"
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
        what = f"the horizon of lineage {lineage}"
        try:
            mark, raw = int(text), bytes.fromhex(sealed)
        except ValueError as error:
            raise damaged(what, lineage=lineage) from error
        self.seals.check(raw, what, "horizons", lineage, mark, lineage=lineage)
        return mark
