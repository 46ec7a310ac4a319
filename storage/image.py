"""A participant's image: its sections, its pieces, its memory regions; full, or a delta on a parent.

Every image lists all its pieces, in order, and all its regions with their sizes; a delta's pack holds only
the contents that changed since the parent, which is always an image of a committed cut. A reference names
the pack, its document's digest and the whole chain of packs, so that whoever keeps a cut knows all it
needs. The document names the parent's digest: the chain is verified link by link.

Writing a delta looks at the parent's tables first (kept in memory for the images this process wrote or
read): a piece said to be unchanged must be there with the same digest, and a region not written whole must
be there with the same size. So a wrong base is found at the checkpoint, not at the restore.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from cutline.errors import Misuse

from .blobs import BlobStore, check_key, corrupt
from .codec import DIGEST_SIZE
from .pack import PackReader, PackWriter, Wanted

__all__ = (
    "Content",
    "Held",
    "Image",
    "ImageRef",
    "Piece",
    "Region",
    "check_image",
    "read_header",
    "read_image",
    "size_of",
    "write_image",
)

Memory: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
# Offers memory for a region of that number and size, and names the runs (start, stop) of it, ascending, that
# do not hold yet what the image does. None: it has none to offer.
Held: TypeAlias = Callable[[int, int], tuple[Memory, Sequence[tuple[int, int]]] | None]

# What a section holds; a list: its parts, where it is too long to be put together.
Content: TypeAlias = bytes | memoryview | list[bytes | memoryview]

_INLINE = 1024
_WIDTHS = (1, 2, 4, 8)
_REMEMBERED = 500_000


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
    extents: tuple[tuple[int, bytes | bytearray | memoryview], ...]


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


class _Tables(NamedTuple):
    """What a delta on this image may leave out."""

    pieces: Mapping[str, bytes]
    regions: Mapping[int, int]

    @property
    def rows(self) -> int:
        return 16 + len(self.pieces) + len(self.regions)


class _Memory:
    """The tables of the images last seen, by digest; bounded by the number of their rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[bytes, _Tables] = OrderedDict()
        self._rows = 0

    def put(self, digest: bytes, tables: _Tables) -> None:
        with self._lock:
            if digest not in self._seen:
                self._rows += tables.rows
            self._seen[digest] = tables
            self._seen.move_to_end(digest)
            while self._rows > _REMEMBERED and len(self._seen) > 1:
                self._rows -= self._seen.popitem(last=False)[1].rows

    def get(self, digest: bytes) -> _Tables | None:
        with self._lock:
            return self._seen.get(digest)


_memory = _Memory()


def write_image(
    blobs: BlobStore,
    key: str,
    *,
    header: Mapping[str, Any],
    sections: Mapping[str, Content],
    pieces: Sequence[Piece],
    regions: Sequence[Region],
    parent: ImageRef | None,
) -> ImageRef:
    """Writes one pack; the image is durable when this returns.

    Contents are not copied and must not change meanwhile. Hashing, compressing, writing and syncing let
    other threads run. Raises Misuse for an image that could not be read back, and what
    `BlobStore.create` raises.
    """
    base = _tables_of(blobs, parent) if parent else _Tables({}, {})
    writer = PackWriter()
    document = {
        "format": 1,
        "header": dict(header),
        "sections": {name: _section(writer, body) for name, body in sections.items()},
        "pieces": _piece_table(writer, pieces, base, key),
        "regions": [_region_row(writer, region, base, key) for region in regions],
        "parent": {"key": parent.key, "digest": parent.digest} if parent else None,
    }
    tables = _Tables(
        {piece.name: piece.digest for piece in pieces}, {region.number: region.size for region in regions}
    )
    if len(tables.regions) != len(regions):
        raise Misuse(f"image {key} names a memory region twice", key=key)
    size = blobs.create(key, writer.parts(document))
    _memory.put(writer.digest, tables)
    chain = (*parent.chain, key) if parent else (key,)
    return ImageRef(key, writer.digest, "delta" if parent else "full", chain, size)


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


def _piece_table(writer: PackWriter, pieces: Sequence[Piece], base: _Tables, key: str) -> list[list[Any]]:
    table: list[list[Any]] = []
    names = set()
    for piece in pieces:
        if piece.name in names:
            raise Misuse(f"image {key} names piece {piece.name!r} twice", key=key)
        names.add(piece.name)
        if piece.content is not None:
            size = memoryview(piece.content).nbytes
            table.append([piece.name, piece.digest, [writer.add(piece.content), size]])
        elif base.pieces.get(piece.name) == piece.digest:
            table.append([piece.name, piece.digest, None])
        else:
            raise Misuse(
                f"image {key} leaves out piece {piece.name!r}, which its parent does not hold with that"
                " digest: write its content",
                key=key,
            )
    return table


