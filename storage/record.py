"""The commit record beside a manifest: the row again, and what its lineage was like, with a digest and a MAC.

It is written after the row, so it proves that there was one; from all of them together a lost catalog is
made again (`rebuild`), from those that verify with their key. No restore reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutline.errors import NewerFormat

from .authentic import MAC_SIZE, SEAL_SIZE, StoreKey
from .blobs import corrupt, encode_name, parts_of, record_key
from .catalog import CheckpointRow, LineageRow, Place
from .codec import canonical, decode, digest_of

__all__ = ("RECORD_FORMAT", "Record", "commit_record", "read_record")

RECORD_FORMAT = 1
_PURPOSE = "record"


@dataclass(frozen=True, slots=True)
class Record:
    """What a commit record says. ``order`` and ``next_birth`` are 0 in one that does not tell them.

    ``key_id``: which key it was written with; ``digest`` and ``mac``: what that key has to vouch for.
    """

    row: CheckpointRow
    order: int
    origin: Place | None
    next_birth: int
    key_id: str
    digest: bytes
    mac: bytes

    def is_authentic(self, key: StoreKey) -> bool:
        return key.vouches(_PURPOSE, self.digest, self.mac)


def commit_record(row: CheckpointRow, line: LineageRow, key: StoreKey) -> bytes:
    """The record of a committed row of that lineage."""
    packed = canonical(
        {
            "format": RECORD_FORMAT,
            "system": row.system,
            "lineage": row.lineage,
            "checkpoint": row.checkpoint,
            "epoch": row.epoch,
            "kind": row.kind,
            "label": row.label,
            "parent": row.parent,
            "begun_at": row.begun_at,
            "decided_at": row.decided_at,
            "roster": row.roster,
            "manifest_key": row.manifest_key,
            "manifest_digest": row.manifest_digest,
            "blobs": row.blobs,
            "summary": row.summary,
            "order": line.order,
            "origin": line.origin,
            "next_birth": line.next_birth,
            "key": key.id,
        }
    )
    digest = digest_of(packed)
    return packed + digest + key.mac(_PURPOSE, digest)


def read_record(content: bytes, key: str) -> Record:
    """The record found under ``key``, its MAC not checked yet. Raises Corrupt for one that is damaged or
    belongs elsewhere, NewerFormat."""
    doc = record_doc(content, key)
    try:
        row = CheckpointRow(
            system=doc["system"],
            lineage=doc["lineage"],
            checkpoint=int(doc["checkpoint"]),
            kind=doc["kind"],
            label=doc["label"],
            fate="committed",
            begun_at=float(doc["begun_at"]),
            decided_at=float(doc["decided_at"]),
            epoch=int(doc["epoch"]),
            parent=_place(doc["parent"]),
            manifest_key=doc["manifest_key"],
            manifest_digest=bytes(doc["manifest_digest"]),
            blobs=tuple(map(str, doc["blobs"])),
            roster=tuple(map(str, doc["roster"])),
            summary=dict(doc["summary"]),
        )
        # The parent of a lineage's first cut is where the lineage forked off.
        origin = _place(doc["origin"]) if "origin" in doc else row.parent
        if origin is not None and origin[0] == row.lineage:
            origin = None
        record = Record(
            row,
            int(doc.get("order", 0)),
            origin,
            int(doc.get("next_birth", 0)),
            str(doc["key"]),
            content[-SEAL_SIZE:-MAC_SIZE],
            content[-MAC_SIZE:],
        )
        place = parts_of(key)
        at_home = place is not None and (place.system, place.lineage, place.checkpoint) == (
            encode_name(row.system),
            encode_name(row.lineage),
            row.checkpoint,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise corrupt(key, f"makes no sense as a commit record ({error!r})") from error
    if not at_home or record_key(row.manifest_key or "") != key:
        raise corrupt(key, f"is the commit record of another checkpoint ({row})")
    return record


def record_doc(content: bytes, key: str) -> dict[str, Any]:
    """The document of a record whose digest is right. Raises Corrupt, NewerFormat."""
    body = content[:-SEAL_SIZE]
    if len(content) <= SEAL_SIZE or digest_of(body) != content[-SEAL_SIZE:-MAC_SIZE]:
        raise corrupt(key, "is damaged; the cut itself does not need it")
    try:
        doc: dict[str, Any] = decode(body)
        version = int(doc["format"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise corrupt(key, f"makes no sense as a commit record ({error!r})") from error
    if version > RECORD_FORMAT:
        raise NewerFormat(
            f"commit record {key} was written by a newer Cutline (format {version}, this one reads"
            f" {RECORD_FORMAT}): upgrade cutline",
            key=key,
            format=version,
        )
    return doc


def _place(value: Any) -> Place | None:
    return None if value is None else (str(value[0]), int(value[1]))
