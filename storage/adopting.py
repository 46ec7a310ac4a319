"""A lineage that is made as a whole: its blobs first, then lineage and cut in one transaction.

Read from an export (`importing`), or made of another cut (`forking`, `fork_apart`). Nobody runs such a
lineage: opening it is a fork of it. What dies before the transaction leaves blobs of a lineage that the
catalog does not know. Its name says which catalog they were for, and the next collection removes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cutline.errors import StorageError

from .blobs import manifest_key
from .catalog import CheckpointRow, Lease, LineageRow, Place
from .codec import digest_of
from .effects import EffectRow
from .manifest import Manifest
from .owners import Owner
from .store import Store

__all__ = ("Making", "adopted", "copied_row", "making", "named")

# Seconds; another owner that comes after them makes this fail, and nothing worse.
_HOLD = 600.0


class Making(NamedTuple):
    """``made``: keys of blobs written so far, which go if it fails."""

    lease: Lease
    made: list[str]
    now: float


@contextlib.contextmanager
def making(store: Store, system: str, what: str, now: float | None = None) -> Iterator[Making]:
    """The lease of a system for the time of making a lineage in it; after an error the store is as before.

    Raises StoreInUse if the system runs.
    """
    moment = time.time() if now is None else now
    owner = dataclasses.replace(Owner.here(what), driver_pid=0)
    lease = store.catalog.acquire_lease(system, owner, _HOLD, moment)
    made: list[str] = []
    try:
        yield Making(lease, made, moment)
    except BaseException:
        for key in made:
            # What cannot be removed now goes with the next collection.
            with contextlib.suppress(StorageError):
                store.blobs.delete(key)
        raise
    finally:
        with contextlib.suppress(StorageError):
            store.catalog.release_lease(lease)


def named(store: Store, prefix: str) -> str:
    """A new lineage's name; the prefix is one of `MADE_WHOLE`."""
    return f"{prefix}{store.catalog.generation()}-{os.urandom(8).hex()}"


def adopted(
    store: Store, under: Making, line: LineageRow, row: CheckpointRow, answers: Sequence[EffectRow] = ()
) -> CheckpointRow:
    """Makes lineage and cut count, with outcomes of effects and questions; all its blobs are durable."""
    # From here on the cut may be there, whatever is heard of it.
    under.made.clear()
    try:
        made = store.catalog.adopt(under.lease, line, row, answers)
    except StorageError:
        # The answer may be all that was lost.
        found = [each for each in store.catalog.checkpoints(row.system, damage=[]) if each.place == row.place]
        if not found:
            raise
        made = found[0]
    with contextlib.suppress(StorageError):
        # The next sweep does it otherwise.
        store.list_missing(under.lease)
    return made


def copied_row(
    store: Store,
    under: Making,
    row: CheckpointRow,
    manifest: Manifest,
    parent: Place | None,
    facts: Mapping[str, Any],
) -> CheckpointRow:
    """The row of a cut that is made of another one, whose row is ``row``; the manifest is durable when this
    returns. ``facts``: what its summary says besides, or in place of what is there.
    """
    key = manifest_key(manifest.system, manifest.lineage, manifest.epoch, manifest.checkpoint)
    packed = manifest.to_bytes()
    under.made.append(key)
    store.blobs.create(key, [packed])
    # Requests belong to the run that made the cut.
    summary = {name: value for name, value in row.summary.items() if name != "asked"}
    return dataclasses.replace(
        row,
        system=manifest.system,
        lineage=manifest.lineage,
        checkpoint=manifest.checkpoint,
        kind=manifest.kind,
        label=manifest.label,
        epoch=manifest.epoch,
        begun_at=under.now,
        decided_at=under.now,
        parent=parent,
        manifest_key=key,
        manifest_digest=digest_of(packed),
        blobs=(*manifest.blobs, key),
        summary={**summary, **facts},
    )