def _region_row(writer: PackWriter, region: Region, base: _Tables, key: str) -> list[Any]:
    runs = sorted(((offset, memoryview(run)) for offset, run in region.extents), key=lambda item: item[0])
    runs = [(offset, run) for offset, run in runs if run.nbytes]
    end = covered = 0
    for offset, run in runs:
        if offset < end:
            raise Misuse(f"image {key}: runs of region {region.number} overlap at {offset}", key=key)
        end = offset + run.nbytes
        covered += run.nbytes
    if end > region.size:
        raise Misuse(
            f"image {key}: region {region.number} has {region.size} bytes, a run ends at {end}", key=key
        )
    if covered < region.size and base.regions.get(region.number) != region.size:
        raise Misuse(
            f"image {key} writes only {covered} of {region.size} bytes of region {region.number}, which its"
            " parent does not hold in that size: write it whole",
            key=key,
        )
    if not runs:
        return [region.number, region.size, None]
    return [region.number, region.size, _packed_runs(writer, runs)]


def _packed_runs(writer: PackWriter, runs: list[tuple[int, memoryview]]) -> list[Any]:
    """[position, unit, width of gaps, gaps, width of lengths, lengths], the last four in units."""
    position = writer.length
    count = len(runs)
    offsets = np.fromiter((offset for offset, _ in runs), np.int64, count)
    lengths = np.fromiter((run.nbytes for _, run in runs), np.int64, count)
    for _, run in runs:
        writer.add(run)
    gaps = offsets.copy()
    gaps[1:] -= offsets[:-1] + lengths[:-1]
    unit = math.gcd(int(np.gcd.reduce(gaps)), int(np.gcd.reduce(lengths)))
    return [position, unit, *_narrow(gaps // unit), *_narrow(lengths // unit)]


def _narrow(values: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, bytes]:
    largest = int(values.max())
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width))
    return width, values.astype(f"<u{width}").tobytes()


def _unpacked_runs(row: list[Any]) -> list[tuple[int, int, int]]:
    """(position in the stream, offset, length) of each run. Raises ValueError."""
    position, unit, gap_width, gaps, length_width, lengths = row
    if gap_width not in _WIDTHS or length_width not in _WIDTHS:
        raise ValueError("an unknown width of numbers")
    sizes = np.frombuffer(lengths, f"<u{length_width}").astype(np.int64) * unit
    skips = np.frombuffer(gaps, f"<u{gap_width}").astype(np.int64) * unit
    if len(sizes) != len(skips):
        raise ValueError("gaps and lengths of runs differ in number")
    ends = np.cumsum(skips + sizes)
    positions = position + np.cumsum(sizes) - sizes
    return list(zip(positions.tolist(), (ends - sizes).tolist(), sizes.tolist(), strict=True))


def _tables_of(blobs: BlobStore, ref: ImageRef) -> _Tables:
    known = _memory.get(ref.digest)
    if known is None:
        known = _Layer(PackReader(blobs, ref.key, ref.digest, ref.size)).tables()
        _memory.put(ref.digest, known)
    return known


class _Layer:
    """One pack of a chain, its document taken apart."""

    def __init__(self, reader: PackReader) -> None:
        self.reader = reader
        self.key = reader.key
        try:
            document = reader.document
            self.header: dict[str, Any] = document["header"]
            self.sections: dict[str, Any] = document["sections"]
            self.pieces: dict[str, tuple[bytes, list[int] | None]] = {
                name: (digest, where) for name, digest, where in document["pieces"]
            }
            self.regions: dict[int, tuple[int, list[tuple[int, int, int]]]] = {
                number: (size, _unpacked_runs(runs) if runs else [])
                for number, size, runs in document["regions"]
            }
            parent = document["parent"]
            self.parent: tuple[str, bytes] | None = (parent["key"], parent["digest"]) if parent else None
        except (KeyError, TypeError, ValueError) as error:
            raise corrupt(self.key, f"has a document that makes no sense ({error!r})") from error

    def tables(self) -> _Tables:
        return _Tables(
            {name: digest for name, (digest, _) in self.pieces.items()},
            {number: size for number, (size, _) in self.regions.items()},
        )


def _layers(blobs: BlobStore, ref: ImageRef) -> list[_Layer]:
    """The packs of an image, newest first."""
    layers = [_Layer(PackReader(blobs, ref.key, ref.digest, ref.size))]
    for key in reversed(ref.chain[:-1]):
        parent = layers[-1].parent
        if parent is None or parent[0] != key:
            raise corrupt(layers[-1].key, "has another parent than its reference says")
        layers.append(_Layer(PackReader(blobs, key, parent[1])))
    if layers[-1].parent is not None:
        raise corrupt(layers[-1].key, "is a delta where a full image was promised")
    return layers


