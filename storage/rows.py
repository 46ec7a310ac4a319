"""The catalog's tables, and rows as values.

Each row carries a seal over its values, checked at every read. A checkpoint's columns are what is
searched by; the rest is one document, compressed, because lists of blobs are long and alike.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from cutline.errors import Corrupt

from .authentic import Seals
from .catalog import CheckpointRow, LineageRow
from .codec import canonical, decode, expand, squeeze

__all__ = (
    "EFFECTS",
    "INSERT_META",
    "SCHEMA",
    "CheckpointTable",
    "Connection",
    "Found",
    "lineage_of",
    "lineage_values",
    "upsert",
)

EFFECTS = """CREATE TABLE IF NOT EXISTS effects (
    lineage TEXT NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL, doc BLOB NOT NULL,
    seal BLOB NOT NULL, PRIMARY KEY (lineage, key, attempt)
)"""

SCHEMA = f"""{EFFECTS};
CREATE TABLE IF NOT EXISTS meta (
    key TEXT PRIMARY KEY, value TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS leases (
    system TEXT PRIMARY KEY, token INTEGER NOT NULL, owner BLOB NOT NULL, expires REAL NOT NULL,
    released INTEGER NOT NULL, seal BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS lineages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, lineage TEXT NOT NULL UNIQUE, system TEXT NOT NULL,
    origin_lineage TEXT, origin_checkpoint INTEGER, epoch INTEGER NOT NULL,
    next_checkpoint INTEGER NOT NULL, next_birth INTEGER NOT NULL, seal BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS lineages_by_system ON lineages (system, number);
CREATE TABLE IF NOT EXISTS checkpoints (
    lineage TEXT NOT NULL, checkpoint INTEGER NOT NULL, label TEXT, fate TEXT NOT NULL,
    condemned INTEGER NOT NULL, doc BLOB NOT NULL, seal BLOB NOT NULL, PRIMARY KEY (lineage, checkpoint)
);
CREATE UNIQUE INDEX IF NOT EXISTS labels ON checkpoints (lineage, label)
    WHERE label IS NOT NULL AND fate <> 'aborted' AND condemned = 0;
CREATE TABLE IF NOT EXISTS members (
    lineage TEXT NOT NULL, name TEXT NOT NULL, birth INTEGER NOT NULL, doc BLOB NOT NULL,
    seal BLOB NOT NULL, PRIMARY KEY (lineage, name)
);
CREATE TABLE IF NOT EXISTS failures (
    lineage TEXT NOT NULL, key TEXT NOT NULL, count INTEGER NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (lineage, key)
);
"""

INSERT_META = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"

_REMEMBERED = 256
_DOC_MAX = 1 << 30


class Found(Protocol):
    """Rows that a statement found."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A transaction under way. ``?`` in a statement stands for a value."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Found: ...


def upsert(table: str, key: Sequence[str], rest: Sequence[str]) -> str:
    """The statement that inserts a row, or replaces the one with its key; values in this order."""
    columns = (*key, *rest)
    changes = ", ".join(f"{column} = excluded.{column}" for column in rest)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
    )


_PUT_CHECKPOINT = upsert(
    "checkpoints", ("lineage", "checkpoint"), ("label", "fate", "condemned", "doc", "seal")
)


def lineage_values(row: LineageRow) -> tuple[Any, ...]:
    """(system, origin lineage, origin checkpoint, epoch, next checkpoint, next birth)."""
    origin = row.origin or (None, None)
    return (row.system, *origin, row.epoch, row.next_checkpoint, row.next_birth)


def lineage_of(found: tuple[Any, ...], seals: Seals) -> LineageRow:
    """From a row of all columns. Raises Corrupt."""
    number, lineage, system, origin_lineage, origin_checkpoint, epoch, checkpoint, birth, found_seal = found
    row = LineageRow(
        lineage,
        system,
        number,
        None if origin_lineage is None else (origin_lineage, origin_checkpoint),
        epoch,
        checkpoint,
        birth,
    )
    values = (lineage, number, *lineage_values(row))
    seals.check(found_seal, f"lineage {lineage}", "lineages", *values, lineage=lineage)
    return row


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Rows are in no cycles; looking for some again and again would make long lists dearer by the row."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class CheckpointTable:
    """Reads and writes checkpoint rows; remembers rows it decoded, by digest."""

    def __init__(self, seals: Seals) -> None:
        self._seals = seals
        self._lock = threading.Lock()
        self._decoded: OrderedDict[bytes, CheckpointRow] = OrderedDict()

    def rows(
        self,
        connection: Connection,
        where: str,
        values: tuple[Any, ...],
        damage: list[Corrupt] | None = None,
    ) -> list[CheckpointRow]:
        """Rows in order of lineage, then id; ``where`` speaks of tables ``l`` and ``c``.

        Raises Corrupt for a damaged row, or leaves it out and appends the error to ``damage``.
        """
        found = connection.execute(
            "SELECT c.lineage, c.checkpoint, c.label, c.fate, c.condemned, c.doc, c.seal"
            " FROM checkpoints c JOIN lineages l ON l.lineage = c.lineage"
            f" WHERE {where} ORDER BY l.number, c.checkpoint",
            values,
        )
        rows = []
        with _collector_off():
            for values in found:
                try:
                    rows.append(self._row(values))
                except Corrupt as error:
                    if damage is None:
                        raise
                    damage.append(error)
        return rows

    def row(self, connection: Connection, lineage: str, checkpoint: int) -> CheckpointRow | None:
        rows = self.rows(connection, "c.lineage = ? AND c.checkpoint = ?", (lineage, checkpoint))
        return rows[0] if rows else None

    def newest(self, connection: Connection, lineage: str) -> CheckpointRow | None:
        """The newest living cut of a lineage, however many there are; damaged rows are passed over."""
        living = "c.lineage = ? AND c.fate = 'committed' AND c.condemned = 0 AND c.checkpoint < ?"
        below = 1 << 62
        while True:
            found = connection.execute(
                f"SELECT c.checkpoint FROM checkpoints c WHERE {living} ORDER BY c.checkpoint DESC LIMIT 1",
                (lineage, below),
            ).fetchone()
            if found is None:
                return None
            (below,) = found
            rows = self.rows(connection, "c.lineage = ? AND c.checkpoint = ?", (lineage, below), [])
            if rows:
                return rows[0]

    def _row(self, found: tuple[Any, ...]) -> CheckpointRow:
        *columns, doc, found_seal = found
        what = f"checkpoint {found[1]} of lineage {found[0]}"
        self._seals.check(
            found_seal, what, "checkpoints", *columns, doc, lineage=found[0], checkpoint=found[1]
        )
        with self._lock:
            known = self._decoded.get(found_seal)
        if known is None:
            known = self._decode(columns, doc)
            with self._lock:
                self._decoded[found_seal] = known
                while len(self._decoded) > _REMEMBERED:
                    self._decoded.popitem(last=False)
        return known

    def _decode(self, columns: list[Any], doc: bytes) -> CheckpointRow:
        lineage, checkpoint, label, fate, condemned = columns
        size = int.from_bytes(doc[1:5], "little")
        rest = decode(expand(doc[0], doc[5:], size))
        for name in ("blobs", "roster"):
            rest[name] = tuple(rest[name])
        rest["parent"] = None if rest["parent"] is None else tuple(rest["parent"])
        return CheckpointRow(
            lineage=lineage,
            checkpoint=checkpoint,
            label=label,
            fate=fate,
            condemned=bool(condemned),
            **rest,
        )

    def put(self, connection: Connection, row: CheckpointRow) -> None:
        """Inserts or replaces."""
        packed = canonical(
            {
                "system": row.system,
                "kind": row.kind,
                "begun_at": row.begun_at,
                "decided_at": row.decided_at,
                "epoch": row.epoch,
                "parent": row.parent,
                "manifest_key": row.manifest_key,
                "manifest_digest": row.manifest_digest,
                "blobs": row.blobs,
                "roster": row.roster,
                "reason": row.reason,
                "summary": row.summary,
                "horizon": row.horizon,
            }
        )
        codec, stored = squeeze(packed)
        doc = bytes((codec,)) + len(packed).to_bytes(4, "little") + stored
        columns = (row.lineage, row.checkpoint, row.label, row.fate, int(row.condemned))
        sealed = self._seals.seal("checkpoints", *columns, doc)
        connection.execute(_PUT_CHECKPOINT, (*columns, doc, sealed))
