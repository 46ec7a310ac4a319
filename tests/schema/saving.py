"""A participant of any attributes, and its image."""

from __future__ import annotations

from typing import Any

from cutline.participant.capture import Capturer
from tests.participant.images import Images

__all__ = ("Holder", "saved")


class Holder:
    """A participant."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def saved(instance: object) -> Images:
    """Its first image."""
    images = Images()
    images.put(Capturer("p").capture(instance, number=1, against=None), None)
    return images
