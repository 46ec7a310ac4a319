"""A cut made of another one: some of its images are replaced, the others are named where they lie.

The new cut is the only one of a new lineage that comes from the old one. Nothing of the old one is changed;
what both need stays for as long as one of them does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cutline.errors import CheckpointNotFound, StorageError

from .adopting import Making, adopted, copied_row, making, named
from .blobs import pack_key
from .catalog import CheckpointRow, LineageRow, check_label
from .collect import EDITED
from .folding import MOST
from .image import Piece, Region, read_sections, write_image
from .manifest import MemberImage
from .owners import EDITING
from .store import Store

__all__ = ("NewState", "fork_cut")


@dataclass(frozen=True, slots=True)
class NewState:
    """A participant's state in place of the one that the cut has, relative to that one. ``header``: of the
    image. Its calls and messages stay as they are."""

    header: Mapping[str, Any]
    pieces: Sequence[Piece]
    regions: Sequence[Region]


def fork_cut(
    store: Store,
    row: CheckpointRow,
    states: Mapping[str, NewState],
    *,
    label: str | None = None,
    channels: Any = None,
    now: float | None = None,
) -> CheckpointRow:
    """Makes a lineage whose only cut is ``row`` with other states; it becomes the system's newest.

    ``channels``: in place of what the manifest says of them.

    Raises StoreInUse if the system runs, ForeignStore without the key, RefusedOption for a label that can be
    none, CheckpointNotFound if retention has taken the cut, Corrupt. After any error the store is as before.
    """
    if label is not None:
        check_label(label)
    store.catalog.seals.need_key()
    with making(store, row.system, EDITING, now) as under:
        made = _forked(store, under, row, states, label, channels)
    with contextlib.suppress(StorageError):
        store.write_record(made)
    return made


def _forked(
    store: Store,
    under: Making,
    row: CheckpointRow,
    states: Mapping[str, NewState],
    label: str | None,
    channels: Any,
) -> CheckpointRow:
    system, now = row.system, under.now
    found = store.catalog.find(system, f"{row.lineage}/{row.checkpoint}")
    if found.manifest_digest != row.manifest_digest:
        raise CheckpointNotFound(f"{row} is another one by now", checkpoint=row.checkpoint)
    manifest = store.read_manifest(row)
    line = next(line for line in store.catalog.lineages(system) if line.lineage == row.lineage)
    lineage, checkpoint, epoch = named(store, EDITED), row.checkpoint + 1, row.epoch
    images, written = dict(manifest.images), 0
    for name, state in states.items():
        old = manifest.images[name]
        key = pack_key(system, lineage, epoch, checkpoint, name, old.birth)
        under.made.append(key)
        ref = write_image(
            store.blobs,
            key,
            header=state.header,
            sections=dict(read_sections(store.blobs, old.ref)),
            pieces=state.pieces,
            regions=state.regions,
            parent=old.ref,
            most=MOST,
        )
        images[name] = MemberImage(old.birth, ref)
        written += ref.size
    forked = replace(
        manifest,
        lineage=lineage,
        checkpoint=checkpoint,
        epoch=epoch,
        kind="full" if all(image.ref.kind == "full" for image in images.values()) else "delta",
        label=label,
        parent_checkpoint=row.place,
        created_at=now,
        images=images,
        channels=manifest.channels if channels is None else channels,
    )
    edited = {"participants": sorted(states), "lineage": row.lineage, "checkpoint": row.checkpoint}
    facts = {"written_bytes": written, "edited": edited}
    made = copied_row(store, under, row, forked, row.place, facts)
    return adopted(store, under, _line_of(line, lineage, row), made)


def _line_of(line: LineageRow, lineage: str, row: CheckpointRow) -> LineageRow:
    return replace(line, lineage=lineage, origin=row.place, next_checkpoint=row.checkpoint + 2)
