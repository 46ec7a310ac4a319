"""The containers of an image, made again from their segments, before anything else of the state is.

Empty ones are made first, so that a container may name any other, itself too. What is checked of them
comes later, with the attributes (`Container._fill`).

A Map is *deferred* if most of its entries are in segments that were left unread and have an index, and
all others are plain too: its entries are read when they are asked for (`cutline.participant.unread`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cutline.errors import CannotRestore
from cutline.storage.unread import Unread as Piece

from .container import Container, Stored
from .key_index import Indexed, indexed, is_plain
from .map import Map
from .rebuild import Loader, blank
from .shelf import is_segment, segment_name
from .unread import Known, Layers, Origin

__all__ = ("check_filled", "left_unread", "unshelve")

Open = Callable[[io.BytesIO], Any]
# Bytes from which on a segment may be left unread.
LEAST = 64 * 1024


def left_unread(name: str, size: int) -> bool:
    """Which pieces of an image need not be read for a restore whose Maps are read later."""
    return size >= LEAST and is_segment(name)


def unshelve(
    rows: Sequence[Sequence[Any]],
    contents: Mapping[str, bytes | Piece],
    loader: Loader,
    opened: Open,
    origin: Callable[[int], Origin],
) -> None:
    """Makes the containers of `loader`, which streams that `opened` opens name. `origin`: of a container,
    by its number.

    Raises:
        CannotRestore: the image was written by a newer Cutline, or says something else than its header.
        StorageError: a piece that was left unread cannot be read.
    """
    made = {row[0]: blank(row[1]) for row in rows}
    # An old segment may name containers that have gone; newer ones have something else in their places.
    loader.containers, loader.former = made, {}
    deferred = set()
    for row in rows:
        number, *_, segments = row
        names = [segment_name(number, capture) for capture, _ in segments]
        for name in names:
            if name not in contents:
                raise CannotRestore(f"an image without the piece {name!r}, which its header names")
        parts = [contents[name] for name in names]
        named = loader.named
        if _defer(made[number], row, parts, opened, origin(number)):
            deferred.add(number)
            continue
        for part in parts:
            content = part.whole() if isinstance(part, Piece) else part
            made[number]._replay(_documents(io.BytesIO(content), opened))
        if loader.named == named:
            loader.nameless.add(number)
    strays = {id(stray) for stray in loader.former.values()}
    for number, kind, length, checked, nested, _ in rows:
        if loader.is_strict and not loader.findings.problems and len(made[number]) != length:
            raise CannotRestore(
                f"{kind} {number} of the image has {length} entries, its segments make {len(made[number])}: "
                "whatever wrote it is at fault; go back to another checkpoint"
            )
        if checked:
            loader.unfilled[id(made[number])] = kind, number, checked
        if nested or (strays and number not in deferred):
            made[number]._find_nested()
        if any(id(inner) in strays for inner in made[number]._nested()):
            raise CannotRestore(f"{kind} {number} of the image holds a container that the image has not")
    loader.former = None


def _defer(
    made: Container, row: Sequence[Any], parts: Sequence[bytes | Piece], opened: Open, origin: Origin
) -> bool:
    """Whether entries of a Map are to be read later; then it is ready for that."""
    _, _, length, checked, nested, segments = row
    if not isinstance(made, Map) or nested or not any(isinstance(part, Piece) for part in parts):
        return False
    if 2 * checked > length:
        # Most values come with the attributes.
        return False
    layers: list[Known | Indexed] = []
    stored: list[Stored] = []
    for (capture, size), part in zip(segments, parts, strict=True):
        layer: Known | Indexed | None = None
        if isinstance(part, Piece):
            layer = indexed(part, origin.teller(capture))
        if layer is None:
            part = part.whole() if isinstance(part, Piece) else part
            layer = Known(_documents(io.BytesIO(part), opened))
            if not is_plain(layer.put):
                return False
        layers.append(layer)
        stored.append(Stored(capture, size, part))
    unread = sum(layer.count for layer in layers if isinstance(layer, Indexed))
    known = sum(len(layer.put) for layer in layers if isinstance(layer, Known))
    if unread > known:
        made._defer(Layers(layers, stored, length, checked, origin))
    return unread > known


def _documents(stream: io.BytesIO, opened: Open) -> Iterator[Any]:
    while True:
        # Another one for each: its memo cannot be cleared, as the writer's was.
        yield opened(stream).load()


def check_filled(loader: Loader) -> None:
    """When everything is there. Raises CannotRestore: something that was to be checked did not come."""
    for kind, number, checked in loader.unfilled.values():
        raise CannotRestore(
            f"{kind} {number} of the image has {checked} values that may change, which are not in it: "
            "whatever wrote it is at fault; go back to another checkpoint"
        )
