"""The actors of the overhead matrix: they pass tokens to each other, compute, and change a state.

The same class is a participant and a plain Ray actor; only how a message is sent differs. A token is a
payload of so many bytes that one actor sends to another; whoever gets one computes for about 100 us, writes
what is due to its arrays, and passes it on. So many are under way all the time, and none may be lost or
doubled: at every consistent moment what was sent and not handled is on its way, and all others are held.

=============  =====================================================================================
ring           each to the next
pipeline       from the first through all others; the last gives the first leave to send one more
fan_in         all others to the first, which gives leave to send one more
all_to_all     each to all others by turns
=============  =====================================================================================

Leave to send is a token without bytes.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

__all__ = ("TOPOLOGIES", "Node", "Topology", "tokens_of")

Topology = Literal["ring", "pipeline", "fan_in", "all_to_all"]
TOPOLOGIES: tuple[Topology, ...] = ("ring", "pipeline", "fan_in", "all_to_all")

PAGE = 4096
# Tokens for each actor: enough that nobody is idle while a message is under way.
TOKENS = 16
# The share of the pages that is written a second.
WRITTEN = 0.01


def tokens_of(topology: Topology, actors: int) -> list[int]:
    """How many tokens each of the actors begins with."""
    if topology == "pipeline":
        return [TOKENS * actors] + [0] * (actors - 1)
    if topology == "fan_in":
        return [0] + [TOKENS] * (actors - 1)
    return [TOKENS] * actors


class Node:
    """One of the actors."""

    def __init__(self, place: int, topology: Topology, payload: int, pages: int) -> None:
        self.place, self.topology, self.payload = place, topology, bytes(payload)
        self.peers: list[Any] = []
        self.how = ""
        self.open = False
        self.handled = self.sent = self.taken_bytes = self.sent_bytes = 0
        self.held: list[int] = []
        self.random = np.random.default_rng(place)
        self.pages = self.random.random((max(1, pages), PAGE // 4), dtype=np.float32)
        self.written = 0.0

    def connect(self, peers: Sequence[Any], how: Literal["tell", "remote"]) -> None:
        """Learns of all actors, itself too, and how a message is sent to one."""
        self.peers, self.how = list(peers), how

    def deal(self, tokens: int) -> None:
        """Holds so many tokens, which are in the game when it is resumed."""
        self.held = [self.place] * tokens

    def take(self, sender: int, payload: bytes) -> None:
        """A token comes."""
        self.handled += 1
        self.taken_bytes += len(payload)
        self._work()
        if self.open:
            self._pass_on(sender)
        else:
            self.held.append(sender)

    def pause(self) -> None:
        """Holds what comes from now on."""
        self.open = False

    def resume(self) -> None:
        """Passes on what it holds, and what comes."""
        held, self.held, self.open = self.held, [], True
        self.written = time.perf_counter()
        for sender in held:
            self._pass_on(sender)

    def count(self) -> tuple[float, int]:
        """(seconds of its clock, tokens handled)."""
        return time.perf_counter(), self.handled

    def totals(self) -> tuple[int, int, int, int, int]:
        """Tokens sent, handled and held; bytes sent and taken."""
        return self.sent, self.handled, len(self.held), self.sent_bytes, self.taken_bytes

    def save(self, path: str) -> None:
        """Stores its own state durably, as Ray's documentation has an actor do it."""
        state = {key: value for key, value in self.__dict__.items() if key != "peers"}
        with open(f"{path}.new", "wb") as file:
            pickle.dump(state, file, protocol=5)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)

    def _work(self) -> None:
        now = time.perf_counter()
        due = int((now - self.written) * WRITTEN * len(self.pages))
        if due:
            self.pages[self.random.integers(0, len(self.pages), due), 0] += 1
            self.written = now
        total = 0
        for number in range(1500):
            total += number

    def _pass_on(self, sender: int) -> None:
        """Sends a token to whoever is next after this sender's."""
        last = len(self.peers) - 1
        if self.topology == "fan_in":
            to = 0 if self.place else sender
        elif self.topology == "all_to_all":
            to = (self.place + 1 + self.sent % last) % (last + 1)
        else:
            to = (self.place + 1) % (last + 1)
        payload = b"" if self._gives_leave() else self.payload
        self.sent += 1
        self.sent_bytes += len(payload)
        getattr(self.peers[to].take, self.how)(self.place, payload)

    def _gives_leave(self) -> bool:
        if self.topology == "fan_in":
            return self.place == 0
        return self.topology == "pipeline" and self.place == len(self.peers) - 1
