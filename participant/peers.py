"""Who is where: names to members, members to addresses, members to links.

The endpoint thinks in members; connections come and go below it. This is the part of the shell that
dials, keeps a link to each peer, falls back to another one when it breaks, and asks the coordinator where a
name lives. It decides nothing about messages.

A link belongs to an epoch, and both ends say theirs when they greet. A process that was declared dead and
lives on under its name would otherwise keep the links of its peers, who would send into it for ever while
its successor waits (RULES 8): so links end with their epoch, and whoever has another one is hung up on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cutline.barrier import Endpoint, Member
from cutline.barrier.events import LinkLost, LinkOpened
from cutline.barrier.wire import PROTOCOL

from .control import pack_control, unpack_control
from .transport import CLOSED_HERE, Link, LinkDown, LinkRefused, LinkUp, Transport

__all__ = ("Peers",)

_log = logging.getLogger("cutline")

_RETRY = 0.05
# Dials in a row that came to nothing, before the user hears of it.
_WORTH_TELLING = 10
_BACKLOG = 8 * 1024 * 1024
# Seconds: how long an ack may wait for a later one to take its place.
ACK_AFTER = 0.01


class Peers:
    """Links and addresses of one participant."""

    def __init__(self, me: Member, run: str, transport: Transport, now: Callable[[], float]) -> None:
        self.me = me
        self.run = run
        self.transport = transport
        self.now = now
        # -1 until it is known: a newborn may be dialed before it has heard that it is born.
        self.epoch = -1
        self.members: dict[str, Member] = {me.name: me}
        self.addresses: dict[Member, str] = {}
        self.links: dict[Member, list[Link]] = {}
        self.dialing: dict[Member, float] = {}
        self.retries: dict[Member, float] = {}
        self.acks: dict[Member, bytes] = {}
        self.ack_at = 0.0
        # How many dials in a row came to nothing, though somebody listens there.
        self._failures: dict[Member, int] = {}

    def greeting(self, to: Member | None = None) -> bytes:
        """What a link says first: who speaks, to whom, in which protocol and epoch."""
        return pack_control(
            "peer",
            protocol=PROTOCOL,
            run=self.run,
            epoch=self.epoch,
            member=list(self.me),
            to=list(to) if to else None,
        )

    def link(self, peer: Member) -> Link | None:
        """The link to use for `peer`."""
        links = self.links.get(peer)
        return links[0] if links else None

    def up(self, event: LinkUp, endpoint: Endpoint | None) -> list[Any]:
        """A link with a peer stands; returns what the endpoint wants done. Strangers are hung up on."""
        if isinstance(event.key, Member):
            self.dialing.pop(event.key, None)
        try:
            doc = unpack_control(event.greeting)
            peer = Member(*doc["member"])
            fits = doc["kind"] == "peer" and doc["run"] == self.run and doc["protocol"] == PROTOCOL
            fits = fits and (doc["epoch"] == self.epoch or -1 in (doc["epoch"], self.epoch))
        except (ValueError, KeyError, TypeError):
            fits = False
        if not fits or (doc["to"] is not None and Member(*doc["to"]) != self.me):
            event.link.close()
            if isinstance(event.key, Member):
                # Somebody else lives there now: ask anew where the peer is.
                self.addresses.pop(event.key, None)
                self.retries[event.key] = self.now() + _RETRY
            return []
        self.dialing.pop(peer, None)
        self.retries.pop(peer, None)
        self._failures.pop(peer, None)
        links = self.links.setdefault(peer, [])
        links.append(event.link)
        return endpoint.handle(LinkOpened(peer)) if endpoint is not None and len(links) == 1 else []

    def down(self, event: LinkDown, endpoint: Endpoint | None) -> list[Any]:
        """A link broke; another one to the same peer takes over, or the endpoint learns of the loss."""
        for peer, links in self.links.items():
            if event.link in links:
                was_first = links[0] is event.link
                links.remove(event.link)
                if not links:
                    del self.links[peer]
                if endpoint is None or not was_first:
                    return []
                actions: list[Any] = list(endpoint.handle(LinkLost(peer)))
                if links:
                    actions += endpoint.handle(LinkOpened(peer))
                else:
                    self.retries[peer] = self.now() + _RETRY
                return actions
        return []

    def refused(self, event: LinkRefused) -> Member | None:
        """A dial came to nothing; it is tried again. Returns the peer if nobody listens there."""
        assert isinstance(event.key, Member)
        self.dialing.pop(event.key, None)
        self.retries[event.key] = self.now() + _RETRY
        # The peer may have been started again elsewhere: ask anew.
        self.addresses.pop(event.key, None)
        if event.gone:
            return event.key
        failures = self._failures[event.key] = self._failures.get(event.key, 0) + 1
        if failures == _WORTH_TELLING and event.reason != CLOSED_HERE:
            # Out of descriptors, say: nothing else tells why nothing happens.
            _log.warning(
                "participant %r cannot reach %r and goes on trying: %s",
                self.me.name,
                event.key.name,
                event.reason,
            )
        return None

    def dial(self, peer: Member) -> bool:
        """Connects to `peer` unless that is under way; false if its address is not known."""
        if peer == self.me or self.links.get(peer) or peer in self.dialing:
            return True
        address = self.addresses.get(peer)
        if address is None:
            return False
        if address == "":
            # It listens nowhere (a driver): it will dial us.
            return True
        self.dialing[peer] = self.now()
        self.transport.connect(address, self.greeting(peer), peer)
        return True

    def due_retries(self) -> list[Member]:
        """Peers whose next attempt is due."""
        now = self.now()
        due = [peer for peer, at in self.retries.items() if at <= now]
        for peer in due:
            del self.retries[peer]
        return due

    def set_budgets(self, endpoint: Endpoint) -> None:
        """Lets the endpoint transmit only what the connections can take."""
        for peer, links in self.links.items():
            sender = endpoint.outgoing.get(peer)
            if sender is not None and links:
                sender.budget = _BACKLOG - links[0].backlog

    def send_acks(self) -> None:
        """Sends the newest ack for each peer. Positions are absolute, so it stands for those before it.

        They leave in bulk, some time after the last ones: each costs both ends as much as a hundred messages.
        Nobody waits for one: the window that a receiver grants lasts much longer.
        """
        if not self.acks or self.now() < self.ack_at:
            return
        for peer, packet in self.acks.items():
            link = self.link(peer)
            if link is not None:
                link.send_control(packet)
        self.acks.clear()
        self.ack_at = self.now() + ACK_AFTER

    def forget(self, peer: Member) -> None:
        """A peer is gone for good."""
        for table in (self.addresses, self.dialing, self.retries, self.acks, self._failures):
            table.pop(peer, None)

    def new_epoch(self, epoch: int) -> None:
        """Links of the older one end; where everybody is now is asked anew."""
        self.epoch = epoch
        for links in self.links.values():
            for link in links:
                link.close()
        self.links.clear()
        self.dialing.clear()
        self.addresses.clear()
        self.retries.clear()
        self.acks.clear()
        self._failures.clear()
