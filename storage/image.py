"""A participant's image: its sections, its pieces, its memory regions; full, or a delta on a parent.

Every image lists all its pieces, in order, and all its regions with their sizes; a delta's pack holds only
the contents that changed since the parent, which is always an image of a committed cut. A reference names
the pack, its document's digest and the whole chain of packs, so that whoever keeps a cut knows all it
needs. The document names the parent's digest: the chain is verified link by link.

Writing a delta looks at the parent's tables first (kept in memory for the images this process wrote or
read): a piece said to be unchanged must be there with the same digest, and a region not written whole must
be there with the same size. So a wrong base is found at the checkpoint, not at the restore.

Where chains would grow long a delta is folded as it is written (`folding`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from cutline.errors import Misuse

from .blobs import BlobStore, check_key, corrupt
from .codec import DIGEST_SIZE
from .folding import Fold, Mixed, fold_of
from .layers import Layer, Link, Tables, layers_of, piece_place, remember, tables_from, tables_of, whole_size
from .pack import PackReader, PackWriter, Task, perform
from .runs import Runs, Spans, shown
from .scatter import Memory, Wanted
from .unread import Left, Unread

__all__ = (
    "Content",
    "Held",
    "Image",
    "ImageRef",
    "Memory",
    "Piece",
    "Region",
    "check_image",
    "read_header",
    "read_image",
    "read_sections",
    "size_of",
    "write_image",
)

# Offers memory for a region of that number and size, and names the runs (start, stop) of it, ascending, that
# do not hold yet what the image does. None: it has none to offer.
Held: TypeAlias = Callable[[int, int], tuple[Memory, Sequence[tuple[int, int]]] | None]

# What a section holds; a list: its parts, where it is too long to be put together.
Content: TypeAlias = bytes | memoryview | list[bytes | memoryview]

_INLINE = 1024
_EMPTY = Tables({}, {}, ())


@dataclass(frozen=True, slots=True)
class Piece:
    """A named part of the state. ``content`` None: the same as in the parent image, by ``digest``."""

    name: str
    digest: bytes
    content: bytes | bytearray | memoryview | None


@dataclass(frozen=True, slots=True)
class Region:
    """A memory region of ``size`` bytes; ``extents`` are the changed runs as (offset, bytes)."""

    number: int
    size: int
    extents: Sequence[tuple[int, bytes | bytearray | memoryview]]


@dataclass(frozen=True, slots=True)
class ImageRef:
    """Names an image. ``chain``: keys of the packs it needs, its own last. ``size``: bytes of its pack."""

    key: str
    digest: bytes
    kind: Literal["full", "delta"]
    chain: tuple[str, ...]
    size: int

    def to_doc(self) -> dict[str, Any]:
        return {
            "chain": list(self.chain),
            "digest": self.digest,
            "key": self.key,
            "kind": self.kind,
            "size": self.size,
        }

    @classmethod
    def from_doc(cls, doc: Mapping[str, Any]) -> ImageRef:
        """Raises ValueError for what no ``to_doc`` made (RefusedOption for a key that leads out)."""
        try:
            ref = cls(doc["key"], doc["digest"], doc["kind"], tuple(doc["chain"]), doc["size"])
            sound = (
                isinstance(ref.digest, bytes)
                and len(ref.digest) == DIGEST_SIZE
                and type(ref.size) is int
                and ref.kind == ("full" if len(ref.chain) == 1 else "delta")
                and ref.chain[-1] == ref.key
            )
            for key in ref.chain:
                check_key(key)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"not a reference to an image: {error!r}") from error
        if not sound:
            raise ValueError(f"not a reference to an image: {dict(doc)!r:.200}")
        return ref


@dataclass(slots=True)
class Image:
    """An image read whole. ``pieces`` in the order they were written; each region in memory of its own."""

    header: dict[str, Any]
    sections: dict[str, bytes]
    pieces: list[tuple[str, bytes]]
    regions: dict[int, Memory] = field(default_factory=dict)
    # The pieces that are not among `pieces`, because they were left unread.
    unread: dict[str, Unread] = field(default_factory=dict)


def write_image(
    blobs: BlobStore,
    key: str,
    *,
    header: Mapping[str, Any],
    sections: Mapping[str, Content],
    pieces: Sequence[Piece],
    regions: Sequence[Region],
    parent: ImageRef | None,
    most: int | None = None,
) -> ImageRef:
    """Writes one pack; the image is durable when this returns.

    Contents are not copied and must not change meanwhile. Hashing, compressing, writing and syncing let
    other threads run.

    Args:
        most: of how many packs a chain may consist beside the full one; longer ones are folded (see
            `folding`). None: this image is a delta on ``parent``, however long its chain.

    Raises:
        Misuse: the image could not be read back.
        Corrupt: a pack that was to be folded is damaged.
        StorageError: as `BlobStore.create`, and for reading where packs are folded.
    """
    base = tables_of(blobs, parent) if parent else _EMPTY
    _check_names(key, pieces, regions)
    tables = Tables(
        {piece.name: (piece.digest, _size(piece, base)) for piece in pieces},
        {region.number: region.size for region in regions},
        (),
    )
    writer = PackWriter()
    rows = {name: _section(writer, body) for name, body in sections.items()}
    whole = whole_size(writer.length, tables.pieces, tables.regions)
    own = Mixed(key, pieces, regions, base)
    fold = Fold(len(base.links), 0)
    if parent is not None and most is not None:
        fold = fold_of(base.links, writer.length + own.size, whole, own.everything, most)
    if parent is not None and fold.keep < len(base.links) and not own.everything:
        own.fold(layers_of(blobs, parent), len(base.links) - fold.keep)
    kept = base.links[: fold.keep]
    document = {
        "format": 1,
        "header": dict(header),
        "sections": rows,
        "pieces": own.piece_table(writer),
        "regions": own.region_table(writer),
        "parent": {"key": kept[-1].key, "digest": kept[-1].digest} if kept else None,
        **({"folded": fold.times} if fold.times else {}),
    }
    size = blobs.create(key, writer.parts(document))
    links = (*kept, Link(key, writer.digest, writer.length, fold.times))
    remember(writer.digest, tables._replace(links=links))
    chain = tuple(link.key for link in links)
    return ImageRef(key, writer.digest, "delta" if kept else "full", chain, size)


def _check_names(key: str, pieces: Sequence[Piece], regions: Sequence[Region]) -> None:
    names = set()
    for piece in pieces:
        if piece.name in names:
            raise Misuse(f"image {key} names piece {piece.name!r} twice", key=key)
        names.add(piece.name)
    if len({region.number for region in regions}) != len(regions):
        raise Misuse(f"image {key} names a memory region twice", key=key)


def _size(piece: Piece, base: Tables) -> int:
    if piece.content is not None:
        return memoryview(piece.content).nbytes
    return base.pieces.get(piece.name, (b"", 0))[1]


def size_of(content: Content) -> int:
    """Bytes of a section's content."""
    return sum(map(len, content)) if isinstance(content, list) else len(content)


