"""A cut as a document: the images it consists of, its channel state, where it comes from.

Its id is the BLAKE3 of its one encoding, so the catalog's row, which holds the id, vouches for every byte
of it, and through the images' digests for every byte of the cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cutline.errors import RefusedOption

from .blobs import corrupt
from .catalog import Place
from .codec import decode, digest_of, ordered, packed
from .image import ImageRef

__all__ = ("MANIFEST_FORMAT", "Manifest", "MemberImage")

MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class MemberImage:
    """One participant's part of a cut."""

    birth: int
    ref: ImageRef


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a cut consists of. ``channels``: a document, the room above knows its meaning."""

    system: str
    lineage: str
    checkpoint: int
    epoch: int
    kind: Literal["full", "delta"]
    label: str | None
    parent_checkpoint: Place | None
    created_at: float
    images: Mapping[str, MemberImage]
    channels: Any = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Its one encoding. Raises Misuse for channels that are no document."""
        # In the order of the one encoding already, because there is an image for each participant.
        images = {
            name: {"birth": self.images[name].birth, "image": self.images[name].ref.to_doc()}
            for name in sorted(self.images)
        }
        doc = {
            "channels": ordered(self.channels),
            "checkpoint": self.checkpoint,
            "created_at": float(self.created_at),
            "epoch": self.epoch,
            "format": MANIFEST_FORMAT,
            "images": images,
            "kind": self.kind,
            "label": self.label,
            "lineage": self.lineage,
            "parent_checkpoint": list(self.parent_checkpoint) if self.parent_checkpoint else None,
            "system": self.system,
        }
        return packed(doc)

    @property
    def id(self) -> bytes:
        """32 bytes."""
        return digest_of(self.to_bytes())

    @property
    def blobs(self) -> tuple[str, ...]:
        """Keys of all packs the cut needs, sorted."""
        return tuple(sorted({key for image in self.images.values() for key in image.ref.chain}))

    @classmethod
    def from_bytes(cls, content: bytes, key: str, digest: bytes) -> Manifest:
        """The manifest read from ``key``. Raises Corrupt unless its id is ``digest`` and it makes sense."""
        if digest_of(content) != digest:
            raise corrupt(key, "is not the manifest that was committed")
        try:
            doc = decode(content)
            if doc["format"] != MANIFEST_FORMAT:
                raise ValueError(f"format {doc['format']}")
            parent = doc["parent_checkpoint"]
            return cls(
                doc["system"],
                doc["lineage"],
                doc["checkpoint"],
                doc["epoch"],
                doc["kind"],
                doc["label"],
                None if parent is None else (parent[0], parent[1]),
                doc["created_at"],
                {
                    name: MemberImage(image["birth"], ImageRef.from_doc(image["image"]))
                    for name, image in doc["images"].items()
                },
                doc["channels"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, RefusedOption) as error:
            raise corrupt(key, f"makes no sense as a manifest ({error})") from error
