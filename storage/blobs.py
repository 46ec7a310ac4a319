"""What a place for bytes must offer, and how blobs are named.

A blob is written once, whole, and never changed. Its key says where it belongs:
``<system>/<lineage>/<epoch>/<checkpoint>/<file>``. The nonce in each file's name makes keys unique, so a
writer that was paused and wakes up late can only ever add a blob that nobody names.

Names come from users. They are percent-encoded into [A-Za-z0-9_-%], so no name can leave its folder or
look like another one; overlong ones end in a hash. A key with any other segment is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from cutline.errors import Corrupt, RefusedOption

from .codec import digest_of

__all__ = (
    "DOCUMENT_MAX",
    "NAME_BYTES",
    "BlobStore",
    "Held",
    "KeyParts",
    "check_key",
    "check_name",
    "corrupt",
    "effect_key",
    "encode_name",
    "manifest_key",
    "pack_key",
    "parts_of",
    "read_document",
    "record_key",
    "renewed",
)

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_SEGMENT_MAX = 220
_SEGMENT = rf"[A-Za-z0-9_%~-][A-Za-z0-9_%~.-]{{0,{_SEGMENT_MAX - 1}}}"
_KEY = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*\Z")
_NAME_MAX = 120
# What PostgreSQL can still put into an index.
NAME_BYTES = 2000
# What a manifest or a commit record may have.
DOCUMENT_MAX = 1 << 30


class Held(Protocol):
    """A blob that stays readable for as long as this object lives, whoever deletes it."""

    def read_into(self, start: int, target: memoryview) -> int:
        """As `BlobStore.read_into`."""
        ...


class BlobStore(Protocol):
    """Durable bytes by key. Any thread and any process may call any verb at any time.

    All raise StorageError; the message names the place. A store behind a network tries again by itself, for
    seconds, what a broken connection may have kept from happening; StoreUnreachable is what is left then, and
    trying later may help. Trying again does not help after NotAStore (no such bucket), StoreForbidden,
    StoreNotWritable, RefusedOption. Reads never give wrong bytes for right ones knowingly, but what a store
    gives is believed only when its digest was checked (`pack`, `verify`).

    ``far``: whether a verb is a journey over a network, so that several at once are worth it however small.
    """

    far: bool

    def create(self, key: str, parts: Iterable[bytes | bytearray | memoryview]) -> int:
        """Writes a new blob and returns its size in bytes; when it returns, the blob is durable.

        Atomic: readers see nothing or all of it. Conditional: BlobExists if the key is taken by another
        write; an answer that was lost on the way is not taken for that. Not idempotent: a second create of
        the same is BlobExists. After any other error the key is free, but for StoreUnreachable: then this
        very write may still come to be. Nobody names such a blob, and collection removes it. Raises
        StoreFull, StoreNotWritable.

        Where large blobs cannot be conditional (objects sent in parts), the key is looked for before. That is
        enough: keys carry a nonce, so no two writers write the same.
        """
        ...

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Up to ``length`` bytes from ``start``; fewer where the blob ends. Raises BlobNotFound."""
        ...

    def read_into(self, key: str, start: int, target: memoryview) -> int:
        """Fills ``target`` from ``start`` on; returns how many bytes there were. Raises BlobNotFound.

        After an error what is in ``target`` means nothing.
        """
        ...

    def size(self, key: str) -> int:
        """Bytes of the blob. Raises BlobNotFound."""
        ...

    def hold(self, key: str) -> Held | None:
        """The blob, to be read later, also when it was deleted meanwhile. Raises BlobNotFound.

        None: that cannot be promised here, or not for so many blobs at once; who will need the bytes reads
        them now. What is held ends with this process, whatever ends it, and nobody has to be told.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """Keys of whole blobs that begin with ``prefix``, in order.

        Not a view of one moment: it has every blob that was whole before and was not deleted since.
        """
        ...

    def unfinished(self, prefix: str = "") -> Iterator[str]:
        """Keys of what interrupted creates left behind, and of what is being created; for ``delete``.

        Empty where that is out of sight (objects sent in parts: the bucket's lifecycle rules remove it).
        """
        ...

    def delete(self, key: str, *, durable: bool = False) -> None:
        """Removes a blob, whole or unfinished; no error if there is none. Idempotent.

        A power cut may bring it back, unless ``durable``: then it is gone for good when this returns, also
        where somebody else had removed it.
        """
        ...


def read_document(blobs: BlobStore, key: str) -> bytes:
    """A blob that is read whole, of at most `DOCUMENT_MAX` bytes: a damaged size must not fill the memory."""
    content = blobs.read(key, 0, DOCUMENT_MAX + 1)
    if len(content) > DOCUMENT_MAX:
        raise corrupt(key, f"has more than {DOCUMENT_MAX:,} bytes")
    return content


class KeyParts(NamedTuple):
    """Where a key belongs; ``system`` and ``lineage`` as encoded."""

    system: str
    lineage: str
    epoch: int
    checkpoint: int


def encode_name(name: str) -> str:
    """A text as one segment of a key: safe on every file system, one-to-one but for case-blind ones."""
    if not name:
        raise RefusedOption("an empty name cannot be stored: give it at least one character", name=name)
    raw = name.encode("utf-8", "surrogatepass")
    encoded = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(encoded) <= _NAME_MAX:
        return encoded
    return f"{encoded[: _NAME_MAX - 33]}~{digest_of(raw).hex()[:32]}"


def check_name(name: str, what: str) -> str:
    """The name, if every kind of store can keep it. Raises RefusedOption, saying why not."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        why = "has half a surrogate pair, which is no character"
    else:
        if name and "\0" not in name and size <= NAME_BYTES:
            return name
        why = (
            "is empty" if not name else
            "has a zero character" if "\0" in name else
            f"has {size:,} bytes in UTF-8, and {NAME_BYTES:,} is the most"
        )  # fmt: skip
    raise RefusedOption(f"{name!r:.80} cannot be the name of a {what}: it {why}", name=name)


def check_key(key: str) -> tuple[str, ...]:
    """The segments of a key. Raises RefusedOption for one that could lead anywhere else."""
    if not _KEY.match(key):
        raise RefusedOption(f"{key!r} is not the key of a blob: it could lead out of the store", key=key)
    return tuple(key.split("/"))


def pack_key(system: str, lineage: str, epoch: int, checkpoint: int, member_name: str, birth: int) -> str:
    """A fresh key for the pack of one participant at one checkpoint."""
    folder = _folder(system, lineage, epoch, checkpoint)
    return f"{folder}/{encode_name(member_name)}-{int(birth)}-{os.urandom(8).hex()}.pack"


def effect_key(system: str, member_name: str, birth: int, number: int) -> str:
    """A fresh key for the large result of an effect, which collection of checkpoints leaves alone."""
    name = f"{encode_name(member_name)}-{int(birth)}-{int(number)}-{os.urandom(8).hex()}"
    return f"{encode_name(system)}/effects/{name}"


def renewed(pack: str) -> str:
    """The key of a pack with another nonce: for a second try where nobody knows what became of the first."""
    return f"{pack.rpartition('-')[0]}-{os.urandom(8).hex()}.pack"


def manifest_key(system: str, lineage: str, epoch: int, checkpoint: int) -> str:
    """A fresh key for the manifest of one checkpoint."""
    return f"{_folder(system, lineage, epoch, checkpoint)}/manifest-{os.urandom(8).hex()}"


def record_key(manifest: str) -> str:
    """The key of the commit record beside a manifest."""
    return f"{manifest}.commit"


def _folder(system: str, lineage: str, epoch: int, checkpoint: int) -> str:
    return f"{encode_name(system)}/{encode_name(lineage)}/{int(epoch)}/{int(checkpoint)}"


def parts_of(key: str) -> KeyParts | None:
    """What the key says about itself; None for one of another shape."""
    parts = key.split("/")
    if len(parts) != 5 or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    return KeyParts(parts[0], parts[1], int(parts[2]), int(parts[3]))


def corrupt(key: str, what: str) -> Corrupt:
    """The error for a stored object that is not what was written; names the object and its checkpoint."""
    place = parts_of(key)
    where = f" (checkpoint {place.checkpoint} of lineage {place.lineage})" if place else ""
    return Corrupt(
        f"stored object {key}{where} {what}: it is not what was written. Older checkpoints may be whole;"
        " `cutline verify` lists what is lost",
        key=key,
        what=what,
        checkpoint=place.checkpoint if place else None,
        lineage=place.lineage if place else None,
    )
