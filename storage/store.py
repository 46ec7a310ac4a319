"""A store: blobs and a catalog that belong together; and the order in which a cut becomes one.

`Store.commit_cut` is that order. The packs of the participants are durable before it begins. The manifest
becomes durable; then the catalog's row says ``committed``: this is the point of commit, and before it
nobody may be told. A commit record beside the manifest follows, from which a lost catalog can be rebuilt.
A crash before the row leaves blobs that no cut lists; a crash after it leaves a whole cut.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from cutline.errors import (
    BelowHorizon,
    BlobExists,
    CheckpointNotFound,
    Corrupt,
    Fenced,
    Misuse,
    StorageError,
)

from . import collect
from .authentic import StoreKey
from .blobs import DOCUMENT_MAX, BlobStore, manifest_key, record_key
from .catalog import Catalog, CheckpointRow, Lease, LineageRow, Place
from .codec import digest_of
from .collect import Swept
from .listing import listing_of
from .manifest import Manifest
from .memory import MemoryBlobs
from .record import commit_record
from .retention import Policy, stays
from .sqlite import SqliteCatalog
from .verify import Report, load_manifest, mark_above, survey, verify_system

__all__ = ("Store", "memory_store")

# How many effects an error names.
_LISTED = 10


@dataclass
class Store:
    """Blobs and a catalog that belong together.

    ``url`` names it to people, without secrets. ``path``: its folder; None for one in a bucket or in memory.
    """

    url: str
    blobs: BlobStore
    catalog: Catalog
    path: Path | None
    _broken: dict[Place, str] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def commit_cut(
        self, lease: Lease, manifest: Manifest, summary: dict[str, Any], now: float, *, record: bool = True
    ) -> CheckpointRow:
        """Makes a begun checkpoint a cut; returns its row. Its packs are durable already.

        When this raises Fenced, FateDecided or Corrupt, the checkpoint was not committed by this call. After
        another StorageError the outcome is unknown: ask `Catalog.fate` before telling anybody anything.
        ``record=False`` leaves the commit record to the next `sweep`.
        """
        if manifest.system != lease.system:
            raise Misuse(f"a manifest of system {manifest.system!r} under the lease of {lease.system!r}")
        key = manifest_key(manifest.system, manifest.lineage, manifest.epoch, manifest.checkpoint)
        packed = manifest.to_bytes()
        if len(packed) > DOCUMENT_MAX:
            raise StorageError(
                f"the manifest of checkpoint {manifest.checkpoint} would have {len(packed):,} bytes, more"
                f" than the {DOCUMENT_MAX:,} that are read back: let fewer or smaller messages be under way",
                checkpoint=manifest.checkpoint,
            )
        digest = digest_of(packed)
        self.blobs.create(key, [packed])
        try:
            row = self.catalog.commit(
                lease,
                manifest.lineage,
                manifest.checkpoint,
                manifest_key=key,
                manifest_digest=digest,
                blobs=(*manifest.blobs, key),
                summary=summary,
                now=now,
                listing=listing_of(manifest),
            )
        except (Fenced, Corrupt, CheckpointNotFound):
            raise
        except StorageError as error:
            # The response may be all that was lost.
            found = self._row_after(manifest)
            if found is None or found.fate != "committed" or found.manifest_digest != digest:
                raise error
            row = found
        if record:
            with contextlib.suppress(StorageError):
                self.write_record(row)
        return row

    def _row_after(self, manifest: Manifest) -> CheckpointRow | None:
        rows = self.catalog.checkpoints(
            manifest.system, lineage=manifest.lineage, fates=("begun", "committed", "aborted"), damage=[]
        )
        return next((row for row in rows if row.checkpoint == manifest.checkpoint), None)

    @property
    def is_verified(self) -> bool:
        """Whether the key is here: then all that is read is known to be written with it."""
        return self.catalog.seals.key is not None

    def take_over(self, key: StoreKey) -> None:
        """Gives the store another key: all that is in it counts as authentic from now on.

        Raises StoreInUse while a system runs in it; where the old key is here, NotAuthentic if it does not
        vouch for a row, and Corrupt for a damaged one.
        """
        self.catalog.take_over(key)
        for system in self.catalog.systems():
            for row in self.catalog.checkpoints(system, damage=[]):
                # What is missing, because this ends here, is written by the next sweep. The record of a
                # lineage whose row is damaged, in a store that was trusted, stays as it is.
                with contextlib.suppress(Corrupt):
                    self.write_record(row, anew=True)

    def write_record(self, row: CheckpointRow, *, anew: bool = False) -> None:
        """The commit record of a committed cut, unless it is there; ``anew``: in its place."""
        key = self.catalog.seals.need_key()
        line = next(line for line in self.catalog.lineages(row.system) if line.lineage == row.lineage)
        name = record_key(row.manifest_key or "")
        if anew:
            self.blobs.delete(name)
        with contextlib.suppress(BlobExists):
            self.blobs.create(name, [commit_record(row, line, key)])

    def read_manifest(self, row: CheckpointRow) -> Manifest:
        """Raises Corrupt, naming the object and the checkpoint."""
        return load_manifest(self.blobs, row)

    def newest_whole(
        self,
        system: str,
        lineage: str | None = None,
        *,
        deep: bool = True,
        damage: list[StorageError] | None = None,
    ) -> CheckpointRow:
        """The newest cut of a lineage, or of its ancestors up to the fork, that is whole.

        ``deep`` reads every byte, else documents and sizes only. What is wrong with newer cuts is appended
        to ``damage``. Raises CheckpointNotFound if nothing was ever committed, Corrupt if all of it is
        damaged: that is not a reason to start afresh.
        """
        lineage = lineage or self.catalog.head_lineage(system)
        if lineage is None:
            raise CheckpointNotFound(f"system {system!r} has no lineage in {self.url}", system=system)
        row, faults, any_cut = survey(self.blobs, self.catalog, system, lineage, deep=deep)
        with self._lock:
            self._broken.update((place, str(error)) for place, error in faults if place is not None)
        if damage is not None:
            damage += [error for _, error in faults]
        if row is not None:
            return row
        if not any_cut:
            raise CheckpointNotFound(
                f"no checkpoint was committed in lineage {lineage} of system {system!r}", system=system
            )
        raise Corrupt(
            f"no whole checkpoint is left in lineage {lineage} of system {system!r}:"
            f" {'; '.join(sorted({str(error) for _, error in faults}))}",
            system=system,
            lineage=lineage,
            key=faults[0][1].facts.get("key"),
            checkpoint=faults[0][1].facts.get("checkpoint"),
        )

    def recovery_cut(
        self, system: str, lineage: str, *, deep: bool, damage: list[StorageError]
    ) -> CheckpointRow:
        """The cut that a recovery goes to: `newest_whole`, if it is not below the lineage's horizon.

        Raises BelowHorizon, which names the damage; to go there all the same is a fork of that cut.
        """
        row = self.newest_whole(system, lineage, deep=deep, damage=damage)
        mark = mark_above(self.catalog, system, lineage, row.place)
        if mark is None:
            return row
        faults = "; ".join(sorted({str(fault) for fault in damage}))
        left = [str(each) for each in self.catalog.effects(mark[0]) if each.checkpoint > row.checkpoint]
        which = f" It does not know of {'; '.join(left[:_LISTED])}." if left else ""
        raise BelowHorizon(
            f"the newest whole cut is {row}, but something irreversible (an effect, a record, an answer) has"
            f" left from checkpoint {mark[1]} of lineage {mark[0]}: going back by itself would do it again."
            f"{which} Put back what is damaged, or say that it may be done again:"
            f" restore={str(row.checkpoint)!r} forks that cut. Damaged: {faults}",
            system=system,
            lineage=row.lineage,
            checkpoint=row.checkpoint,
            horizon=mark[1],
            damage=[str(fault) for fault in damage],
            effects=left,
        )

    @property
    def broken(self) -> frozenset[Place]:
        """Cuts that this process has found not to be whole."""
        with self._lock:
            return frozenset(self._broken)

    def delete_cut(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """Gives up one cut; the next `sweep` removes what no other needs. Cuts that build on it stay whole.

        Raises Misuse, with the reason, for one that must stay; CheckpointNotFound.
        """
        place = lineage, checkpoint
        row = next((row for row in self.catalog.checkpoints(lease.system) if row.place == place), None)
        if row is None:
            raise CheckpointNotFound(
                f"no checkpoint {checkpoint} in lineage {lineage}", checkpoint=checkpoint
            )

        def choose(lines: Sequence[LineageRow], rows: Sequence[CheckpointRow]) -> set[Place]:
            reasons = stays(lines, rows).get(place)
            if reasons:
                raise Misuse(f"{row} must stay: {', '.join(reasons)}", checkpoint=checkpoint, lineage=lineage)
            return {place}

        self.catalog.condemn(lease, choose)

    def sweep(self, lease: Lease, now: float, keep: int = 10, policy: Policy | None = None) -> Swept:
        """Retention, collection and what else is tidied behind commits; safe beside writers and other sweeps.

        Keeps of each lineage what ``policy`` keeps, or the newest ``keep`` unlabelled cuts, and what else
        must stay (see `retention`). Ages are counted from ``now``.
        """
        kept = policy or Policy(keep)
        swept = collect.sweep(self.blobs, self.catalog, lease, kept, now=now, broken=self.broken)
        for row in swept.unrecorded:
            # Another collector may just have given it up; else the next sweep tries again.
            with contextlib.suppress(StorageError):
                self.write_record(row)
        self.list_missing(lease)
        self.catalog.tidy()
        return swept

    def list_missing(self, lease: Lease) -> None:
        """Lists the participants of cuts that were not committed here; see `listing`."""
        missing = set(self.catalog.unlisted(lease.system))
        rows = self.catalog.checkpoints(lease.system, damage=[]) if missing else []
        for row in rows:
            if row.place in missing:
                # One whose manifest is damaged cannot be listed.
                with contextlib.suppress(StorageError):
                    self.catalog.put_listing(lease, row.place, listing_of(self.read_manifest(row)))

    def verify(self, system: str, told: Callable[[CheckpointRow], None] | None = None) -> Report:
        """Reads everything that the system's cuts consist of; damage is reported, not raised. ``told`` hears
        of each cut that has been read."""
        report = verify_system(self.blobs, self.catalog, system, told)
        whole = set(report.whole)
        with self._lock:
            for row in self.catalog.checkpoints(system, damage=[]):
                if row.place in whole:
                    self._broken.pop(row.place, None)
                else:
                    self._broken[row.place] = "found by verify"
        return report

    def close(self) -> None:
        """Closes the catalog."""
        self.catalog.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def memory_store() -> Store:
    """A store in this process's memory."""
    return Store("memory:", MemoryBlobs(), SqliteCatalog(":memory:"), None)
