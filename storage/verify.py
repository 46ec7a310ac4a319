"""Reading a cut to see whether it is whole.

A cut is whole if its manifest is the one its row names and every pack of every image in it is there,
undamaged, and linked to its parent by digest. ``deep`` reads every byte; otherwise the documents and the
sizes are checked, which finds what is missing, cut, or swapped, but not a flipped bit in a content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from cutline.errors import BlobNotFound, Corrupt, StorageError

from .authentic import StoreKey, forged
from .blobs import BlobStore, corrupt, encode_name, parts_of, read_document, record_key
from .catalog import Catalog, CheckpointRow, Place
from .finding import ancestry
from .image import ImageRef, check_image
from .manifest import Manifest
from .pack import check_alone
from .record import read_record

__all__ = (
    "Report",
    "faults_of",
    "load_manifest",
    "lost_commits",
    "mark_above",
    "row_faults",
    "survey",
    "verify_system",
)


@dataclass(slots=True)
class Report:
    """``whole``: cuts found whole. ``broken``: the others, and the objects that are damaged or missing.
    ``faults``: all that is wrong. ``newest``: the newest whole cut that each lineage can go back to; None
    for one that has none."""

    whole: list[Place] = field(default_factory=list)
    broken: dict[Place, list[str]] = field(default_factory=dict)
    faults: list[StorageError] = field(default_factory=list)
    newest: dict[str, Place | None] = field(default_factory=dict)


def load_manifest(blobs: BlobStore, row: CheckpointRow) -> Manifest:
    """The manifest of a committed row. Raises Corrupt if it is missing or not the one that was committed."""
    key, digest = row.manifest_key, row.manifest_digest
    if key is None or digest is None:
        raise corrupt(f"row of {row}", "names no manifest")
    try:
        packed = read_document(blobs, key)
    except BlobNotFound as error:
        raise corrupt(key, "is missing") from error
    manifest = Manifest.from_bytes(packed, key, digest)
    if (manifest.lineage, manifest.checkpoint) != row.place or manifest.system != row.system:
        raise corrupt(key, "is the manifest of another checkpoint")
    return manifest


def faults_of(
    blobs: BlobStore, row: CheckpointRow, *, deep: bool, known: set[tuple[str, bytes]] | None = None
) -> Iterator[StorageError]:
    """What keeps a cut from being whole. ``known``: packs found good before; grows."""
    try:
        manifest = load_manifest(blobs, row)
    except StorageError as error:
        yield error
        return
    for image in manifest.images.values():
        try:
            check_image(blobs, image.ref, deep=deep, known=known)
        except StorageError as error:
            yield error


def _all_faults_of(
    blobs: BlobStore, row: CheckpointRow, digests: Mapping[str, bytes], known: set[tuple[str, bytes]]
) -> Iterator[StorageError]:
    """As `faults_of`, and goes on behind a fault: each damaged pack that the cut needs is named."""
    try:
        manifest = load_manifest(blobs, row)
    except StorageError as error:
        yield error
        named = {row.manifest_key}
        # What it would have referred to is known from the row, and each pack can be read by itself.
        yield from _alone(blobs, (key for key in row.blobs if key not in named), digests)
        return
    for image in manifest.images.values():
        try:
            check_image(blobs, image.ref, deep=True, known=known)
        except StorageError as error:
            yield error
            first = error.facts.get("key")
            yield from _alone(blobs, (key for key in image.ref.chain if key != first), digests)


def _alone(blobs: BlobStore, keys: Iterator[str], digests: Mapping[str, bytes]) -> Iterator[StorageError]:
    for key in keys:
        try:
            check_alone(blobs, key, digests.get(key))
        except StorageError as error:
            yield error


def _references(blobs: BlobStore, rows: list[CheckpointRow]) -> Iterator[ImageRef]:
    """The images that readable manifests refer to."""
    for row in rows:
        with contextlib.suppress(StorageError):
            yield from (image.ref for image in load_manifest(blobs, row).images.values())


def row_faults(blobs: BlobStore, row: CheckpointRow, key: StoreKey | None) -> Iterator[StorageError]:
    """What is wrong with a commit record, which no restore needs. ``key``: the store's, if it is here."""
    name = record_key(row.manifest_key or "")
    try:
        record = read_record(read_document(blobs, name), name)
    except BlobNotFound:
        # It is written after the commit; a crash in between is nothing lost.
        return
    except StorageError as error:
        yield error
        return
    if record.row.manifest_digest != row.manifest_digest:
        yield corrupt(name, "is the commit record of another cut; the cut itself does not need it")
    elif key is not None and record.key_id == key.id and not record.is_authentic(key):
        yield forged(f"commit record {name}", key=name)


