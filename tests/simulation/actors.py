"""What the simulated participants do: a `Node` keeps a book of every message, the checkers' raw material.

Each message between two nodes has an id that is never given twice, not even when a handler is run again
after a rollback, so a message of a history that was undone can be told from the one that took its place.
"""

from __future__ import annotations

import asyncio
from typing import Any

import cutline
from cutline.errors import DuplicateName, ParticipantLeft, UnknownParticipant
from cutline.participant.handle import Handle

__all__ = ("Node", "Numbers", "BOOKED")

# Methods whose first two arguments are the sender's name and the message's id.
BOOKED = ("token", "transfer", "stage", "flood", "echo")


class Numbers:
    """Where ids come from. One per process, set to 0 when a schedule begins; no part of any state."""

    last = 0
    flaky: set[tuple[str, int]] = set()

    @classmethod
    def fresh(cls) -> int:
        """An id that was never given before."""
        cls.last += 1
        return cls.last

    @classmethod
    def reset(cls) -> None:
        """A schedule begins."""
        cls.last = 0
        cls.flaky = set()


class Node:
    """One participant. `peers` are handles of all, itself included."""

    def __init__(
        self, name: str, peers: list[Handle], balance: int, weight: int, term: int = 0, called: str = ""
    ) -> None:
        # Its name in the books: a participant's name may be used again when it has left.
        self.name = name
        # What others book it under: its name as a participant.
        self.called = called or name
        # Messages after which it leaves; 0: never.
        self.term = term
        self.is_child = name.startswith("c")
        self.peers = peers
        # Those of its birth: a suspended handler is run again with what it read the first time.
        self.first = tuple(peers)
        self.balance = balance
        self.sent: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.children: list[Handle] = []
        self.inputs: list[int] = []
        self.line: list[int] = []
        self.served: list[int] = []
        self.done: list[int] = []
        self.heard: list[int] = []
        self.quotes: list[int] = []
        self.lot = len(name) * 7919 + sum(map(ord, name))
        # Something large enough to be a region of its own now and then, so that deltas have parts.
        self.ballast = bytearray(weight)

    # -- the book --------------------------------------------------------------------------

    def _draw(self, below: int) -> int:
        self.lot = (self.lot * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.lot >> 33) % below

    def _send(self, to: int, method: str, *args: Any, ask: bool = False) -> Any:
        handle = self.peers[to % len(self.peers)]
        number = Numbers.fresh()
        self.sent.setdefault(handle._cutline_name, []).append(number)
        call = getattr(handle, method)
        if ask:
            return call.remote(self.name, number, *args)
        call.tell(self.name, number, *args)
        return None

    def _hear(self, sender: str, number: int) -> None:
        self.got.setdefault(sender, []).append(number)
        if self.term and sum(map(len, self.got.values())) == self.term:
            cutline.leave()
        if self.ballast:
            self.ballast[self._draw(len(self.ballast))] ^= 1

    # -- what the program asks for ---------------------------------------------------------

    def start(self, number: int, activity: str, amount: int) -> int:
        """An input of the program: so many of something."""
        self.inputs.append(number)
        to = self._draw(len(self.peers))
        if activity == "token":
            for _ in range(1 + amount % 3):
                self._send(self._draw(len(self.peers)), "token", amount)
        elif activity == "transfer":
            self.balance -= amount
            self._send(to, "transfer", amount)
        elif activity == "stage":
            for k in range(amount):
                self._send(1, "stage", k)
        elif activity == "flood":
            for peer in range(len(self.peers)):
                self._send(peer, "flood")
        elif activity == "child":
            if number % 2:
                self._bear(f"c{number}", amount)
            else:
                self._bear_again(f"c{number}", f"{self.name}'s own")
        elif activity == "echo":
            ref = self._send(to, "echo", number, ask=True)
            ref.then(self.on_echo, number)
        return number

    def meet(self, peer: Handle) -> None:
        """Somebody new."""
        if all(known != peer for known in self.peers):
            self.peers = [*self.peers, peer]

    def _bear(self, name: str, amount: int) -> None:
        """A child, which is spoken to before it is up, and may leave soon."""
        child = cutline.spawn(name, Node, name, self.peers, 0, 0, self._draw(6))
        self.children = [*self.children, child][-3:]
        for _ in range(amount):
            self._tell_child(child)

    def _bear_again(self, booked: str, name: str) -> None:
        """A child under a name that another one may have, or have had: it is asked first."""
        child = cutline.spawn(name, Node, booked, self.peers, 0, 0, 1 + self._draw(4), name)
        child.booked.remote().then(self.on_child, booked, child, error=self.on_no_child)

    def booked(self) -> str:
        """Its name in the books."""
        return self.name

    def on_child(self, found: str, booked: str, child: Handle) -> None:
        """The child is up, or another one has its name."""
        if found == booked:
            self.children = [*self.children, child][-3:]
            for _ in range(3):
                self._tell_child(child)

    def on_no_child(self, error: Exception, booked: str, child: Handle) -> None:
        """The name was taken, or the child has left."""
        assert isinstance(error, (DuplicateName, ParticipantLeft, UnknownParticipant)), error

    def _tell_child(self, child: Handle) -> None:
        number = Numbers.fresh()
        self.sent.setdefault(child._cutline_name, []).append(number)
        child.token.tell(self.name, number, 2)

    # -- activities ------------------------------------------------------------------------

    def token(self, sender: str, number: int, ttl: int) -> None:
        """Goes on, sometimes as two."""
        self._hear(sender, number)
        if self.is_child:
            # Somebody speaks to one whom it has perhaps not heard of otherwise.
            peer = self.peers[self._draw(len(self.peers))]
            peer.quote.remote(number).then(self.on_quote, number)
        if self.children and not self._draw(4):
            self._tell_child(self.children[self._draw(len(self.children))])
        if ttl > 0:
            for _ in range(1 + (self._draw(8) == 0)):
                self._send(self._draw(len(self.peers)), "token", ttl - 1)

    def transfer(self, sender: str, number: int, amount: int) -> None:
        """Money comes in; some of it goes on."""
        self._hear(sender, number)
        self.balance += amount
        if self._draw(3) and amount > 1:
            self.balance -= amount - 1
            self._send(self._draw(len(self.peers)), "transfer", amount - 1)

    def stage(self, sender: str, number: int, k: int) -> None:
        """A pipeline: the first node feeds the second, that one the third, and so on to the last."""
        self._hear(sender, number)
        self.line.append(k)
        names = [peer._cutline_name for peer in self.peers]
        here = names.index(self.name)
        if 0 < here < len(names) - 1:
            self._send(here + 1, "stage", k)

    def flood(self, sender: str, number: int) -> None:
        """One to all, all back to one."""
        self._hear(sender, number)
        if sender != self.name and self._draw(2):
            back = [peer._cutline_name for peer in self.peers].index(sender)
            self._send(back, "token", 0)

    def echo(self, sender: str, number: int, question: int) -> int:
        """Answers a question."""
        self._hear(sender, number)
        return question

    def on_echo(self, answer: int, question: int) -> None:
        """The answer came."""
        assert answer == question
        self.heard.append(question)

    def on_quote(self, answer: int, question: int) -> None:
        """The answer came."""
        assert answer == question
        self.quotes.append(question)

    # -- straight-line handlers ------------------------------------------------------------

    async def shop(self, number: int, hops: int) -> int:
        """Asks all peers at once, then some one after the other; its own state changes at the end."""
        me = self.name
        others = [peer for peer in self.first if peer._cutline_name != me]
        quotes = await asyncio.gather(*[peer.quote.remote(number) for peer in others])
        bought = 0
        for hop in range(hops):
            best = others[(number + hop) % len(others)]
            bought += await best.buy.remote(number * 100 + hop)
        self.done.append(number)
        assert quotes == [number] * len(others) and bought == hops
        return number

    def quote(self, number: int) -> int:
        """A read."""
        return number

    def buy(self, order: int) -> int:
        """Something that must happen once."""
        self.served.append(order)
        return 1

    # -- handlers that fail ----------------------------------------------------------------

    def flaky(self, number: int) -> None:
        """Raises the first time; with on_error="retry" the system goes back, and it succeeds."""
        if (self.name, number) not in Numbers.flaky:
            Numbers.flaky.add((self.name, number))
            self.balance += 1_000_000
            raise ValueError(f"the first try of {number}")
        self.inputs.append(number)

    def refuse(self, number: int) -> None:
        """An exception is an answer."""
        raise LookupError(str(number))
