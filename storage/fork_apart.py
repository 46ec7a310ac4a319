"""A cut as the beginning of another system, which runs beside the one that it came from.

All of it is copied: images as full ones, under keys of the new system, so that neither retention nor
collection of one system has to know of the other. Nothing of the origin is changed, and its lease is not
needed: it may run. What became of its effects is copied where the fork is to be told that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cutline.errors import BlobNotFound, CheckpointNotFound, DuplicateName, StorageError

from .adopting import Making, adopted, copied_row, making, named
from .blobs import check_name, effect_key, pack_key
from .catalog import Catalog, CheckpointRow, LineageRow, check_label
from .collect import FORKED
from .effects import RECORDED, EffectRow, Rule
from .export import whole_image
from .finding import ancestry
from .folding import MOST
from .forking import NewState
from .image import read_sections, write_image
from .manifest import Manifest, MemberImage
from .owners import FORKING
from .store import Store

__all__ = ("Wish", "comes_from", "fork_apart", "recorded")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a fork is to be: the name of its system, what becomes of its effects, the label of its cut, states
    in place of those that the cut has, what its manifest says of the channels, what is noted of it for
    people."""

    system: str
    effects: Rule
    label: str | None
    states: Mapping[str, NewState]
    channels: Any
    facts: Mapping[str, Any]


def fork_apart(
    store: Store,
    row: CheckpointRow,
    wish: Wish,
    before: Callable[[str], None] | None = None,
    now: float | None = None,
) -> CheckpointRow:
    """Makes the system, whose only cut is a copy of ``row``. Nobody runs its lineage: opening it is a fork.

    ``before``: is called with the lineage's name before the lineage counts.

    Raises DuplicateName if there is a system of that name, StoreInUse if somebody makes one, RefusedOption
    for a name or a label that can be none, ForeignStore without the key, CheckpointNotFound if retention has
    taken the cut, Corrupt. After any error the store is as before.
    """
    if wish.label is not None:
        check_label(wish.label)
    check_name(wish.system, "system")
    store.catalog.seals.need_key()
    with making(store, wish.system, FORKING, now) as under:
        if wish.system in store.catalog.systems():
            raise DuplicateName(
                f"there is a system {wish.system!r} in {store.url}: choose another name for the fork"
            )
        try:
            made = _made(store, under, row, wish, before)
        except StorageError as error:
            # A running origin goes on to forget; what is missing now may just have been forgotten.
            store.catalog.find(row.system, f"{row.lineage}/{row.checkpoint}")
            raise error
    with contextlib.suppress(StorageError):
        store.write_record(made)
    return made


def _made(
    store: Store, under: Making, row: CheckpointRow, wish: Wish, before: Callable[[str], None] | None
) -> CheckpointRow:
    found = store.catalog.find(row.system, f"{row.lineage}/{row.checkpoint}")
    if found.manifest_digest != row.manifest_digest:
        raise CheckpointNotFound(f"{row} is another one by now", checkpoint=row.checkpoint)
    manifest = store.read_manifest(row)
    line = next(line for line in store.catalog.lineages(row.system) if line.lineage == row.lineage)
    lineage = named(store, FORKED)
    images = {
        name: _image(store, under, wish, manifest, lineage, name) for name in manifest.images
    }  # fmt: skip
    forked = replace(
        manifest,
        system=wish.system,
        lineage=lineage,
        kind="full" if all(image.ref.kind == "full" for image in images.values()) else "delta",
        label=wish.label,
        parent_checkpoint=None,
        created_at=under.now,
        images=images,
        channels=manifest.channels if wish.channels is None else wish.channels,
    )
    births = (image.birth + 1 for image in manifest.images.values())
    new_line = LineageRow(
        lineage, wish.system, 0, None, row.epoch, row.checkpoint + 1, max(line.next_birth, *births)
    )
    written = sum(image.ref.size for image in images.values())
    forked_from = {"system": row.system, "lineage": row.lineage, "checkpoint": row.checkpoint, **wish.facts}
    facts = {"written_bytes": written, "forked": forked_from}
    new_row = copied_row(store, under, row, forked, None, facts)
    outcomes = _outcomes(store, under, row, wish, lineage)
    # Before the lineage counts: its effects must never be free for a moment.
    store.catalog.rule_effects(under.lease, lineage, wish.effects)
    if before is not None:
        before(lineage)
    return adopted(store, under, new_line, new_row, outcomes)


def _image(
    store: Store, under: Making, wish: Wish, manifest: Manifest, lineage: str, name: str
) -> MemberImage:
    old = manifest.images[name]
    place = wish.system, lineage, manifest.epoch, manifest.checkpoint, name, old.birth
    key = pack_key(*place)
    under.made.append(key)
    ref, _ = whole_image(store.blobs, old, store.blobs, key)
    state = wish.states.get(name)
    if state is None:
        return MemberImage(old.birth, ref)
    changed = pack_key(*place)
    under.made.append(changed)
    ref = write_image(
        store.blobs,
        changed,
        header=state.header,
        sections=dict(read_sections(store.blobs, ref)),
        pieces=state.pieces,
        regions=state.regions,
        parent=ref,
        most=MOST,
    )
    return MemberImage(old.birth, ref)


def comes_from(catalog: Catalog, system: str, lineage: str) -> list[str]:
    """The lineage and those that it comes from, also where they are of another system."""
    names: list[str] = []
    lines = {line.lineage: line for line in catalog.lineages(system)}
    while lineage in lines:
        names.append(lineage)
        origin = lines[lineage].origin
        if origin is not None:
            lineage = origin[0]
            continue
        rows = catalog.checkpoints(system, lineage=lineage, damage=[]) if lineage.startswith(FORKED) else []
        facts = rows[0].summary.get("forked", {}) if rows else {}
        lineage, system = facts.get("lineage", ""), facts.get("system", system)
        lines = {line.lineage: line for line in catalog.lineages(system)}
    return names


# Outcomes of effects


def recorded(catalog: Catalog, system: str, lineage: str, checkpoint: int) -> list[EffectRow]:
    """What became of effects that a cut does not know the outcome of, in its lineage and those before it."""
    found: dict[str, EffectRow] = {}
    for name, limit in ancestry(catalog.lineages(system), lineage):
        point = checkpoint if limit is None else min(limit, checkpoint)
        for row in catalog.effects(name):
            if row.is_final and (row.done is None or row.done > point):
                found.setdefault(row.key, row)
    return list(found.values())


def _outcomes(
    store: Store, under: Making, row: CheckpointRow, wish: Wish, lineage: str
) -> Sequence[EffectRow]:
    """The origin's, as rows of the fork; large results are copied."""
    if wish.effects != RECORDED:
        return ()
    outcomes = []
    for each in recorded(store.catalog, row.system, row.lineage, row.checkpoint):
        blob = each.blob
        if blob is not None:
            key = effect_key(wish.system, each.participant, each.birth, each.number)
            try:
                answer = store.blobs.read(blob[0])
            except BlobNotFound:
                # The origin, which runs, has just forgotten it.
                continue
            under.made.append(key)
            store.blobs.create(key, [answer])
            blob = key, blob[1], blob[2]
        outcomes.append(replace(each, lineage=lineage, attempt=1, blob=blob))
    return outcomes