def _section(writer: PackWriter, content: Content) -> bytes | list[int]:
    parts = content if isinstance(content, list) else [content]
    size = size_of(parts)
    if size <= _INLINE:
        return b"".join(parts)
    position = writer.length
    for part in parts:
        writer.add(part)
    return [position, size]


def read_header(blobs: BlobStore, ref: ImageRef) -> dict[str, Any]:
    """The header alone. Raises Corrupt."""
    return Layer(PackReader(blobs, ref.key, ref.digest, ref.size)).header


def read_sections(blobs: BlobStore, ref: ImageRef) -> dict[str, bytes]:
    """The sections alone, which are whole in each image's own pack. Raises Corrupt."""
    layer = Layer(PackReader(blobs, ref.key, ref.digest, ref.size))
    end = layer.reader.stream_length
    sections = {}
    for name, body in layer.sections.items():
        if not isinstance(body, bytes):
            position, length = body
            if not 0 <= position <= position + length <= end:
                raise corrupt(layer.key, "refers to bytes that it does not have")
            body = layer.reader.read(position, length)
        sections[name] = body
    return sections


def read_image(blobs: BlobStore, ref: ImageRef, held: Held | None = None, left: Left | None = None) -> Image:
    """Reads an image and all it builds on, verifying every digest on the way.

    What `held` offers is completed and becomes the image's; only what lacks there is read. Pieces of which
    `left` is true are read when they are asked for, and verified then.

    Raises Corrupt, which names the object and its checkpoint; other StorageError if the store cannot be
    read at all.
    """
    layers = layers_of(blobs, ref)
    newest = layers[0]
    reading = _Reading(layers)
    for name, body in newest.sections.items():
        if not isinstance(body, bytes):
            reading.small(("section", name), 0, body)
    unread: dict[str, Unread] = {}
    later = set()
    for name, (digest, _) in newest.pieces.items():
        number, where = piece_place(layers, name, digest)
        if left is not None and left(name, where[1]):
            found = reading.hold(number, name, digest, where)
            if found is not None:
                unread[name] = found
                continue
            later.add(name)
        reading.small(("piece", name), number, where)
    regions = {number: reading.region(number, held) for number in newest.regions}
    contents = reading.perform(blobs)
    remember(ref.digest, tables_from(layers))
    left_out = {*unread, *later}
    return Image(
        dict(newest.header),
        {
            name: body if isinstance(body, bytes) else contents["section", name]
            for name, body in newest.sections.items()
        },
        [(name, contents["piece", name]) for name in newest.pieces if name not in left_out],
        regions,
        {
            **unread,
            **{name: Unread.of(name, newest.pieces[name][0], contents["piece", name]) for name in later},
        },
    )


