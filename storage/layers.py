"""The packs of one image, taken apart: its own and those that it builds on, down to the full one.

What a delta may leave out is looked up in its parent's tables. They are kept in memory for the images that
this process wrote or read, by digest; those of any other image are read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from .blobs import BlobStore, corrupt
from .pack import PackReader, fetched
from .runs import Runs, unpacked_row

__all__ = (
    "Layer",
    "Link",
    "Reference",
    "Tables",
    "layers_of",
    "piece_place",
    "remember",
    "tables_from",
    "tables_of",
    "whole_size",
)

_REMEMBERED = 500_000
_NO_RUNS = Runs.of([])


class Reference(Protocol):
    """What is needed of a reference to an image."""

    @property
    def key(self) -> str: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def chain(self) -> tuple[str, ...]: ...
    @property
    def size(self) -> int: ...


class Link(NamedTuple):
    """A pack of a chain. ``length``: bytes of its stream. ``folded``: how often they have been folded."""

    key: str
    digest: bytes
    length: int
    folded: int


class Tables(NamedTuple):
    """What a delta on this image may leave out, and what its chain consists of, oldest first.

    ``pieces``: digest and size by name; ``regions``: sizes.
    """

    pieces: Mapping[str, tuple[bytes, int]]
    regions: Mapping[int, int]
    links: tuple[Link, ...]

    @property
    def rows(self) -> int:
        return 16 + len(self.pieces) + len(self.regions) + len(self.links)


class _Seen:
    """The tables of the images last seen, by digest; bounded by the number of their rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[bytes, Tables] = OrderedDict()
        self._rows = 0

    def put(self, digest: bytes, tables: Tables) -> None:
        with self._lock:
            if digest in self._seen:
                self._rows -= self._seen[digest].rows
            self._rows += tables.rows
            self._seen[digest] = tables
            self._seen.move_to_end(digest)
            while self._rows > _REMEMBERED and len(self._seen) > 1:
                self._rows -= self._seen.popitem(last=False)[1].rows

    def get(self, digest: bytes) -> Tables | None:
        with self._lock:
            return self._seen.get(digest)


_seen = _Seen()


def remember(digest: bytes, tables: Tables) -> None:
    """The tables of an image that was just written or read."""
    _seen.put(digest, tables)


def tables_of(blobs: BlobStore, ref: Reference) -> Tables:
    """The tables of an image; its chain of documents is read if this process does not know it."""
    known = _seen.get(ref.digest)
    # The same image under another chain is another image to those that build on it.
    if known is None or tuple(link.key for link in known.links) != ref.chain:
        known = tables_from(layers_of(blobs, ref))
        _seen.put(ref.digest, known)
    return known


def whole_size(sections: int, pieces: Mapping[str, tuple[bytes, int]], regions: Mapping[int, int]) -> int:
    """Bytes that an image would take if nothing of it were elsewhere; ``sections``: theirs in the stream."""
    return sections + sum(size for _, size in pieces.values()) + sum(regions.values())


class Layer:
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
            self.regions: dict[int, tuple[int, Runs]] = {
                number: (size, unpacked_row(runs, size) if runs else _NO_RUNS)
                for number, size, runs in document["regions"]
            }
            parent = document["parent"]
            self.parent: tuple[str, bytes] | None = (parent["key"], parent["digest"]) if parent else None
            self.folded = int(document.get("folded", 0))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise corrupt(self.key, f"has a document that makes no sense ({error!r})") from error

    @property
    def link(self) -> Link:
        return Link(self.key, self.reader.digest, self.reader.stream_length, self.folded)

    def region(self, number: int, size: int) -> Runs:
        """What it holds of a region that has that size. Raises Corrupt."""
        found = self.regions.get(number)
        if found is None or found[0] != size:
            raise corrupt(self.key, f"does not hold region {number} as the newer packs say")
        return found[1]


def layers_of(blobs: BlobStore, ref: Reference) -> list[Layer]:
    """The packs of an image, newest first, their documents checked. Raises Corrupt."""
    parts = fetched(blobs, ref.chain)
    layers = [Layer(PackReader(blobs, ref.key, ref.digest, ref.size, parts[-1]))]
    for key, part in zip(reversed(ref.chain[:-1]), reversed(parts[:-1]), strict=True):
        parent = layers[-1].parent
        if parent is None or parent[0] != key:
            raise corrupt(layers[-1].key, "has another parent than its reference says")
        layers.append(Layer(PackReader(blobs, key, parent[1], ends=part)))
    if layers[-1].parent is not None:
        raise corrupt(layers[-1].key, "is a delta where a full image was promised")
    return layers


def piece_place(layers: Sequence[Layer], name: str, digest: bytes) -> tuple[int, list[int]]:
    """(which of the layers, newest first, holds a piece with that digest; where). Raises Corrupt."""
    for number, layer in enumerate(layers):
        found = layer.pieces.get(name)
        if found is None or found[0] != digest:
            raise corrupt(layer.key, f"does not hold piece {name!r} as the newer packs say")
        if found[1] is not None:
            position, length = found[1]
            if not 0 <= position <= position + length <= layer.reader.stream_length:
                raise corrupt(layer.key, "refers to bytes that it does not have")
            return number, found[1]
    raise corrupt(layers[-1].key, f"leaves out piece {name!r}")


def tables_from(layers: Sequence[Layer]) -> Tables:
    """The tables of the newest of the layers."""
    newest = layers[0]
    return Tables(
        {
            name: (digest, where[1] if where is not None else piece_place(layers, name, digest)[1][1])
            for name, (digest, where) in newest.pieces.items()
        },
        {number: size for number, (size, _) in newest.regions.items()},
        tuple(layer.link for layer in reversed(layers)),
    )
