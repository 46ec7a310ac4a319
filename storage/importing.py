"""Reading an export into a store.

The cut becomes the only one of a new lineage whose name begins with `IMPORTED`. Nobody runs that lineage:
opening it is a fork of it, so a copy owns nothing of what its source owns. Packs and manifest are durable
before one transaction makes lineage and row; an import that dies before leaves blobs of a lineage that the
catalog does not know, which the next collection removes.

Whoever imports with a claim says that the copy goes on in place of its source. Where the source is at hand
it is told, and does not go on by itself any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from cutline.errors import (
    BlobNotFound,
    Corrupt,
    Misuse,
    NewerFormat,
    NotAStore,
    StorageError,
)

from .adopting import Making, adopted, making, named
from .authentic import MAC_SIZE, SEAL_SIZE, foreign, forged
from .blobs import BlobStore, check_name, manifest_key, pack_key
from .catalog import CheckpointRow, LineageRow, check_label
from .codec import decode, digest_of
from .collect import IMPORTED, MADE_WHOLE
from .directory import DirectoryBlobs
from .disk import meaning
from .effects import EffectRow, answers_after
from .export import EXPORT_FORMAT, FIELDS, HEAD, HEAD_FILE, MAGIC, PURPOSE, pack_file
from .image import ImageRef, check_image
from .keys import find_key
from .manifest import Manifest, MemberImage
from .owners import IMPORTING, Owner
from .store import Store

__all__ = (
    "Export",
    "check_authentic",
    "claim_source",
    "claimed_by",
    "import_cut",
    "open_export",
    "place_of_claim",
)

_CHUNK = 1 << 20
# Seconds; another owner that comes after them makes the import fail, and nothing worse.
_HOLD = 600.0
_CLAIM = "claimed:"
# Where the numbers end that every catalog can hold.
_NUMBERS = 1 << 62


class _Packed:
    """An export in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str, start: int, length: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(length)

    def size(self, name: str) -> int:
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class Export:
    """An export whose document is sound. ``parts``: the packs' file and start, by number."""

    path: Path
    doc: dict[str, Any]
    digest: bytes
    mac: bytes
    files: _Packed | DirectoryBlobs
    parts: tuple[tuple[str, int], ...]

    @property
    def system(self) -> str:
        return str(self.doc["system"])

    def chunks(self, number: int, size: int) -> Iterator[bytes]:
        """The bytes of a pack."""
        name, start = self.parts[number]
        for offset in range(0, size, _CHUNK):
            yield self.files.read(name, start + offset, min(_CHUNK, size - offset))


def open_export(path: str | os.PathLike[str]) -> Export:
    """Reads the head and compares sizes. Raises NotAStore if there is none, NewerFormat, Corrupt."""
    place = Path(os.path.abspath(path))
    try:
        return _opened(place)
    except FileNotFoundError as error:
        if isinstance(error, NotAStore):
            raise
        raise NotAStore(f"no export at {place}: check the path", path=str(place)) from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise meaning(error, str(place), writing=False) from error


def _opened(place: Path) -> Export:
    whole = not place.is_dir()
    if whole and place.exists() and not place.is_file():
        # A pipe would be waited for.
        raise NotAStore(f"{place} is neither a file nor a folder, so no export", path=str(place))
    files: _Packed | DirectoryBlobs = _Packed(place) if whole else DirectoryBlobs(place)
    start = files.read(HEAD_FILE, 0, HEAD.size)
    if len(start) < HEAD.size or start[:8] != MAGIC:
        raise NotAStore(f"{place} is no export of a checkpoint", path=str(place))
    _, version, nothing, length = HEAD.unpack(start)
    if version > EXPORT_FORMAT:
        raise NewerFormat(
            f"{place} was exported by a newer Cutline (format {version}, this one reads {EXPORT_FORMAT}):"
            " upgrade cutline",
            path=str(place),
            format=version,
        )
    body = files.read(HEAD_FILE, HEAD.size, min(length, files.size(HEAD_FILE)))
    if len(body) != length or version != EXPORT_FORMAT or nothing:
        raise _damaged(place, "its head is cut short or damaged")
    images, doc = _checked(place, body)
    ends = [HEAD.size + length]
    for image in images:
        ends.append(ends[-1] + image["size"])
    names = [pack_file(image["pack"]) for image in images]
    wanted = [(HEAD_FILE, ends[-1] if whole else ends[0])]
    wanted += [] if whole else list(zip(names, (image["size"] for image in images), strict=True))
    for name, size in wanted:
        try:
            found = files.size(name)
        except BlobNotFound as error:
            raise _damaged(place, f"{name} is missing") from error
        if found != size:
            raise _damaged(place, f"{name} has {found} bytes where {size} were written")
    parts = [(HEAD_FILE, end) for end in ends[:-1]] if whole else [(name, 0) for name in names]
    return Export(place, doc, body[-SEAL_SIZE:-MAC_SIZE], body[-MAC_SIZE:], files, tuple(parts))


