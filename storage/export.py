"""One cut as one file or folder that can be carried anywhere, and read back into any store.

An export is self-contained: an image that is a delta is read whole and written as a full one, so packs refer
to nothing and can be given any key later. First comes the head: magic, version, a document with its digest
and a MAC by the key of the store (zeros, where that is not here).
The packs follow in the order that the document lists them; in a folder they are files of their own. Each byte
is under a digest or compared with what it must be. docs/format.md is normative.

It appears under its name when it is complete and durable. What an interrupted export leaves has a hidden
name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from cutline.errors import BlobExists, Misuse, StorageError

from .authentic import MAC_SIZE, SEAL_SIZE
from .blobs import BlobStore
from .catalog import CheckpointRow
from .codec import canonical, digest_of
from .directory import DirectoryBlobs
from .disk import Disk, meaning
from .effects import answers_after
from .image import ImageRef, Piece, Region, check_image, read_image, write_image
from .manifest import MemberImage
from .pack import PackReader
from .store import Store

__all__ = (
    "EXPORT_FORMAT",
    "FIELDS",
    "HEAD",
    "HEAD_FILE",
    "MAGIC",
    "PURPOSE",
    "Exported",
    "export_cut",
    "pack_file",
    "whole_image",
)

EXPORT_FORMAT = 1
MAGIC = b"\x89CUTEXP\n"
HEAD_FILE = "cutline-export"
PURPOSE = "export"
# Magic, version, nothing, bytes of the document with its digest and MAC.
HEAD = struct.Struct("<8sIIQ")
# What every document of format 1 has.
FIELDS = frozenset(
    "format export source system checkpoint epoch label created_at begun_at decided_at roster summary"
    " next_birth channels images key".split()
)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """``id`` names the export; ``bytes`` is its size."""

    id: str
    row: CheckpointRow
    participants: int
    bytes: int


def pack_file(number: int) -> str:
    """The name of a pack in a folder."""
    return f"packs/{number}.pack"


def export_cut(
    store: Store, row: CheckpointRow, target: str | os.PathLike[str], *, folder: bool = False
) -> Exported:
    """Writes a committed cut to ``target``, which is not there yet; every byte is checked on the way.

    Raises BlobExists if something is there, Corrupt for a part that is damaged, StoreFull, StoreNotWritable.
    """
    path = Path(os.path.abspath(target))
    if not path.name:
        raise Misuse(f"{target} names no file that could be made")
    hidden = path.with_name(f".cutline-export-{os.urandom(6).hex()}")
    try:
        if os.path.lexists(path):
            raise BlobExists(f"{path} is there already: choose another name, or remove it", path=str(path))
        hidden.mkdir()
        try:
            exported = _gathered(store, row, hidden)
            _place(hidden, path, exported, as_folder=folder)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    except OSError as error:
        if isinstance(error, StorageError):  # some of them are OSErrors too
            raise
        raise meaning(error, str(path), writing=True) from error
    return exported


def _gathered(store: Store, row: CheckpointRow, folder: Path) -> Exported:
    """The export as a folder of its own."""
    manifest = store.read_manifest(row)
    line = next(line for line in store.catalog.lineages(row.system) if line.lineage == row.lineage)
    made = DirectoryBlobs(folder)
    images: dict[str, Any] = {}
    for number, (name, image) in enumerate(sorted(manifest.images.items())):
        ref, hashed = whole_image(store.blobs, image, made, pack_file(number))
        images[name] = {
            "birth": image.birth,
            "digest": ref.digest,
            "hash": hashed,
            "pack": number,
            "size": ref.size,
        }
    identity, key = os.urandom(8).hex(), store.catalog.seals.key
    doc = {
        "format": EXPORT_FORMAT,
        "export": identity,
        "source": {"url": store.url, "lineage": row.lineage, "manifest_digest": row.manifest_digest},
        "system": row.system,
        "checkpoint": row.checkpoint,
        "epoch": row.epoch,
        "label": row.label,
        "created_at": manifest.created_at,
        "begun_at": row.begun_at,
        "decided_at": row.decided_at,
        "roster": row.roster,
        "summary": row.summary,
        "next_birth": max([line.next_birth, *(image.birth + 1 for image in manifest.images.values())]),
        "channels": manifest.channels,
        "images": images,
        "key": None if key is None else key.id,
        "answers": [
            answer.to_doc() for answer in answers_after(store.catalog.effects(row.lineage), row.checkpoint)
        ],
    }
    body = canonical(doc)
    digest = digest_of(body)
    mac = bytes(MAC_SIZE) if key is None else key.mac(PURPOSE, digest)
    head = HEAD.pack(MAGIC, EXPORT_FORMAT, 0, len(body) + SEAL_SIZE) + body + digest + mac
    made.create(HEAD_FILE, [head])
    total = len(head) + sum(image["size"] for image in images.values())
    return Exported(identity, row, len(images), total)


def whole_image(blobs: BlobStore, image: MemberImage, made: BlobStore, key: str) -> tuple[ImageRef, bytes]:
    """The image as one full pack in `made`; (its reference, the hash of the pack's bytes).

    Raises Corrupt if it is damaged.
    """
    ref = image.ref
    if ref.kind == "full":
        check_image(blobs, ref, deep=True)
        made.create(key, _chunks(blobs, ref.key, ref.size))
        ref = ImageRef(key, ref.digest, "full", (key,), ref.size)
    else:
        digests = {
            name: digest for name, digest, _ in PackReader(blobs, ref.key, ref.digest).document["pieces"]
        }
        read = read_image(blobs, ref)
        ref = write_image(
            made,
            key,
            header=read.header,
            sections=dict(read.sections),
            pieces=[Piece(name, digests[name], content) for name, content in read.pieces],
            regions=[
                Region(number, len(memory), ((0, memory.data),)) for number, memory in read.regions.items()
            ],
            parent=None,
        )
    hasher = blake3()
    for chunk in _chunks(made, key, ref.size):
        hasher.update(chunk)
    # What was copied is what was checked.
    check_image(made, ref, deep=True)
    return ref, hasher.digest()


def _chunks(blobs: BlobStore, key: str, size: int) -> Iterator[bytes]:
    for start in range(0, size, _CHUNK):
        yield blobs.read(key, start, _CHUNK)


def _place(hidden: Path, path: Path, exported: Exported, *, as_folder: bool) -> None:
    """Gives the export its name."""
    disk = Disk()
    parent = disk.open_root(str(path.parent))
    try:
        if as_folder:
            # A rename replaces an empty folder; nothing else of that name can have come meanwhile unseen.
            os.rename(hidden, path)
            disk.sync(parent)
            return
        name = f"{hidden.name}.file"
        fd = disk.open_new(name, parent)
        try:
            try:
                with os.fdopen(fd, "wb", closefd=False) as file:
                    for part in (HEAD_FILE, *(pack_file(n) for n in range(exported.participants))):
                        with open(hidden / part, "rb") as source:
                            shutil.copyfileobj(source, file, _CHUNK)
                disk.sync(fd)
            finally:
                disk.close(fd)
            disk.publish(name, path.name, parent)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.remove(name, parent)
            raise
        disk.sync(parent)
    except FileExistsError as error:
        raise BlobExists(f"{path} is there already: choose another name", path=str(path)) from error
    finally:
        disk.close(parent)
