"""What differs between two cuts: participants, the pieces and regions of their images, and bytes.

Nothing is unpickled. Pieces differ where their contents do, long ones part by part; a piece may also differ
because one before it does, since later ones refer to earlier ones by position. Regions are compared byte by
byte where both cuts have one of that number and size.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field

import numpy as np

from .catalog import CheckpointRow
from .image import Image, read_image
from .manifest import MemberImage
from .part_names import piece_of
from .store import Store

__all__ = ("Changed", "Difference", "compare")


@dataclass(frozen=True, slots=True)
class Changed:
    """A part that differs. ``before`` and ``after``: its bytes, None where it is not there. ``bytes``: how
    many differ; for pieces and sections, which are pickled or packed, all of the later one, and of a piece in
    parts those that differ."""

    name: str
    before: int | None
    after: int | None
    bytes: int


@dataclass(slots=True)
class Difference:
    """One participant. ``what``: "added", "removed", "changed", "same", or "born again" for another one of
    the name. ``size``: bytes of its state in the later cut, or in the earlier if it is gone."""

    participant: str
    what: str
    size: int
    pieces: list[Changed] = field(default_factory=list)
    regions: list[Changed] = field(default_factory=list)
    sections: list[Changed] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in (*self.pieces, *self.regions, *self.sections))


def compare(store: Store, before: CheckpointRow, after: CheckpointRow) -> list[Difference]:
    """By participant, in order of names. Raises Corrupt for a part that is damaged."""
    old, new = store.read_manifest(before).images, store.read_manifest(after).images
    return [_compared(store, name, old.get(name), new.get(name)) for name in sorted({*old, *new})]


def _compared(store: Store, name: str, old: MemberImage | None, new: MemberImage | None) -> Difference:
    if old is None or new is None:
        image = _read(store, old or new)
        difference = Difference(name, "removed" if new is None else "added", _size(image))
        _fill(difference, *((image, _NOTHING) if new is None else (_NOTHING, image)))
        return difference
    if old == new:
        return Difference(name, "same", _size(_read(store, new)))
    earlier, later = _read(store, old), _read(store, new)
    difference = Difference(name, "changed", _size(later))
    _fill(difference, earlier, later)
    if old.birth != new.birth:
        difference.what = "born again"
    elif not (difference.pieces or difference.regions or difference.sections):
        difference.what = "same"
    return difference


_NOTHING = Image({}, {}, [])


def _read(store: Store, image: MemberImage | None) -> Image:
    assert image is not None
    return read_image(store.blobs, image.ref)


def _size(image: Image) -> int:
    return sum(len(content) for _, content in image.pieces) + sum(map(len, image.regions.values()))


def _fill(difference: Difference, before: Image, after: Image) -> None:
    difference.pieces = _pieces(_parts(dict(before.pieces), dict(after.pieces)), before, after)
    difference.sections = _parts(before.sections, after.sections)
    for number in sorted({*before.regions, *after.regions}):
        old, new = before.regions.get(number), after.regions.get(number)
        if old is not None and new is not None and old.size == new.size:
            count = int(np.count_nonzero(old != new))
        else:
            count = max(_length(old) or 0, _length(new) or 0)
        if count:
            difference.regions.append(Changed(str(number), _length(old), _length(new), count))


def _pieces(parts: list[Changed], before: Image, after: Image) -> list[Changed]:
    """Changed pieces of changed parts."""
    old, new = _lengths(before), _lengths(after)
    differing: dict[str, int] = {}
    for part in parts:
        name = piece_of(part.name)
        # A part that a shorter piece has no more is no bytes of it.
        count = part.bytes if part.after is not None or name not in new else 0
        differing[name] = differing.get(name, 0) + count
    return [Changed(name, old.get(name), new.get(name), count) for name, count in differing.items()]


def _lengths(image: Image) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for name, content in image.pieces:
        lengths[piece_of(name)] = lengths.get(piece_of(name), 0) + len(content)
    return lengths


def _parts(before: dict[str, bytes], after: dict[str, bytes]) -> list[Changed]:
    found = []
    for name in dict.fromkeys((*after, *before)):
        old, new = before.get(name), after.get(name)
        if old != new:
            found.append(
                Changed(name, _length(old), _length(new), len(new if new is not None else old or b""))
            )
    return found


def _length(content: Sized | None) -> int | None:
    return None if content is None else len(content)
