"""A lost catalog is made again from the manifests and the commit records beside them.

A record proves that its checkpoint was committed and repeats the row, if it verifies with the key that it
names and this user has that key; else it is left out, unless it is trusted. What had no record is not there
again: undecided checkpoints, cuts whose record was not written yet, lineages without a cut, labels that
were given or taken later, counts of failures, claims, horizons. Each manifest that is left out is named.

Ids, births and epochs that the lost catalog gave out and that left no trace must not be given out again:
all go on `LEAP` above what is found, and lease tokens above any that there was.
"""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cutline.errors import BlobNotFound, Corrupt

from .authentic import StoreKey, foreign, forged
from .blobs import BlobStore, encode_name, parts_of, read_document, record_key
from .catalog import Catalog, CheckpointRow, LineageRow
from .keys import find_key
from .manifest import Manifest
from .record import Record, read_record
from .verify import load_manifest

__all__ = ("LEAP", "Gathered", "gather", "refill")

LEAP = 1000
# No lease that was ever taken has such a token; the random part sets two attempts apart.
_TOKENS = 1 << 40


@dataclass(slots=True)
class Gathered:
    """``systems``: lineages and cuts by system. ``left_out``: what could not be used, a sentence each.
    ``damaged``: cuts that are in, and lack a blob. ``keys``: what their records verify with."""

    systems: dict[str, tuple[list[LineageRow], list[CheckpointRow]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    keys: list[StoreKey] = field(default_factory=list)

    @property
    def cuts(self) -> list[CheckpointRow]:
        return [row for _, rows in self.systems.values() for row in rows]


def gather(
    blobs: BlobStore, *, keys: Callable[[str], StoreKey | None] = find_key, trust: bool = False
) -> Gathered:
    """What the blobs tell of. Raises NewerFormat for a record of a newer format; damage is reported.

    ``keys``: finds a key by its id. ``trust``: records count whose key is not here, and those that do not
    verify.
    """
    found = Gathered()
    present = set(blobs.list())
    used = _Highest([*present, *blobs.unfinished()])
    records: dict[tuple[str, int], Record] = {}
    manifests: dict[tuple[str, int], Manifest] = {}
    for key in sorted(present):
        if not key.endswith(".commit") or parts_of(key) is None:
            continue
        try:
            record = read_record(read_document(blobs, key), key)
            by = keys(record.key_id)
            if not trust and (by is None or not record.is_authentic(by)):
                found.left_out.append(_unverified(key, record, by))
                continue
            manifest = load_manifest(blobs, record.row)
        except (Corrupt, BlobNotFound) as error:
            found.left_out.append(str(error))
            continue
        if record.row.place in records:
            found.left_out.append(f"{key}: there is another record of {record.row}")
            continue
        if by is not None and record.is_authentic(by):
            found.keys.append(by)
        records[record.row.place] = record
        manifests[record.row.place] = manifest
        found.damaged += [f"{record.row} lacks {name}" for name in record.row.blobs if name not in present]
    found.left_out += sorted(_unproven(present))
    lines = _lines(records, manifests, used)
    for line in sorted(lines, key=lambda line: line.order):
        rows = [_row(record.row, line) for record in records.values() if record.row.lineage == line.lineage]
        rows.sort(key=lambda row: row.checkpoint)
        known = found.systems.setdefault(line.system, ([], []))
        known[0].append(line)
        known[1].extend(_labelled_once(rows, found.left_out))
    return found


def refill(catalog: Catalog, found: Gathered) -> None:
    """Puts all of it into a catalog that knows none of the systems."""
    for system, (lines, rows) in found.systems.items():
        token = _TOKENS + int.from_bytes(os.urandom(4), "little")
        catalog.refill(system, lines, rows, token=token)


def _unverified(name: str, record: Record, key: StoreKey | None) -> str:
    if key is None:
        return str(foreign(f"commit record {name}", record.key_id, f"so {record.row} was left out"))
    return str(forged(f"commit record {name}", key=name))


class _Highest:
    """Numbers that keys show to be used, by encoded system and lineage."""

    def __init__(self, keys: list[str]) -> None:
        self.checkpoint: dict[tuple[str, str], int] = defaultdict(int)
        self.epoch: dict[tuple[str, str], int] = defaultdict(int)
        for key in keys:
            parts = parts_of(key)
            if parts is not None:
                place = parts.system, parts.lineage
                self.checkpoint[place] = max(self.checkpoint[place], parts.checkpoint)
                self.epoch[place] = max(self.epoch[place], parts.epoch)


def _unproven(present: set[str]) -> Iterator[str]:
    """Manifests that nobody has recorded as committed, and lineages of which there is no other trace."""
    for key in present:
        name = key.rpartition("/")[2]
        is_manifest = name.startswith("manifest-") and not name.endswith((".commit", ".pack"))
        if is_manifest and parts_of(key) is not None and record_key(key) not in present:
            yield f"{key}: a manifest without a commit record; it may never have been committed"


def _lines(
    records: dict[tuple[str, int], Record], manifests: dict[tuple[str, int], Manifest], used: _Highest
) -> list[LineageRow]:
    grouped: dict[str, list[Record]] = defaultdict(list)
    for record in records.values():
        grouped[record.row.lineage].append(record)
    lines = []
    for lineage, mine in grouped.items():
        system = mine[0].row.system
        place = encode_name(system), encode_name(lineage)
        births = [image.birth for one in mine for image in manifests[one.row.place].images.values()]
        order = max(one.order for one in mine)
        origins = [one.origin for one in sorted(mine, key=_by_checkpoint) if one.origin is not None]
        lines.append(
            LineageRow(
                lineage,
                system,
                order,
                origins[0] if origins else None,
                max(used.epoch[place], *(one.row.epoch for one in mine)) + LEAP,
                max(used.checkpoint[place], *(one.row.checkpoint for one in mine)) + LEAP,
                max(0, *births, *(one.next_birth for one in mine)) + LEAP,
            )
        )
    return _numbered(lines, {name: min(one.row.begun_at for one in mine) for name, mine in grouped.items()})


def _by_checkpoint(record: Record) -> int:
    return record.row.checkpoint


def _numbered(lines: list[LineageRow], began: dict[str, float]) -> list[LineageRow]:
    """With numbers that are unique: as recorded, else by origin and by when their first cut was begun."""
    numbered: list[LineageRow] = []
    last = 0
    # A lineage without a number of its own was recorded by an older version: it comes before the others.
    for line in sorted(lines, key=lambda line: (line.order, began[line.lineage], line.lineage)):
        last = max(last + 1, line.order)
        numbered.append(dataclasses.replace(line, order=last))
    return numbered


def _row(row: CheckpointRow, line: LineageRow) -> CheckpointRow:
    # All ids that the lost catalog gave out lie below, and all of them count as decided.
    return dataclasses.replace(row, horizon=line.next_checkpoint)


def _labelled_once(rows: list[CheckpointRow], left_out: list[str]) -> list[CheckpointRow]:
    """A label that was taken off one cut and given to a later one is the later one's."""
    taken: set[str] = set()
    kept = []
    for row in reversed(rows):
        if row.label is not None and row.label in taken:
            left_out.append(f"the label {row.label!r} of checkpoint {row.checkpoint}: a later one has it")
            row = dataclasses.replace(row, label=None)
        elif row.label is not None:
            taken.add(row.label)
        kept.append(row)
    return kept[::-1]
