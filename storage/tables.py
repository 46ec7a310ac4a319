"""A catalog kept in SQL tables, whatever database they lie in.

Each verb is one transaction. Those that change anything begin by comparing the lease's token, inside the
transaction: taking a lease over writes the same row, so one of the two comes first. The statements are those
that SQLite and PostgreSQL both understand; what differs is behind `TableDatabase`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from cutline.errors import (
    CheckpointNotFound,
    Corrupt,
    DuplicateLabel,
    FateDecided,
    Misuse,
)

from .authentic import Seals
from .catalog import COMMITTED, CheckpointRow, Choice, Fate, Lease, LineageRow, Place, check_label
from .codec import canonical, decode
from .filling import living
from .finding import found_or_refused
from .leases import LeaseTable
from .listing import Listing
from .output_table import OutputTable
from .owners import Owner, is_dead
from .rows import CheckpointTable, Connection, lineage_of, upsert
from .verbs import TableDatabase, verb

__all__ = ("TableCatalog",)

_PUT_MEMBER = upsert("members", ("lineage", "name"), ("birth", "doc", "seal"))
# Between the key of a failure and the one time of it that a row stands for.
_OCCURRENCE = "\x1f"
# The key, among failures, of a lineage that a start has made and that has not come up yet.
_OPENING = "@opening"
_PUT_FAILURE = upsert("failures", ("lineage", "key"), ("count", "seal"))


class TableCatalog(OutputTable, Listing):
    """A `Catalog` in the tables of ``database``.

    ``dead`` says whether an owner surely runs no more; tests replace it.
    """

    def __init__(self, database: TableDatabase, *, dead: Callable[[Owner], bool] = is_dead) -> None:
        self.database: TableDatabase = database
        self.seals = Seals()
        self._leases = LeaseTable(dead, self.seals, database.lock)
        self._table = CheckpointTable(self.seals)

    def close(self) -> None:
        self.database.close()

    def tidy(self) -> None:
        self.database.tidy()

    # Leases

    @verb
    def acquire_lease(self, system: str, owner: Owner, ttl: float, now: float) -> Lease:
        with self._writing() as connection:
            lease = self._leases.acquire(connection, system, owner, ttl, self.database.time(connection, now))
        self.ready_listings()
        return lease

    @verb
    def renew_lease(self, lease: Lease, ttl: float, now: float) -> None:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._leases.put(connection, lease, self.database.time(connection, now) + ttl)

    @verb
    def release_lease(self, lease: Lease) -> None:
        with self._writing() as connection:
            self._leases.release(connection, lease)

    @verb
    def lease_holder(self, system: str) -> Owner | None:
        with self.database.reading() as connection:
            return self._leases.holder(connection, system)

    # Lineages

    @verb
    def systems(self) -> list[str]:
        with self.database.reading() as connection:
            rows = connection.execute("SELECT system FROM lineages GROUP BY system ORDER BY MIN(number)")
            return [system for (system,) in rows]

    @verb
    def create_lineage(self, lease: Lease, parent: Place | None, *, opening: bool = False) -> str:
        lineage = os.urandom(8).hex()
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            epoch, checkpoint, birth = 0, 1, 1
            if parent is not None:
                origin = self._lineage(connection, parent[0], lease)
                row = self._table.row(connection, *parent)
                if row is None or row.fate != "committed" or row.condemned:
                    raise CheckpointNotFound(
                        f"no committed checkpoint {parent[1]} in lineage {parent[0]} to fork from: it was"
                        " aborted, or removed by retention",
                        checkpoint=parent[1],
                        lineage=parent[0],
                    )
                epoch, checkpoint, birth = origin.epoch, parent[1] + 1, origin.next_birth
            self._insert(connection, LineageRow(lineage, lease.system, 0, parent, epoch, checkpoint, birth))
            if opening:
                self._put_failure(connection, lineage, _OPENING, 1)
        return lineage

    @verb
    def opened(self, lease: Lease, lineage: str) -> None:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            connection.execute("DELETE FROM failures WHERE lineage = ? AND key = ?", (lineage, _OPENING))

    @verb
    def unopened(self, system: str) -> set[str]:
        with self.database.reading() as connection:
            return self._unopened(connection, system)

    def _unopened(self, connection: Connection, system: str) -> set[str]:
        marked = connection.execute(
            "SELECT f.lineage FROM failures f JOIN lineages l ON l.lineage = f.lineage"
            " WHERE l.system = ? AND f.key = ?",
            (system, _OPENING),
        )
        names = [name for (name,) in marked.fetchall() if _OPENING in self._failures(connection, name)]
        # One that has begun something by itself is known to be open by its first cut.
        return {
            name for name in names if not living(self._table.rows(connection, "c.lineage = ?", (name,), []))
        }

    def _lineage(self, connection: Connection, lineage: str, lease: Lease | None = None) -> LineageRow:
        found = connection.execute("SELECT * FROM lineages WHERE lineage = ?", (lineage,)).fetchone()
        row = None if found is None else lineage_of(found, self.seals)
        if row is None or (lease is not None and row.system != lease.system):
            place = f"system {lease.system!r}" if lease else "this store"
            raise CheckpointNotFound(f"no lineage {lineage!r} in {place}", lineage=lineage)
        return row

    def _lineages(self, connection: Connection, system: str) -> list[LineageRow]:
        found = connection.execute("SELECT * FROM lineages WHERE system = ? ORDER BY number", (system,))
        return [lineage_of(row, self.seals) for row in found]

    @verb
    def lineages(self, system: str) -> list[LineageRow]:
        with self.database.reading() as connection:
            return self._lineages(connection, system)

    @verb
    def head_lineage(self, system: str) -> str | None:
        with self.database.reading() as connection:
            closed = self._unopened(connection, system)
            names = [line.lineage for line in self._lineages(connection, system)]
        return next((name for name in reversed(names) if name not in closed), None)

    def _headed(self, connection: Connection, system: str) -> list[LineageRow]:
        """A system's lineages, the one that it goes on with last."""
        closed = self._unopened(connection, system)
        return sorted(self._lineages(connection, system), key=lambda line: line.lineage not in closed)

    @verb
    def bump_epoch(self, lease: Lease, lineage: str) -> int:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            row = self._lineage(connection, lineage, lease)
            # Of all systems: a fork may run beside its origin. In one order, so that two wait for each other.
            every = f"SELECT epoch FROM lineages ORDER BY number{self.database.lock}"
            epoch = max(int(found[0]) for found in connection.execute(every)) + 1
            self._put_lineage(connection, dataclasses.replace(row, epoch=epoch))
            return epoch

    @verb
    def next_birth(self, lease: Lease, lineage: str) -> int:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            row = self._lineage(connection, lineage, lease)
            self._put_lineage(connection, dataclasses.replace(row, next_birth=row.next_birth + 1))
            return row.next_birth

    @verb
    def epoch(self, lineage: str) -> int:
        with self.database.reading() as connection:
            return self._lineage(connection, lineage).epoch

    # Checkpoints

    @verb
    def begin(
        self,
        lease: Lease,
        lineage: str,
        *,
        kind: Literal["full", "delta"],
        label: str | None,
        roster: Sequence[str],
        now: float,
    ) -> int:
        if kind not in ("full", "delta"):
            raise Misuse(f"a checkpoint is full or delta, not {kind!r}")
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            line = self._lineage(connection, lineage, lease)
            if label is not None:
                self._free_label(connection, lineage, check_label(label))
            newest = self._table.newest(connection, lineage)
            row = CheckpointRow(
                system=lease.system,
                lineage=lineage,
                checkpoint=line.next_checkpoint,
                kind=kind,
                label=label,
                fate="begun",
                begun_at=float(now),
                decided_at=None,
                epoch=line.epoch,
                parent=newest.place if newest is not None else line.origin,
                roster=tuple(roster),
            )
            self._put_lineage(connection, dataclasses.replace(line, next_checkpoint=line.next_checkpoint + 1))
            self._table.put(connection, row)
            return row.checkpoint

    def _free_label(self, connection: Connection, lineage: str, label: str) -> None:
        taken = connection.execute(
            "SELECT checkpoint FROM checkpoints WHERE lineage = ? AND label = ? AND fate <> 'aborted'"
            " AND condemned = 0",
            (lineage, label),
        ).fetchone()
        if taken is not None:
            raise DuplicateLabel(
                f"label {label!r} is taken by checkpoint {taken[0]} of lineage {lineage}: choose another, or"
                " unpin that one",
                label=label,
                checkpoint=taken[0],
            )

    @verb
    def commit(
        self,
        lease: Lease,
        lineage: str,
        checkpoint: int,
        *,
        manifest_key: str,
        manifest_digest: bytes,
        blobs: Sequence[str],
        summary: dict[str, Any],
        now: float,
        listing: str | None = None,
    ) -> CheckpointRow:
        with self._writing() as connection:
            row = self._undecided_row(connection, lease, lineage, checkpoint, "committed")
            self._check_borrowed(connection, row, blobs)
            horizon = self._lineage(connection, lineage).next_checkpoint
            row = dataclasses.replace(
                row,
                fate="committed",
                decided_at=float(now),
                manifest_key=manifest_key,
                manifest_digest=manifest_digest,
                blobs=tuple(blobs),
                summary=dict(summary),
                horizon=horizon,
            )
            self._table.put(connection, row)
            self._put_listing(connection, row.place, listing)
        return row

    @verb
    def abort(self, lease: Lease, lineage: str, checkpoint: int, reason: str, now: float) -> None:
        with self._writing() as connection:
            row = self._undecided_row(connection, lease, lineage, checkpoint, "aborted")
            if row.fate == "aborted":
                return
            horizon = self._lineage(connection, lineage).next_checkpoint
            self._table.put(
                connection,
                dataclasses.replace(
                    row, fate="aborted", decided_at=float(now), reason=reason, horizon=horizon
                ),
            )

    def _undecided_row(
        self, connection: Connection, lease: Lease, lineage: str, checkpoint: int, wish: Fate
    ) -> CheckpointRow:
        self._leases.fence(connection, lease)
        self._lineage(connection, lineage, lease)
        row = self._existing(connection, lineage, checkpoint)
        if row.fate != "begun" and not (row.fate == wish == "aborted"):
            raise FateDecided(
                f"{row} was {row.fate} before; it cannot be {wish} any more",
                checkpoint=checkpoint,
                lineage=lineage,
                fate=row.fate,
            )
        return row

    def _existing(self, connection: Connection, lineage: str, checkpoint: int) -> CheckpointRow:
        row = self._table.row(connection, lineage, checkpoint)
        if row is None:
            raise CheckpointNotFound(
                f"no checkpoint {checkpoint} in lineage {lineage!r}: it was never begun, or removed after it"
                " was decided",
                checkpoint=checkpoint,
                lineage=lineage,
            )
        return row

    @verb
    def fate(self, lineage: str, checkpoint: int) -> Fate:
        with self.database.reading() as connection:
            return self._existing(connection, lineage, checkpoint).fate

    @verb
    def undecided(self, lineage: str) -> list[int]:
        with self.database.reading() as connection:
            rows = self._table.rows(connection, "c.lineage = ?", (lineage,), [])
        return [row.checkpoint for row in rows if row.fate == "begun"]

    @verb
    def checkpoints(
        self,
        system: str,
        *,
        lineage: str | None = None,
        fates: Collection[str] = COMMITTED,
        damage: list[Corrupt] | None = None,
    ) -> list[CheckpointRow]:
        with self.database.reading() as connection:
            where, values = "l.system = ?", [system]
            if lineage is not None:
                where, values = f"{where} AND c.lineage = ?", [system, lineage]
            rows = self._table.rows(connection, where, tuple(values), damage)
        return [row for row in rows if row.fate in fates and not row.condemned]

    @verb
    def find(self, system: str, point: str, lineage: str | None = None) -> CheckpointRow:
        damage: list[Corrupt] = []
        with self.database.reading() as connection:
            lines = self._headed(connection, system)
            rows = living(self._table.rows(connection, "l.system = ?", (system,), damage))
        try:
            return found_or_refused(system, str(point), lineage, lines, rows)
        except CheckpointNotFound as error:
            # What cannot be read may be the very one that was asked for.
            if damage:
                raise damage[0] from error
            raise

    @verb
    def pin(self, lease: Lease, lineage: str, checkpoint: int, label: str) -> None:
        check_label(label)
        with self._writing() as connection:
            row = self._pinnable(connection, lease, lineage, checkpoint)
            if row.label == label:
                return
            if row.label is not None:
                raise DuplicateLabel(f"{row} has a label already: unpin it first", label=label)
            self._free_label(connection, lineage, label)
            self._table.put(connection, dataclasses.replace(row, label=label))

    @verb
    def unpin(self, lease: Lease, lineage: str, checkpoint: int, label: str) -> None:
        with self._writing() as connection:
            row = self._pinnable(connection, lease, lineage, checkpoint)
            if row.label != label:
                raise CheckpointNotFound(f"{row} does not have the label {label!r}", label=label)
            self._table.put(connection, dataclasses.replace(row, label=None))

    def _pinnable(self, connection: Connection, lease: Lease, lineage: str, checkpoint: int) -> CheckpointRow:
        self._leases.fence(connection, lease)
        self._lineage(connection, lineage, lease)
        row = self._existing(connection, lineage, checkpoint)
        if row.fate != "committed" or row.condemned:
            raise CheckpointNotFound(f"{row} is no committed checkpoint", checkpoint=checkpoint)
        return row

    # Members and failures

    @verb
    def put_member(self, lease: Lease, lineage: str, name: str, birth: int, doc: dict[str, Any]) -> None:
        packed = canonical(doc)
        values = (lineage, name, birth, packed)
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._lineage(connection, lineage, lease)
            connection.execute(_PUT_MEMBER, (*values, self.seals.seal("members", *values)))

    @verb
    def members(self, lineage: str) -> dict[str, tuple[int, dict[str, Any]]]:
        with self.database.reading() as connection:
            found = connection.execute("SELECT * FROM members WHERE lineage = ? ORDER BY birth", (lineage,))
            members = {}
            for *values, found_seal in found:
                what = f"member {values[1]!r} of lineage {lineage}"
                self.seals.check(found_seal, what, "members", *values, lineage=lineage)
                members[values[1]] = (values[2], decode(values[3]))
        return members

    @verb
    def remove_member(self, lease: Lease, lineage: str, name: str) -> None:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._lineage(connection, lineage, lease)
            connection.execute("DELETE FROM members WHERE lineage = ? AND name = ?", (lineage, name))

    @verb
    def count_failure(self, lease: Lease, lineage: str, key: str, occurrence: str = "") -> int:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._lineage(connection, lineage, lease)
            known = self._failures(connection, lineage)
            told = f"{key}{_OCCURRENCE}{occurrence}"
            if occurrence and told in known:
                return known[key]
            count = known.get(key, 0) + 1
            self._put_failure(connection, lineage, key, count)
            if occurrence:
                self._put_failure(connection, lineage, told, 1)
        return count

    def _put_failure(self, connection: Connection, lineage: str, key: str, count: int) -> None:
        values = (lineage, key, count)
        connection.execute(_PUT_FAILURE, (*values, self.seals.seal("failures", *values)))

    @verb
    def failures(self, lineage: str) -> dict[str, int]:
        with self.database.reading() as connection:
            known = self._failures(connection, lineage)
        return {key: count for key, count in known.items() if _OCCURRENCE not in key and key != _OPENING}

    def _failures(self, connection: Connection, lineage: str) -> dict[str, int]:
        counts = {}
        found = connection.execute("SELECT * FROM failures WHERE lineage = ? ORDER BY key", (lineage,))
        for *values, found_seal in found:
            what = f"failure {values[1]!r} of lineage {lineage}"
            self.seals.check(found_seal, what, "failures", *values, lineage=lineage)
            counts[values[1]] = values[2]
        return counts

    # Retention

    @verb
    def condemn(self, lease: Lease, choose: Choice) -> tuple[list[LineageRow], list[CheckpointRow]]:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            lines = self._lineages(connection, lease.system)
            rows = self._table.rows(connection, "l.system = ?", (lease.system,))
            given_up = set(choose(lines, rows))
            after = []
            for row in rows:
                if row.place in given_up and row.fate == "committed" and not row.condemned:
                    row = dataclasses.replace(row, condemned=True)
                    self._table.put(connection, row)
                after.append(row)
        return lines, after

    @verb
    def drop(self, lease: Lease, places: Collection[Place]) -> None:
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            for lineage, checkpoint in places:
                self._lineage(connection, lineage, lease)
                connection.execute(
                    "DELETE FROM checkpoints WHERE lineage = ? AND checkpoint = ?"
                    " AND (condemned = 1 OR fate = 'aborted')",
                    (lineage, checkpoint),
                )
                self._drop_listing(connection, (lineage, checkpoint))
