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
from .codec import canonical, decode, digest_of
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
        return canonical(
            {
                "format": MANIFEST_FORMAT,
                "system": self.system,
                "lineage": self.lineage,
                "checkpoint": self.checkpoint,
                "epoch": self.epoch,
                "kind": self.kind,
                "label": self.label,
                "parent_checkpoint": self.parent_checkpoint,
                "created_at": float(self.created_at),
                "images": {
                    name: {"birth": image.birth, "image": image.ref.to_doc()}
                    for name, image in self.images.items()
                },
                "channels": self.channels,
            }
        )

    @property
    def id(self) -> bytes:
        """32 bytes."""
        return digest_of(self.to_bytes())

    @property
    def blobs(self) -> tuple[str, ...]:
        """Keys of all packs the cut needs, sorted."""
        return tuple(sorted({key for image in self.images.values() for key in image.ref.chain}))

    @classmethod
    def from_bytes(cls, packed: bytes, key: str, digest: bytes) -> Manifest:
        """The manifest read from ``key``. Raises Corrupt unless its id is ``digest`` and it makes sense."""
        if digest_of(packed) != digest:
            raise corrupt(key, "is not the manifest that was committed")
        try:
            doc = decode(packed)
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
