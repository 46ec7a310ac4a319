"""Packets between participants as bytes: the only place that knows the order of fields.

A packet is one msgpack array. Data packets put the frame's body last, so that it is copied once. The
first field is the kind; a packet of a later protocol than `PROTOCOL` is refused at the greeting, before
any packet is decoded. Claims (what a participant says of its channels in `prepared`) have their
encoding here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from .cut import Claims, InClaim, OutClaim
from .events import AckArrived, FrameArrived, MarkerArrived
from .messages import ChannelTable, Frame, InPart, Mark, Member, OutPart, Positions, Spawn, Stamp

__all__ = (
    "PROTOCOL",
    "pack_frame",
    "pack_marker",
    "pack_ack",
    "unpack",
    "claims_to_doc",
    "claims_from_doc",
    "incoming_to_doc",
    "outgoing_to_doc",
    "spawns_to_doc",
    "table_from_docs",
)

PROTOCOL = 1
# One packer for all: making one takes as long as packing a small packet.
_pack = msgpack.Packer(autoreset=True).pack
_NOBODY: Mapping[tuple[str, int], Member] = {}
_FRAME, _MARKER, _ACK = 1, 2, 3
_HEAD_SHAPE = (int, str, int, str, int, str, int)
_MARK_SHAPE = (int, int, bool)
_SHAPES: dict[Any, tuple[type, ...]] = {
    _FRAME: (*_HEAD_SHAPE, int, tuple, int, int, bytes, int),
    _MARKER: (*_HEAD_SHAPE, int, tuple),
    _ACK: (*_HEAD_SHAPE, int, int, int),
}


def _head(kind: int, stamp: Stamp) -> list[Any]:
    return [kind, stamp.run, stamp.epoch, *stamp.sender, *stamp.receiver]


def pack_frame(stamp: Stamp, marks: Sequence[Mark], committed: int, frame: Frame) -> bytes:
    """A frame with its marks."""
    packed: bytes = _pack([*_head(_FRAME, stamp), committed, marks, *frame])
    return packed


def pack_marker(stamp: Stamp, marks: Sequence[Mark], committed: int) -> bytes:
    """A marker."""
    packed: bytes = _pack([*_head(_MARKER, stamp), committed, marks])
    return packed


def pack_ack(stamp: Stamp, positions: Positions) -> bytes:
    """An ack."""
    packed: bytes = _pack([*_head(_ACK, stamp), *positions])
    return packed


def unpack(packet: bytes) -> FrameArrived | MarkerArrived | AckArrived:
    """The event that a packet amounts to.

    Raises:
        ValueError: bytes that no peer of this protocol sends.
    """
    try:
        fields = msgpack.unpackb(packet, use_list=False, max_bin_len=len(packet), max_str_len=len(packet))
        kind, run, epoch, sender, sender_birth, receiver, receiver_birth, *rest = fields
        shape = _SHAPES.get(kind)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"a packet that no peer sends: {error}") from error
    if tuple(map(type, fields)) != shape:
        raise ValueError(f"a packet of kind {kind!r} with fields that no peer sends")
    stamp = Stamp(run, epoch, Member(sender, sender_birth), Member(receiver, receiver_birth))
    if kind == _ACK:
        return AckArrived(stamp, Positions(*rest))
    committed, marks, *frame = rest
    if marks:
        if any(type(mark) is not tuple or tuple(map(type, mark)) != _MARK_SHAPE for mark in marks):
            raise ValueError("a packet with marks that no peer sends")
        marks = tuple([Mark(*mark) for mark in marks])
    if kind == _MARKER:
        return MarkerArrived(stamp, marks, committed)
    return FrameArrived(stamp, marks, committed, Frame(*frame))


def claims_to_doc(table: ChannelTable) -> dict[str, Any]:
    """A channel table for `prepared`: positions and digests, no bodies."""
    incoming = [[*peer, part.processed, part.upto, part.digest] for peer, part in table.incoming.items()]
    outgoing = []
    for peer, part in table.outgoing.items():
        ends = [[part.released, part.digest], *([frame.last, frame.digest] for frame in part.frames)]
        outgoing.append([*peer, part.last, part.released, ends])
    return {"incoming": incoming, "outgoing": outgoing, "spawns": [spawn.number for spawn in table.spawns]}


def claims_from_doc(doc: dict[str, Any], known: Mapping[tuple[str, int], Member] = _NOBODY) -> Claims:
    """The reverse of `claims_to_doc`. Members in `known` are not made anew: a cut names each many times."""
    find = known.get
    incoming = {
        find((name, birth)) or Member(name, birth): InClaim(p, q, digest)
        for name, birth, p, q, digest in doc["incoming"]
    }
    outgoing = {
        find((name, birth)) or Member(name, birth): OutClaim(last, released, dict(ends))
        for name, birth, last, released, ends in doc["outgoing"]
    }
    return Claims(incoming, outgoing, tuple(doc.get("spawns", ())))


def incoming_to_doc(table: ChannelTable) -> list[Any]:
    """The image section "queued in"."""
    return [
        [*peer, part.processed, part.upto, part.digest, [list(frame) for frame in part.frames]]
        for peer, part in table.incoming.items()
    ]


def outgoing_to_doc(table: ChannelTable) -> list[Any]:
    """The image section "unreleased out"."""
    return [
        [*peer, part.last, part.released, part.digest, [list(frame) for frame in part.frames]]
        for peer, part in table.outgoing.items()
    ]


def spawns_to_doc(table: ChannelTable) -> list[Any]:
    """The image section "spawns"."""
    return [list(spawn) for spawn in table.spawns]


def table_from_docs(
    incoming: Sequence[Any], outgoing: Sequence[Any], spawns: Sequence[Any] = ()
) -> ChannelTable:
    """These sections of an image as a channel table."""
    return ChannelTable(
        {
            Member(name, birth): InPart(p, q, digest, tuple(Frame(*frame) for frame in frames))
            for name, birth, p, q, digest, frames in incoming
        },
        {
            Member(name, birth): OutPart(last, released, digest, tuple(Frame(*frame) for frame in frames))
            for name, birth, last, released, digest, frames in outgoing
        },
        tuple(Spawn(*spawn) for spawn in spawns),
    )
