"""An image's sections and the participant they make: calls, queued in, unreleased out, unresolved.

State and memory regions are the capture's business (`cutline.participant.capture`); here is everything
else that an image holds, as msgpack documents under fixed names (docs/format.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from cutline.barrier import ChannelTable
from cutline.barrier.wire import incoming_to_doc, outgoing_to_doc, spawns_to_doc, table_from_docs
from cutline.storage.image import Content, Image

from .classes import Classes
from .desk import Desk
from .desk_image import desk_to_doc, load_desk, rerun
from .frame_parts import in_parts
from .restore import Restored, restore

__all__ = ("channels_of", "section_of", "sections_of", "revive", "Revived")


class Revived(NamedTuple):
    """What an image becomes."""

    instance: object
    channels: ChannelTable
    unresolved: dict[str, list[bytes]]


def sections_of(
    desk: Desk,
    channels: ChannelTable,
    unresolved: dict[str, list[bytes]],
) -> dict[str, Content]:
    """Everything of a participant that is not its state."""
    return {
        "calls": msgpack.packb(desk_to_doc(desk)),
        "queued_in": in_parts(incoming_to_doc(channels)),
        "unreleased_out": in_parts(outgoing_to_doc(channels)),
        "unresolved": msgpack.packb(unresolved),
        **({"spawns": msgpack.packb(spawns_to_doc(channels))} if channels.spawns else {}),
    }


def section_of(sections: Mapping[str, bytes], name: str) -> Any:
    """A section of an image as a document."""
    raw = sections[name]
    return msgpack.unpackb(raw, strict_map_key=False, max_bin_len=len(raw), max_str_len=len(raw))


def revive(image: Image, desk: Desk, classes: Classes, restored: Restored) -> Revived:
    """The participant of an image: its instance, its calls (suspended handlers run again), its channels.

    Raises:
        ClassMissing, CannotRestore: the image and this program do not fit.
        HandlerRaised: a suspended handler did something else than the first time.
    """
    instance = restore(
        image.pieces,
        image.regions,
        participant=desk.name,
        classes=classes,
        live=desk.live,
        header=image.header,
        restored=restored,
    )
    desk.instance = instance
    load_desk(desk, section_of(image.sections, "calls"))
    rerun(desk)
    return Revived(instance, channels_of(image.sections), section_of(image.sections, "unresolved"))


def channels_of(sections: Mapping[str, bytes]) -> ChannelTable:
    """The channels of an image."""
    spawns = section_of(sections, "spawns") if "spawns" in sections else ()
    return table_from_docs(section_of(sections, "queued_in"), section_of(sections, "unreleased_out"), spawns)