def _checked(place: Path, content: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(images by number of their pack, the document)."""
    body = content[:-SEAL_SIZE]
    if digest_of(body) != content[-SEAL_SIZE:-MAC_SIZE]:
        raise _damaged(place, "its document is damaged")
    try:
        doc: dict[str, Any] = decode(body)
        if not doc.keys() >= FIELDS or not doc["source"].keys() >= {"url", "lineage"}:
            raise ValueError("a field is missing")
        if not isinstance(doc["key"], (str, type(None))):
            raise ValueError("a key's id is none")
        images = sorted(doc["images"].values(), key=lambda image: int(image["pack"]))
        if [image["pack"] for image in images] != list(range(len(images))):
            raise ValueError("packs are not numbered in order")
        for image in images:
            if type(image["size"]) is not int or image["size"] < 0 or type(image["birth"]) is not int:
                raise ValueError("a size or a birth is none")
            if any(type(image[name]) is not bytes or len(image[name]) != 32 for name in ("hash", "digest")):
                raise ValueError("a digest is none")
        _check_fields(doc)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(place, f"its document makes no sense ({error!r})") from error
    return images, doc


def _check_fields(doc: dict[str, Any]) -> None:
    """Raises ValueError for a document that would not become a row."""
    numbers = [doc[name] for name in ("checkpoint", "epoch", "next_birth")]
    if any(type(number) is not int or not 0 <= number < _NUMBERS for number in numbers):
        raise ValueError("a number is none")
    if any(type(doc[name]) is not float for name in ("created_at", "begun_at", "decided_at")):
        raise ValueError("a time is none")
    texts = [doc["system"], doc["export"], *doc["roster"], *doc["images"]]
    texts += [row.key for row in _answers(doc, "")]
    if doc["label"] is not None:
        texts.append(check_label(doc["label"]))
    if type(doc["roster"]) is not list or any(type(text) is not str for text in texts):
        raise ValueError("a name is none")
    if type(doc["summary"]) is not dict or type(doc["source"]) is not dict:
        raise ValueError("a map is none")


def _damaged(place: Path, what: str) -> Corrupt:
    return Corrupt(
        f"export {place}: {what}. Nothing was imported; export the checkpoint again, or take another copy",
        path=str(place),
        key=place.name,
        what=what,
    )


def import_cut(
    store: Store,
    export: Export,
    *,
    name: str | None = None,
    claim: bool = False,
    trust: bool = False,
    answers: Sequence[EffectRow] = (),
    now: float | None = None,
) -> CheckpointRow:
    """Makes the exported cut the newest one of system ``name`` (by default that of the export).

    With ``claim`` it is made once: a store that has such a copy of this export gets no other one, and what
    ``answers`` has besides is added to that copy, as long as nobody has answered the same there.

    ``trust``: whoever made the export, it may run code here once it is restored. ``answers``: what the source
    has of a claim besides (`claim_source`).

    Raises ForeignStore without that if the key of the store it came from is not here, NotAuthentic if it does
    not verify; Corrupt, naming the participant, for bytes that are not what was exported; StoreInUse if the
    system runs; Misuse if the store has such a copy under another name. After any error the store is as
    before.
    """
    if not trust:
        check_authentic(store, export)
    system = check_name(name if name is not None else export.system, "system")
    made = _claimed_here(store, export) if claim else None
    if made is not None:
        return _answered_later(store, export, made, system, answers)
    with making(store, system, IMPORTING, now) as under:
        row = _imported(store, export, under, claim, answers)
    with contextlib.suppress(StorageError):
        store.write_record(row)
    return row


def _claimed_here(store: Store, export: Export) -> CheckpointRow | None:
    """The copy of that export that goes on here in place of its source, if there is one."""
    for system in store.catalog.systems():
        for row in store.catalog.checkpoints(system, damage=[]):
            facts = row.summary.get("imported", {})
            if row.lineage.startswith(IMPORTED) and facts.get("claimed"):
                if facts["export"] == export.doc["export"]:
                    return row
    return None


def _answered_later(
    store: Store, export: Export, row: CheckpointRow, system: str, answers: Sequence[EffectRow]
) -> CheckpointRow:
    if row.system != system:
        raise Misuse(
            f"export {export.doc['export']} was imported with a claim before and goes on in {store.url} as"
            f" system {row.system!r}: only one copy can go on in place of its source; import without --claim"
            " for a fork",
            system=row.system,
            lineage=row.lineage,
        )
    for each in answers:
        store.catalog.settle(system, dataclasses.replace(each, lineage=row.lineage))
    return row


def check_authentic(store: Store, export: Export) -> None:
    """Raises ForeignStore if the key of the store that an export came from is not here, NotAuthentic if it
    does not verify with it."""
    key_id, own = export.doc["key"] or "", store.catalog.seals.key
    key = own if own is not None and own.id == key_id else find_key(key_id)
    what = f"the export {export.path}"
    if key is None:
        raise foreign(what, key_id, "so nobody knows who made it, and nothing was imported")
    if not key.vouches(PURPOSE, export.digest, export.mac):
        raise forged(what, path=str(export.path))


def _imported(
    store: Store, export: Export, under: Making, claim: bool, more: Sequence[EffectRow]
) -> CheckpointRow:
    doc, system = export.doc, under.lease.system
    # Of a claim there is one, whoever else is about to make it.
    lineage = place_of_claim(store, export) if claim else named(store, IMPORTED)
    checkpoint, epoch = int(doc["checkpoint"]), int(doc["epoch"])
    images = {}
    for participant, image in doc["images"].items():
        key = pack_key(system, lineage, epoch, checkpoint, participant, image["birth"])
        under.made.append(key)
        images[participant] = MemberImage(
            image["birth"], _copied(store.blobs, export, participant, image, key)
        )
    manifest = Manifest(
        system,
        lineage,
        checkpoint,
        epoch,
        "full",
        doc["label"],
        None,
        doc["created_at"],
        images,
        doc["channels"],
    )
    packed, key = manifest.to_bytes(), manifest_key(system, lineage, epoch, checkpoint)
    under.made.append(key)
    store.blobs.create(key, [packed])
    source = {name: value for name, value in doc["source"].items() if name != "manifest_digest"}
    before = doc["summary"].get("imported", {})
    if claim and before.get("claimed"):
        # Nobody ran the source either: what was said to its own source counts here too.
        source["before"] = [before["lineage"], *before.get("before", ())]
    row = CheckpointRow(
        system=system,
        lineage=lineage,
        checkpoint=checkpoint,
        kind="full",
        label=doc["label"],
        fate="committed",
        begun_at=doc["begun_at"],
        decided_at=doc["decided_at"],
        epoch=epoch,
        parent=None,
        manifest_key=key,
        manifest_digest=digest_of(packed),
        blobs=(*manifest.blobs, key),
        roster=tuple(doc["roster"]),
        summary={**doc["summary"], "imported": {**source, "export": doc["export"], "claimed": claim}},
    )
    line = LineageRow(lineage, system, 0, None, epoch, checkpoint + 1, int(doc["next_birth"]))
    # They were given to whoever goes on; a fork asks anew.
    given = [*_answers(doc, lineage), *(dataclasses.replace(each, lineage=lineage) for each in more)]
    answers = list({each.key: each for each in given}.values()) if claim else []
    return adopted(store, under, line, row, answers)


def _answers(doc: dict[str, Any], lineage: str) -> list[EffectRow]:
    """What people have said in the source, under the keys that questions have there."""
    return [EffectRow.from_doc(lineage, each) for each in doc.get("answers", ())]


def _copied(blobs: BlobStore, export: Export, participant: str, image: dict[str, Any], key: str) -> ImageRef:
    hasher = blake3()
    size = int(image["size"])

    def chunks() -> Iterator[bytes]:
        for chunk in export.chunks(image["pack"], size):
            hasher.update(chunk)
            yield chunk

    written = blobs.create(key, chunks())
    if written != size or hasher.digest() != image["hash"]:
        raise _damaged(export.path, f"the image of participant {participant!r} is damaged")
    ref = ImageRef(key, bytes(image["digest"]), "full", (key,), size)
    check_image(blobs, ref, deep=False)
    return ref


# Claims


def place_of_claim(store: Store, export: Export) -> str:
    """The lineage that goes on in a store in place of an export's source: there is one for each export."""
    digits = digest_of(str(export.doc["export"]).encode()).hex()[:16]
    return f"{IMPORTED}{store.catalog.generation()}-{digits}"


def claim_source(source: Store, export: Export, copy: str, now: float | None = None) -> list[EffectRow]:
    """Tells the store that an export came from that its system goes on in the copy, which is the lineage
    ``copy`` of another store (`place_of_claim`), and has to be made yet.

    From then on it takes no answers. Returns those that it has, which may have come after the export was made
    and belong to the copy (`import_cut`). The same copy may claim it again: its import may have failed.

    Raises StoreInUse while that system runs; Misuse if another copy has claimed it before, if it has gone on
    since the export was made, or if it is not the source.
    """
    lineage = str(export.doc["source"]["lineage"])
    system = export.system
    if lineage not in {line.lineage for line in source.catalog.lineages(system)}:
        raise Misuse(
            f"{source.url} has no lineage {lineage} of system {system!r}: the export is not from there"
        )
    moment = time.time() if now is None else now
    owner = dataclasses.replace(Owner.here("cutline import --claim"), driver_pid=0)
    lease = source.catalog.acquire_lease(system, owner, _HOLD, moment)
    try:
        before, claim = _claim_of(source, lineage), f"{export.doc['export']}:{copy}"
        if before is not None and before != claim:
            raise Misuse(
                f"lineage {lineage} of system {system!r} was claimed by another copy (export"
                f" {before.partition(':')[0]}): only one can go on in its place; import without --claim for a"
                " fork",
                lineage=lineage,
            )
        if before is None:
            _refuse_gone_on(source, export, lineage)
            source.catalog.count_failure(lease, lineage, f"{_CLAIM}{claim}")
        return answers_after(source.catalog.effects(lineage), int(export.doc["checkpoint"]))
    finally:
        source.catalog.release_lease(lease)


def _refuse_gone_on(source: Store, export: Export, lineage: str) -> None:
    """What came after the export would be lost in its copy, or done twice."""
    system, point = export.system, int(export.doc["checkpoint"])
    later = [row for row in source.catalog.checkpoints(system, lineage=lineage) if row.checkpoint > point]
    closed = source.catalog.unopened(system)
    opened = [
        line
        for line in source.catalog.lineages(system)
        if line.origin == (lineage, point) and line.lineage not in closed
    ]
    # An ordinary lineage does not go on in its forks; a copy does in the first that was opened of it.
    gone_on = str(later[-1]) if later else f"lineage {opened[0].lineage}" if opened else ""
    if later or (opened and lineage.startswith(MADE_WHOLE)):
        raise Misuse(
            f"system {system!r} has gone on in {source.url} since checkpoint {point} was exported, to"
            f" {gone_on}: the copy cannot go on in its place. Suspend it and export that savepoint, or import"
            " without --claim for a fork",
            system=system,
            lineage=lineage,
            checkpoint=point,
        )


def claimed_by(store: Store, lineage: str) -> str | None:
    """The export by which a lineage was claimed."""
    claim = _claim_of(store, lineage)
    return None if claim is None else claim.partition(":")[0]


def _claim_of(store: Store, lineage: str) -> str | None:
    """The export and the lineage that goes on; of older versions the export alone."""
    claims = [key for key in store.catalog.failures(lineage) if key.startswith(_CLAIM)]
    return claims[0].removeprefix(_CLAIM) if claims else None
