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
from cutline.errors import CannotRestore
from cutline.storage.image import Content, Image

from .classes import Classes
from .desk import Desk
from .desk_image import desk_to_doc, load_desk, rerun
from .findings import Findings
from .fitting import examine
from .frame_parts import in_parts
from .program import program_id
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


def revive(
    image: Image,
    desk: Desk,
    classes: Classes,
    restored: Restored | None,
    findings: Findings | None = None,
) -> Revived:
    """The participant of an image: its instance, its calls (suspended handlers run again), its channels.

    An image of another program is looked at as a whole first; see `fitting`. `findings`, if it is lenient,
    takes all that does not fit; the participant is of use only if that is nothing.

    Raises:
        ClassMissing, CannotRestore: the image and this program do not fit.
        HandlerRaised: a suspended handler did something else than the first time.
    """
    strict = findings is not None or image.header.get("program") != program_id()
    findings = findings or Findings()
    try:
        instance = restore(
            image.pieces,
            image.regions,
            participant=desk.name,
            classes=classes,
            live=desk.live,
            header=image.header,
            restored=restored,
            findings=findings,
            unread=image.unread,
        )
        is_whole = not findings.problems
        desk.instance = instance if is_whole else None
        load_desk(desk, section_of(image.sections, "calls"))
        channels, unresolved = channels_of(image.sections), section_of(image.sections, "unresolved")
        if strict:
            kind = type(instance) if is_whole else _class_of(image, classes)
            if kind is not None:
                desk.fit = examine(desk, kind, channels, unresolved, classes, findings)
        if is_whole:
            rerun(desk, findings if strict else None)
    except CannotRestore as error:
        raise _at(error, image.header) from error
    return Revived(instance, channels, unresolved)


def _class_of(image: Image, classes: Classes) -> type | None:
    """What the class is, if only the rest does not load."""
    try:
        kind: type = classes.find_named(image.header["class"])
    except CannotRestore:
        return None
    return kind


def _at(error: CannotRestore, header: Mapping[str, Any]) -> CannotRestore:
    """The same error, with the checkpoint."""
    number = header.get("checkpoint")
    return type(error)(f"{error} (checkpoint {number})", **{**error.facts, "checkpoint": number})


def channels_of(sections: Mapping[str, bytes]) -> ChannelTable:
    """The channels of an image."""
    spawns = section_of(sections, "spawns") if "spawns" in sections else ()
    return table_from_docs(section_of(sections, "queued_in"), section_of(sections, "unreleased_out"), spawns)