def lost_commits(blobs: BlobStore, catalog: Catalog, system: str) -> list[Corrupt]:
    """Commit records that the catalog contradicts: it has lost what it once had said.

    SQLite drops the end of a damaged log without a word; the records, written after each commit, tell.
    """
    # Listed before the catalog is read: a running system may be committing.
    records = [key for key in blobs.list(f"{encode_name(system)}/") if key.endswith(".commit")]
    next_ids = {line.lineage: line.next_checkpoint for line in catalog.lineages(system)}
    rows = catalog.checkpoints(system, fates=("begun", "aborted"), damage=[])
    uncommitted = {row.place for row in rows}
    lost = []
    for key in records:
        parts = parts_of(key)
        if parts is None:
            continue
        place = parts.lineage, parts.checkpoint
        if place in uncommitted or parts.checkpoint >= next_ids.get(parts.lineage, 0):
            lost.append(corrupt(key, "tells of a commit that the catalog has lost"))
    return lost


def survey(
    blobs: BlobStore, catalog: Catalog, system: str, lineage: str, *, deep: bool
) -> tuple[CheckpointRow | None, list[tuple[Place | None, StorageError]], bool]:
    """(newest whole cut, faults of the newer ones, whether there was any cut) along a lineage's ancestry."""
    damage = lost_commits(blobs, catalog, system)
    rows = catalog.checkpoints(system, damage=damage)
    faults: list[tuple[Place | None, StorageError]] = [(None, error) for error in damage]
    any_cut = bool(damage)
    for name, limit in ancestry(catalog.lineages(system), lineage):
        for row in reversed(rows):
            if row.lineage != name or (limit is not None and row.checkpoint > limit):
                continue
            any_cut = True
            found = list(faults_of(blobs, row, deep=deep))
            if not found:
                return row, faults, True
            faults += [(row.place, error) for error in found]
    return None, faults, any_cut


def mark_above(catalog: Catalog, system: str, lineage: str, place: Place) -> Place | None:
    """The horizon above ``place``, which lies on the lineage or its ancestry; None if going there is free."""
    for name, limit in ancestry(catalog.lineages(system), lineage):
        horizon = catalog.horizon(name)
        # What left an ancestor behind the point of the fork is not this lineage's to keep.
        mark = horizon if limit is None else min(horizon, limit)
        if mark > (place[1] if name == place[0] else 0):
            return name, mark
        if name == place[0]:
            return None
    return None


def verify_system(
    blobs: BlobStore, catalog: Catalog, system: str, told: Callable[[CheckpointRow], None] | None = None
) -> Report:
    """Reads everything that a system's cuts consist of. ``told`` hears of each cut that has been read."""
    report = Report()
    damage = lost_commits(blobs, catalog, system)
    known: set[tuple[str, bytes]] = set()
    found: dict[Place, list[StorageError]] = {}
    rows = catalog.checkpoints(system, damage=damage)
    digests = {ref.key: ref.digest for ref in _references(blobs, rows)}
    for row in rows:
        faults = list(_all_faults_of(blobs, row, digests, known))
        if not faults:
            report.whole.append(row.place)
        found[row.place] = [*faults, *row_faults(blobs, row, catalog.seals.key)]
        if told is not None:
            told(row)
    # Retention may have given one up while it was read.
    living = {row.place for row in catalog.checkpoints(system, damage=[])}
    report.whole = [place for place in report.whole if place in living]
    faults = [*damage, *(fault for place in found if place in living for fault in found[place])]
    # A part that several cuts need is named once.
    report.faults = list({str(fault): fault for fault in faults}.values())
    report.broken = {
        place: sorted({str(fault.facts.get("key")) for fault in found[place]})
        for place in found
        if place in living and place not in report.whole
    }
    lines = catalog.lineages(system)
    for line in lines:
        report.newest[line.lineage] = next(
            (
                place
                for name, limit in ancestry(lines, line.lineage)
                for place in reversed(report.whole)
                if place[0] == name and (limit is None or place[1] <= limit)
            ),
            None,
        )
    return report