def read_header(blobs: BlobStore, ref: ImageRef) -> dict[str, Any]:
    """The header alone. Raises Corrupt."""
    return _Layer(PackReader(blobs, ref.key, ref.digest, ref.size)).header


def read_image(blobs: BlobStore, ref: ImageRef, held: Held | None = None) -> Image:
    """Reads an image and all it builds on, verifying every digest on the way.

    What `held` offers is completed and becomes the image's; only what lacks there is read.

    Raises Corrupt, which names the object and its checkpoint; other StorageError if the store cannot be
    read at all.
    """
    layers = _layers(blobs, ref)
    newest = layers[0]
    plans: list[list[Wanted]] = [[] for _ in layers]
    sections = {name: _section_room(newest, body, plans[0]) for name, body in newest.sections.items()}
    pieces = [(name, _piece_room(layers, name, plans)) for name in newest.pieces]
    regions = {number: _region_room(layers, number, plans, held) for number in newest.regions}
    # Oldest first: a newer pack's bytes replace an older one's.
    for layer, plan in zip(reversed(layers), reversed(plans), strict=True):
        plan.sort(key=lambda wanted: wanted.position)
        layer.reader.scatter(plan)
        plan.clear()
    _memory.put(ref.digest, newest.tables())
    return Image(
        dict(newest.header),
        {name: bytes(body) for name, body in sections.items()},
        [(name, bytes(body)) for name, body in pieces],
        regions,
    )


def _section_room(layer: _Layer, body: Any, plan: list[Wanted]) -> bytes | bytearray:
    return body if isinstance(body, bytes) else _room(layer, body, plan)


def _room(layer: _Layer, where: Any, plan: list[Wanted]) -> bytearray:
    position, length = where
    if not 0 <= position <= position + length <= layer.reader.stream_length:
        raise corrupt(layer.key, "refers to bytes that it does not have")
    room = bytearray(length)
    plan.append(Wanted(position, memoryview(room)))
    return room


def _piece_room(layers: list[_Layer], name: str, plans: list[list[Wanted]]) -> bytearray:
    digest = layers[0].pieces[name][0]
    for layer, plan in zip(layers, plans, strict=True):
        found = layer.pieces.get(name)
        if found is None or found[0] != digest:
            raise corrupt(layer.key, f"does not hold piece {name!r} as the newer packs say")
        if found[1] is not None:
            return _room(layer, found[1], plan)
    raise corrupt(layers[-1].key, f"leaves out piece {name!r}")


def _region_room(layers: list[_Layer], number: int, plans: list[list[Wanted]], held: Held | None) -> Memory:
    size = layers[0].regions[number][0]
    offered = held(number, size) if held is not None else None
    room, lacking = offered or (np.empty(size, np.uint8), [(0, size)])
    if room.nbytes != size:
        raise Misuse(f"{room.nbytes} bytes of memory were offered for region {number}, which has {size}")
    view = memoryview(room.data)
    for layer, plan in zip(layers, plans, strict=True):
        found = layer.regions.get(number)
        if found is None or found[0] != size:
            raise corrupt(layer.key, f"does not hold region {number} as the newer packs say")
        covered = 0
        for _, offset, length in found[1]:
            if not 0 <= offset <= offset + length <= size:
                raise corrupt(layer.key, f"writes outside region {number}")
            covered += length
        for position, offset, length in _lacking_runs(found[1], lacking):
            plan.append(Wanted(position, view[offset : offset + length]))
        if covered == size:
            return room
    raise corrupt(layers[-1].key, f"does not cover region {number}")


def _lacking_runs(
    runs: Sequence[tuple[int, int, int]], lacking: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """The parts of runs (position in the stream, offset, length) that are inside [start, stop) ranges."""
    at = 0
    for position, offset, length in runs:
        while at < len(lacking) and lacking[at][1] <= offset:
            at += 1
        here = at
        while here < len(lacking) and lacking[here][0] < offset + length:
            first, last = max(lacking[here][0], offset), min(lacking[here][1], offset + length)
            yield position + first - offset, first, last - first
            here += 1


def check_image(blobs: BlobStore, ref: ImageRef, *, deep: bool, known: set[bytes] | None = None) -> None:
    """Checks an image without restoring it: its chain of documents, and if ``deep`` every byte.

    ``known`` holds the digests of packs checked before, and grows. Raises Corrupt for the first fault.
    """
    for layer in _layers(blobs, ref):
        digest = layer.reader.digest
        if known is not None and digest in known:
            continue
        if deep:
            layer.reader.check_stream()
        if known is not None:
            known.add(digest)
