"""What "consistent" means: the check that every cut passes before it is committed.

For each channel that either end names, with s = the sender's mark, p = processed, q = the end of what
the receiver holds, r = the sender's `released`::

    1 ............ p ........ q ................ s
    processed      receiver's    sender's frames (r, s]        needed:  r <= q <= s,  p <= q

so that processed, the receiver's part and the sender's part cover 1..s without a gap; and the rolling
digests of both ends agree at q. A channel to or from somebody outside the roster (a newborn) must not
have left anything in the cut: nothing released by it, nothing received from it (RULES 2, 9).
Who has left is outside too, and is like somebody who stands still for ever: its last claims hold in every
cut that is begun after it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .messages import ChannelTable, Member

__all__ = ("InClaim", "OutClaim", "Claims", "Departed", "claims_of", "check", "in_flight", "named")


class InClaim(NamedTuple):
    """What a receiver says of a channel in `prepared`."""

    processed: int
    upto: int
    digest: int


class OutClaim(NamedTuple):
    """What a sender says of a channel: its mark, and the digests at `released` and each later frame end."""

    last: int
    released: int
    ends: Mapping[int, int]


class Claims(NamedTuple):
    """A participant's channel table in `prepared`, without message bodies."""

    incoming: Mapping[Member, InClaim]
    outgoing: Mapping[Member, OutClaim]
    # The numbers of its spawns that are not born, as far as it knows.
    spawns: tuple[int, ...] = ()


class Departed(NamedTuple):
    """Somebody who has left: how its channels ended, and whose spawn it was."""

    claims: Claims
    origin: tuple[Member, int] | None = None


_NOBODY: Mapping[Member, Departed] = {}
_NOTHING_IN = InClaim(0, 0, 0)
_NOTHING_OUT = OutClaim(0, 0, {0: 0})
_SILENT = Claims({}, {})


def claims_of(table: ChannelTable) -> Claims:
    """The claims that a captured channel table amounts to."""
    incoming = {
        peer: InClaim(part.processed, part.upto, part.digest) for peer, part in table.incoming.items()
    }
    outgoing = {}
    for peer, part in table.outgoing.items():
        ends = {part.released: part.digest}
        ends.update((frame.last, frame.digest) for frame in part.frames)
        outgoing[peer] = OutClaim(part.last, part.released, ends)
    return Claims(incoming, outgoing, tuple(spawn.number for spawn in table.spawns))


def named(claims: Mapping[Member, Claims], departed: Mapping[Member, Departed]) -> dict[Member, Departed]:
    """Those of `departed` whom the cut still speaks of: by a channel, or as somebody to be born."""
    if not departed:
        return {}
    peers = {peer: None for said in claims.values() for peer in (*said.incoming, *said.outgoing)}
    found = {}
    for member, end in departed.items():
        unborn = end.origin is not None and end.origin[1] in claims.get(end.origin[0], _SILENT).spawns
        if member in peers or unborn:
            found[member] = end
    return found


def check(claims: Mapping[Member, Claims], departed: Mapping[Member, Departed] = _NOBODY) -> list[str]:
    """The violations of a cut, one sentence each; empty if the cut proves itself.

    `departed`: who had left when it was begun.
    """
    ends = {**claims, **{member: end.claims for member, end in departed.items()}}
    faults: list[tuple[Member, Member, str]] = []
    for receiver, heard in claims.items():
        for sender, into in heard.incoming.items():
            other = ends.get(sender)
            fault = _fault(other and other.outgoing.get(receiver, _NOTHING_OUT), into)
            if fault:
                faults.append((sender, receiver, fault))
    for sender, said in claims.items():
        for receiver, out in said.outgoing.items():
            other = ends.get(receiver)
            if receiver in claims and other is not None and sender in other.incoming:
                continue
            fault = _fault(out, other and other.incoming.get(sender, _NOTHING_IN))
            if fault:
                faults.append((sender, receiver, fault))
    return [f"channel {a.name}#{a.birth} -> {b.name}#{b.birth}: {fault}" for a, b, fault in faults]


def _fault(out: OutClaim | None, into: InClaim | None) -> str:
    if out is None:
        assert into is not None
        if into.upto or into.processed:
            return f"{into.upto} messages from somebody outside the cut are in it"
        return ""
    if into is None:
        return f"{out.released} messages were released by somebody outside the cut" if out.released else ""
    if into.processed > into.upto:
        return f"processed {into.processed} beyond what was received, {into.upto}"
    if into.upto > out.last:
        return f"received {into.upto}, but the sender's mark is {out.last}"
    if out.released > into.upto:
        return f"messages {into.upto + 1}..{out.released} are in neither image"
    if into.upto not in out.ends:
        return f"the receiver ends at {into.upto}, where the sender has no frame end"
    if out.ends[into.upto] != into.digest:
        return f"the digests of both ends differ at message {into.upto}"
    if max(out.ends) != out.last:
        return f"the sender's part ends at {max(out.ends)}, its mark is {out.last}"
    return ""


def in_flight(claims: Mapping[Member, Claims], departed: Mapping[Member, Departed] = _NOBODY) -> int:
    """How many messages of the cut were sent and not processed."""
    ends = {**claims, **{member: end.claims for member, end in departed.items()}}
    total = 0
    for sender, said in ends.items():
        for receiver, out in said.outgoing.items():
            if sender in departed and sender not in claims.get(receiver, _SILENT).incoming:
                # The receiver has handled all of it, and has closed the channel.
                continue
            into = ends[receiver].incoming.get(sender, _NOTHING_IN) if receiver in ends else _NOTHING_IN
            total += out.last - into.processed
    return total
