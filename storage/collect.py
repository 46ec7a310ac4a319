"""Removing what no living cut needs, while writers write and other collectors collect.

Decided by the catalog alone, never by age:

1. List the blobs.
2. One transaction gives up the cuts that retention names, and reads the state of all the others.
3. A listed blob goes if its checkpoint is decided, every id begun before that decision is decided too, and
   no living cut lists it. What belongs to an id or a lineage that the catalog does not know stays, but
   for lineages of imports and edits that did not come to their end: their names say which catalog they were
   for. One for an older catalog may be a cut whose record was lost when this one was made again; one with a
   commit record is a cut, which a catalog that was put back from a copy does not know.
4. Rows of cuts that were given up go last, when their blobs are gone: an interrupted collection is found
   again and finished.

A commit record goes before its manifest, and that before the packs: a catalog that is made again from
records (`rebuild`) must not take a cut that is half gone for one that is damaged. The record is gone for
good before the others go: a power cut may bring back any name whose removal was not synced.

Why that is safe: a writer writes blobs of undecided ids only, and those stay. A cut may borrow blobs of
other checkpoints only from living cuts, which the transaction of its commit checks. So what is dead in one
reading of the catalog is dead for ever, and a second collector with an older reading only finds less.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cutline.errors import StorageError

from .blobs import BlobStore, encode_name, parts_of, record_key
from .catalog import Catalog, CheckpointRow, Lease, LineageRow, Place
from .retention import Policy, expendable

__all__ = ("EDITED", "FORKED", "IMPORTED", "MADE_WHOLE", "Plan", "Swept", "plan", "sweep")

# How the names of lineages begin that were read from an export.
IMPORTED = "import-"
# And of those that were made of another cut, in its system or for another one. Of each there is all or
# nothing.
EDITED, FORKED = "edit-", "fork-"
MADE_WHOLE = (IMPORTED, EDITED, FORKED)

_RECORD = record_key("")

# Aborted attempts kept to be shown; their blobs are removed.
_ABORTED_SHOWN = 20


@dataclass(slots=True)
class Swept:
    """What one collection did and saw.

    ``missing``: cuts that lack a blob, and which. ``unrecorded``: cuts whose commit record is not written.
    """

    removed: list[str] = field(default_factory=list)
    given_up: list[Place] = field(default_factory=list)
    missing: dict[Place, str] = field(default_factory=dict)
    unrecorded: list[CheckpointRow] = field(default_factory=list)


class _State(NamedTuple):
    lines: Sequence[LineageRow]
    rows: Sequence[CheckpointRow]
    generation: str


@dataclass(slots=True)
class Plan:
    """What a sweep would do now. ``removed``: keys of blobs, and their bytes."""

    given_up: list[CheckpointRow]
    kept: list[CheckpointRow]
    removed: dict[str, int]


def plan(
    blobs: BlobStore,
    catalog: Catalog,
    system: str,
    policy: Policy,
    *,
    now: float,
    broken: frozenset[Place] = frozenset(),
) -> Plan:
    """What `sweep` would do; changes nothing and needs no lease."""
    prefix = f"{encode_name(system)}/"
    present, unfinished = set(blobs.list(prefix)), list(blobs.unfinished(prefix))
    lines = catalog.lineages(system)
    rows = catalog.checkpoints(system, fates=("begun", "committed", "aborted"))
    known_bad = broken | _missing({row.place: row for row in rows if row.blobs}, present).keys()
    going = expendable(lines, rows, policy, now=now, broken=known_bad)
    after = [replace(row, condemned=row.place in going) for row in rows]
    removed = {}
    for key in _dead(_State(lines, after, catalog.generation()), present, unfinished):
        # Another collector may have been faster; what is being written has no size yet.
        with contextlib.suppress(StorageError):
            removed[key] = blobs.size(key) if key in present else 0
    committed = [row for row in rows if row.fate == "committed"]
    return Plan(
        [row for row in committed if row.place in going],
        [row for row in committed if row.place not in going],
        removed,
    )


def sweep(
    blobs: BlobStore,
    catalog: Catalog,
    lease: Lease,
    policy: Policy,
    *,
    now: float,
    broken: frozenset[Place] = frozenset(),
) -> Swept:
    """Retention and collection for the lease's system. ``broken``: cuts known not to be whole."""
    swept = Swept()
    prefix = f"{encode_name(lease.system)}/"
    # Read before listing: what such a cut lacks in the listing is missing, not just not yet written.
    old = {row.place: row for row in catalog.checkpoints(lease.system)}
    present = set(blobs.list(prefix))
    unfinished = list(blobs.unfinished(prefix))
    swept.missing = _missing(old, present)
    known_bad = broken | swept.missing.keys()

    def choose(lines: Sequence[LineageRow], rows: Sequence[CheckpointRow]) -> set[Place]:
        return expendable(lines, rows, policy, now=now, broken=known_bad)

    state = _State(*catalog.condemn(lease, choose), catalog.generation())
    swept.given_up = [row.place for row in state.rows if row.condemned]
    _remove(blobs, _dead(state, present, unfinished), swept.removed)
    living = {row.place for row in state.rows if row.fate == "committed" and not row.condemned}
    swept.missing = {place: key for place, key in swept.missing.items() if place in living}
    swept.unrecorded = [
        row
        for place, row in old.items()
        if place in living and record_key(row.manifest_key or "") not in present
    ]
    catalog.drop(lease, _droppable(state))
    return swept


