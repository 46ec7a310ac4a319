"""A state that was loaded, and perhaps changed by hand, as an image relative to the one it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blake3 import blake3

from .capture import Captured, Capturer
from .restore import Restored

__all__ = ("recaptured",)


def recaptured(
    name: str, instance: object, number: int, again: Callable[[Restored], object]
) -> Captured | None:
    """What of `instance` differs from the image of checkpoint `number` that it came from; None: nothing does.

    `again` makes another instance of that image. The order of a set is another one in each process, so a
    state that nobody has touched may differ from its image; it does not from another instance made here.

    Raises:
        CannotCapture: something that cannot be saved, or would not load, with its path.
    """
    # By hashes: nobody writes in between, and the kernel would have to be told before.
    capturer = Capturer(name, tracking="hash")
    known = capturer.expecting()
    untouched = again(known)
    capturer.adopt(number, untouched, known)
    if _content(name, untouched) == _content(name, instance):
        return None
    return capturer.capture(instance, number=number + 1, against=number)


def _content(name: str, instance: object) -> tuple[dict[str, bytes], list[Any]]:
    """Digests of all that a capture writes of it."""
    captured = Capturer(name, tracking="whole").capture(instance, number=1, against=None)
    regions = []
    for region in captured.regions:
        hasher = blake3()
        for _, run in region.extents:
            hasher.update(run)
        regions.append((region.number, region.size, hasher.digest()))
    return {piece.name: piece.digest for piece in captured.pieces}, regions