class _Reading:
    """What is read of each layer. Nothing is read twice into one place but what a full image holds below."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._small: list[list[tuple[tuple[str, str], int, int]]] = [[] for _ in layers]
        self._first: list[list[Wanted]] = [[] for _ in layers]
        self._then: list[list[Wanted]] = [[] for _ in layers]
        # Of layers that are held.
        self._locks: dict[int, threading.Lock | None] = {}

    def hold(self, layer: int, name: str, digest: bytes, where: list[int]) -> Unread | None:
        """A piece that is left unread; None where that cannot be."""
        reader = self._layers[layer].reader
        if layer not in self._locks:
            self._locks[layer] = threading.Lock() if reader.hold() else None
        lock = self._locks[layer]
        return None if lock is None else Unread.in_pack(name, digest, reader, where, lock)

    def small(self, name: tuple[str, str], layer: int, where: list[int]) -> None:
        """Something that becomes `bytes`."""
        position, length = where
        if not 0 <= position <= position + length <= self._layers[layer].reader.stream_length:
            raise corrupt(self._layers[layer].key, "refers to bytes that it does not have")
        self._small[layer].append((name, position, length))

    def region(self, number: int, held: Held | None) -> Memory:
        """The memory that the region will be in; newer packs hide what is below."""
        size = self._layers[0].regions[number][0]
        offered = held(number, size) if held is not None else None
        room, spans = offered or (np.empty(size, np.uint8), [(0, size)])
        if room.nbytes != size:
            raise Misuse(f"{room.nbytes} bytes of memory were offered for region {number}, which has {size}")
        lacking = Spans.of(spans)
        for at, layer in enumerate(self._layers):
            runs = layer.region(number, size)
            parts, lacking = shown(runs, lacking)
            bottom = runs.covered == size
            if len(parts.lengths):
                if bottom and offered is None and at:
                    # Whole extents go straight to their place, and what hides parts of them comes after.
                    self._first[at].append(Wanted(room, layer.reader.whole_extents(runs, parts)))
                else:
                    self._then[at].append(Wanted(room, parts))
            if bottom:
                return room
        raise corrupt(self._layers[-1].key, f"does not cover region {number}")

    def perform(self, blobs: BlobStore) -> dict[tuple[str, str], bytes]:
        """Reads all of it; the small contents by their names."""
        rooms: list[Memory] = []
        for at, wanted in enumerate(self._small):
            # In the order of the stream, as the runs of a plan are.
            wanted.sort(key=lambda item: item[1])
            rooms.append(np.empty(sum(length for _, _, length in wanted), np.uint8))
            rows, end = [], 0
            for _, position, length in wanted:
                if length:
                    rows.append((position, end, length))
                end += length
            if rows:
                self._then[at].append(Wanted(rooms[at], Runs.of(rows)))
        for plans in (self._first, self._then):
            tasks: list[Task] = []
            for layer, plan in zip(self._layers, plans, strict=True):
                tasks += layer.reader.tasks(plan)
            perform(blobs, tasks)
        contents = {}
        for wanted, room in zip(self._small, rooms, strict=True):
            end = 0
            for name, _, length in wanted:
                contents[name] = room[end : end + length].tobytes()
                end += length
        return contents


def check_image(
    blobs: BlobStore, ref: ImageRef, *, deep: bool, known: set[tuple[str, bytes]] | None = None
) -> None:
    """Checks an image without restoring it: its chain of documents, and if ``deep`` every byte.

    ``known`` holds the packs checked before, by key and digest, and grows: an imported copy has the digest of
    its source, and is another object. Raises Corrupt for the first fault.
    """
    for layer in layers_of(blobs, ref):
        pack = layer.key, layer.reader.digest
        if known is not None and pack in known:
            continue
        if deep:
            layer.reader.check_stream()
        if known is not None:
            known.add(pack)