def _remove(blobs: BlobStore, dead: Sequence[str], removed: list[str]) -> None:
    """Removes them in order; a record for good before anything of its cut goes, also one that a collector
    before removed and did not live to make sure of."""
    going = set(dead)
    for key in dead:
        manifest = key.removesuffix(_RECORD)
        if manifest == key or manifest not in going:
            if _is_manifest(key):
                blobs.delete(record_key(key), durable=True)
            blobs.delete(key)
        removed.append(key)


def _missing(rows: dict[Place, CheckpointRow], present: set[str]) -> dict[Place, str]:
    missing = {}
    for place, row in rows.items():
        if not present.issuperset(row.blobs):
            missing[place] = min(set(row.blobs) - present)
    return missing


def _dead(state: _State, present: set[str], unfinished: Sequence[str]) -> list[str]:
    """Of the listed keys, those that nobody needs and nobody can come to need."""
    living: set[str] = set()
    horizons: dict[tuple[str, int], int] = {}
    lowest_undecided: dict[str, int] = {}
    for row in state.rows:
        if row.fate == "begun":
            lowest_undecided.setdefault(row.lineage, row.checkpoint)
        elif row.horizon is not None:
            horizons[row.place] = row.horizon
        if row.fate == "committed" and not row.condemned:
            living.update(row.blobs)
            living.add(record_key(row.manifest_key or ""))
    undecided = {row.place for row in state.rows if row.fate == "begun"}
    next_ids = {line.lineage: line.next_checkpoint for line in state.lines}

    died = tuple(f"{prefix}{state.generation}-" for prefix in MADE_WHOLE)
    ends = (key.split("/")[1] for key in present if key.endswith(_RECORD))
    recorded = {lineage for lineage in ends if lineage.startswith(died)}

    def is_over(key: str) -> bool:
        """Whether nobody can come to need a key of this folder any more."""
        parts = parts_of(key)
        if parts is None or parts.lineage not in next_ids:
            # An import that died. One that lives holds a newer lease than that of this reading, or an older
            # one, under which it cannot finish any more.
            return parts is not None and parts.lineage.startswith(died) and parts.lineage not in recorded
        place = parts.lineage, parts.checkpoint
        if parts.checkpoint >= next_ids[parts.lineage] or place in undecided:
            return False
        # A row that is gone was decided and its horizon had passed when it went.
        horizon = horizons.get(place, 0)
        return lowest_undecided.get(parts.lineage, horizon) >= horizon

    # There are as many keys as participants times kept checkpoints, and nearly all are living.
    # A record that is there needs no second one: who was writing it died, or finds that out.
    idle = [*(present - living), *(key for key in unfinished if _whole_name(key) not in living - present)]
    return sorted(filter(is_over, idle), key=_last_what_is_needed_first)


def _last_what_is_needed_first(key: str) -> tuple[bool, bool, str]:
    """The order of removal: records, manifests, packs."""
    return not key.endswith(_RECORD), not _is_manifest(key), key


def _is_manifest(key: str) -> bool:
    name = key.rpartition("/")[2]
    return name.startswith("manifest-") and not name.endswith((_RECORD, ".pack"))


def _whole_name(key: str) -> str:
    """The key that an unfinished one is to become: records are written when the fate is decided already."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/{name[1:].rpartition('.')[0]}"


def _droppable(state: _State) -> list[Place]:
    """Rows that served their time: given up, or aborted long ago, and nobody can still build on them."""
    gone: list[Place] = []
    for line in state.lines:
        rows = [row for row in state.rows if row.lineage == line.lineage]
        lowest = min((row.checkpoint for row in rows if row.fate == "begun"), default=line.next_checkpoint)
        aborted = [row for row in rows if row.fate == "aborted"]
        old = [row for row in rows if row.condemned] + aborted[:-_ABORTED_SHOWN]
        gone += [row.place for row in old if row.horizon is not None and row.horizon <= lowest]
    return gone
