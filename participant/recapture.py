"""A state that was loaded, and perhaps changed by hand, as an image relative to the one it came from."""

from __future__ import annotations

from collections.abc import Callable

import msgpack

from cutline.storage.image import Image

from .capture import Captured, Capturer
from .restore import HEADER

__all__ = ("recaptured",)


def recaptured(
    name: str, instance: object, image: Image, number: int, again: Callable[[], object]
) -> Captured | None:
    """What of `instance` differs from `image`, which is that of checkpoint `number`; None: nothing does.

    `again` makes another instance of the image. The order of a set is another one in each process, so a state
    that nobody has touched may differ from its image; it does not from another instance made here.

    Raises:
        CannotCapture: something that cannot be saved, or would not load, with its path.
    """
    # By hashes: nobody writes in between, and the kernel would have to be told before.
    capturer = Capturer(name, tracking="hash")
    known = capturer.expecting()
    doc = msgpack.unpackb(dict(image.pieces)[HEADER], strict_map_key=False)
    known.pieces = list(image.pieces)
    known.slots = list(doc["regions"])
    known.cuts = {piece: (size, count) for piece, (size, count) in doc.get("parts", {}).items()}
    for region, memory in image.regions.items():
        known.filled(region, memory)
    untouched = again()
    capturer.adopt(number, untouched, known)
    capturer.capture(untouched, number=number + 1, against=number)
    touched = capturer.capture(instance, number=number + 2, against=number + 1)
    if not touched.changed_bytes:
        return None
    return capturer.capture(instance, number=number + 3, against=number)
