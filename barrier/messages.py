"""What travels: frames of messages, marks of checkpoints, and who speaks to whom in which incarnation.

A *channel* is a directed edge between two incarnations of participants (`Member`). Its messages are
numbered from 1. They travel, wait and are stored in *frames*: a range of numbers with one body. The
cut of a frame is made once, by the sender, and never again: retransmission sends the same frame, so
the rolling digest of a channel (`chain`) has the same value at both ends after the same frame.

A *mark* ``(checkpoint, last, full)`` says: the sender's capture for ``checkpoint`` had sent the messages
up to ``last`` on this channel. Membership in a cut is decided by that number alone, so it does not
matter on which frame, marker or retransmission the mark arrives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

__all__ = (
    "Member",
    "Stamp",
    "Mark",
    "Open",
    "Frame",
    "Positions",
    "InPart",
    "OutPart",
    "ChannelTable",
    "Spawn",
    "chain",
)

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


class Member(NamedTuple):
    """One incarnation of a participant: a name that was reused has another birth number."""

    name: str
    birth: int


class Stamp(NamedTuple):
    """Who sent a packet to whom; unless run, epoch and births are equal it is neither delivered nor acked."""

    run: str
    epoch: int
    sender: Member
    receiver: Member


class Mark(NamedTuple):
    """The sender's position at its capture of an undecided checkpoint, on one channel."""

    checkpoint: int
    last: int
    full: bool


class Open(NamedTuple):
    """An undecided checkpoint as the coordinator names it."""

    checkpoint: int
    full: bool


class Frame(NamedTuple):
    """Messages ``first..last`` of a channel; `digest` is the channel's rolling digest after them."""

    first: int
    last: int
    body: bytes
    digest: int


class Positions(NamedTuple):
    """An ack: all three are absolute. `limit` is the last number the receiver has room for."""

    received: int
    released: int
    limit: int


class InPart(NamedTuple):
    """A receiver's share of a channel in a cut: processed up to `processed`, holds frames up to `upto`."""

    processed: int
    upto: int
    digest: int
    frames: tuple[Frame, ...]


class OutPart(NamedTuple):
    """A sender's share of a channel in a cut: the frames after `released` up to `last` (its mark).

    `digest` is the rolling digest at `released`.
    """

    last: int
    released: int
    digest: int
    frames: tuple[Frame, ...]


class Spawn(NamedTuple):
    """Somebody to be born: the spawner's own number of it, the name, and what it is made of (opaque here)."""

    number: int
    name: str
    record: Any


class ChannelTable(NamedTuple):
    """Both sides of all channels of one participant at its capture, and the spawns in its outbox."""

    incoming: dict[Member, InPart]
    outgoing: dict[Member, OutPart]
    spawns: tuple[Spawn, ...] = ()


def chain(digest: int, last: int, body: bytes) -> int:
    """The rolling digest after a frame that ends at `last`, given the one before it."""
    return xxh3_64_intdigest(body, (digest * _ODD + last) & _MASK)
