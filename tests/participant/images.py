"""Images as storage keeps them, in memory: pieces by name, regions merged over the parent's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutline.participant.capture import Captured, Capturer
from cutline.participant.pickling import dumps, loads
from cutline.participant.restore import Restored, restore
from cutline.participant.shelf import is_segment
from cutline.participant.tracking import tracking_here
from cutline.storage.blobs import pack_key
from cutline.storage.image import ImageRef, read_image, write_image
from cutline.storage.memory import MemoryBlobs

__all__ = (
    "WAYS",
    "Images",
    "Packs",
    "Taking",
    "Way",
    "graph_of",
    "needs_kernel",
    "through_image",
    "through_message",
    "ways",
)

# How changes in regions can be found on this machine.
WAYS = ("kernel", "hash") if tracking_here()[0] == "kernel" else ("hash",)
# Machines without that account (an old kernel, a sandbox) track by hashes, and the rest of the tests is about
# them.
needs_kernel = pytest.mark.skipif("kernel" not in WAYS, reason=tracking_here()[1])


class Images:
    """The images of one participant by number."""

    def __init__(self) -> None:
        self.images: dict[int, tuple[list[tuple[str, bytes]], dict[int, bytearray]]] = {}

    def put(self, captured: Captured, against: int | None) -> None:
        old_pieces, old_regions = self.images[against] if against is not None else ([], {})
        known = dict(old_pieces)
        pieces = [
            (piece.name, known[piece.name] if piece.content is None else bytes(piece.content))
            for piece in captured.pieces
        ]
        regions: dict[int, bytearray] = {}
        for region in captured.regions:
            memory = bytearray(old_regions.get(region.number, bytearray(region.size)))
            assert len(memory) == region.size
            if region.number not in old_regions:
                assert sum(len(run) for _, run in region.extents) == region.size
            for start, run in region.extents:
                memory[start : start + len(run)] = run
            regions[region.number] = memory
        self.images[captured.number] = (pieces, regions)

    def restore(self, number: int, restored: Restored | None = None) -> Any:
        pieces, regions = self.images[number]
        copies = {region: bytearray(memory) for region, memory in regions.items()}
        return restore(pieces, copies, participant="p", restored=restored)


class Packs(Images):
    """The same as chains of packs in a store, which are folded when there are more than `most`."""

    most = 2

    def __init__(self) -> None:
        super().__init__()
        self.blobs = MemoryBlobs()
        self.refs: dict[int, ImageRef] = {}

    def put(self, captured: Captured, against: int | None) -> None:
        self.refs[captured.number] = write_image(
            self.blobs,
            pack_key("s", "1f", 1, captured.number, "p", 1),
            header={},
            sections={},
            pieces=captured.pieces,
            regions=captured.regions,
            parent=None if against is None else self.refs[against],
            most=self.most,
        )

    def restore(self, number: int, restored: Restored | None = None, *, later: bool = False) -> Any:
        """`later`: segments are left unread, however small."""
        left = (lambda name, size: is_segment(name)) if later else None
        image = read_image(self.blobs, self.refs[number], left=left)
        return restore(
            image.pieces,
            image.regions,
            participant="p",
            header={"checkpoint": number},
            restored=restored,
            unread=image.unread,
        )


class Taking:
    """Captures of one state in a row, which overlap: each is committed or aborted later. One that commits is
    written then, and restored from in both ways.

    No ABC: what is driven by hypothesis has a metaclass of its own.
    """

    agent: Any
    capturer: Capturer

    def __init__(self) -> None:
        self.log: list[str] = []
        self.images = Packs()
        self.pictures: dict[int, Any] = {}
        self.taken: dict[int, tuple[Captured, int | None]] = {}
        self.number = 0
        self.base: int | None = None
        self.undecided: list[int] = []

    @abstractmethod
    def picture_now(self) -> Any:
        """What a restore of a capture that is made now must have."""

    @abstractmethod
    def same(self, got: Any, number: int) -> None:
        """Raises unless what was restored from a capture is what `picture_now` was then."""

    def committed(self) -> None:
        """`base` is another one."""

    def capture(self, full: bool = False) -> None:
        self.number += 1
        against = None if full else self.base
        self.log.append(f"capture {self.number} against {against}")
        captured = self.capturer.capture(self.agent, number=self.number, against=against)
        self.taken[self.number] = captured, against
        self.pictures[self.number] = self.picture_now()
        self.undecided.append(self.number)

    def decide(self, which: int, commit: bool) -> None:
        number = self.undecided.pop(which % len(self.undecided))
        self.log.append(f"{'commit' if commit else 'abort'} {number}")
        captured, against = self.taken.pop(number)
        if not commit:
            self.capturer.aborted(number)
            return
        self.images.put(captured, against)
        for later in (False, True):
            self.same(self.images.restore(number, later=later), number)
        if self.base is None or number > self.base:
            self.base = number
            self.capturer.committed(number)
            self.committed()


def graph_of(root: object) -> list[Any]:
    """Everything that can be reached from `root`, each object once, with its content and what it refers to.

    Two graphs are equal if and only if they have the same values in the same order and share the same
    objects.
    """
    numbers, found, rows = {id(root): 0}, [root], []

    def number(value: object) -> Any:
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return type(value), value
        if id(value) not in numbers:
            numbers[id(value)] = len(found)
            found.append(value)
        return numbers[id(value)]

    for value in found:
        content: Any
        if isinstance(value, dict):
            content = [(number(key), number(inner)) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            content = [number(inner) for inner in value]
        elif isinstance(value, np.ndarray):
            content = value.dtype, value.shape, value.tobytes()
        elif isinstance(value, bytearray):
            content = bytes(value)
        else:
            content = [(name, number(inner)) for name, inner in vars(value).items()]
        rows.append((type(value), content))
    return rows


class _Holder:
    """A participant with one attribute."""

    value: Any


def through_image(value: Any, region_min: int = 1024) -> Any:
    """`value` after a capture and a restore, as an attribute."""
    holder = _Holder()
    holder.value = value
    images = Images()
    images.put(Capturer("p", region_min=region_min).capture(holder, number=1, against=None), None)
    return images.restore(1).value


def through_message(value: Any) -> Any:
    """`value` after a message."""
    return loads(dumps(value, participant="p", where="argument"), participant="p")


Way = Callable[[Any], Any]
ways = pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda value: through_image(value, 1), id="regions"),
        pytest.param(lambda value: through_image(value, 1 << 20), id="stream"),
        pytest.param(through_message, id="message"),
    ],
)
