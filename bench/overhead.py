"""Both sides of the overhead matrix: the token game on participants in Ray actors, and on plain Ray actors.

A checkpoint of the plain side is what Ray's documentation has: each actor saves its own state. The states of
actors that talk to each other fit together only if nothing is on its way, so all hold what comes until every
token is held, save, and go on. That pause is the price of consistency without markers.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ray

import cutline
from bench.token_game import PAGE, Node, Topology, tokens_of

__all__ = ("Cell", "Ours", "Plain", "Side")

_PATIENCE = 120.0
_SYSTEM = "tokens"
# Seconds of play before a spell counts.
_WARM = 0.1

# What `Node.totals` says.
_Totals = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the matrix. ``payload`` in bytes; ``mebibytes``: the state of all actors together."""

    topology: Topology
    actors: int
    payload: int
    mebibytes: int

    @property
    def name(self) -> str:
        """As it stands in the rows' names."""
        size = f"{self.payload // 1024}KB" if self.payload >= 1024 else f"{self.payload}B"
        state = f"{self.mebibytes // 1024}GB" if self.mebibytes >= 1024 else f"{self.mebibytes}MB"
        return f"{self.topology}_{self.actors}_{size}_{state}"

    @property
    def pages(self) -> int:
        """Pages of each actor's state."""
        return (self.mebibytes << 20) // PAGE // self.actors

    @property
    def tokens(self) -> int:
        """Under way at every moment."""
        return sum(tokens_of(self.topology, self.actors))


class Side(Protocol):
    """What the matrix measures. Its actors stand still between spells: the other side has the machine then.

    ``taken``: the checkpoints of the newest spell.
    """

    cell: Cell
    taken: int

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all actors."""

    def rate(self, per_second: float, seconds: float) -> float:
        """Tokens handled a second while so many checkpoints a second are taken, as many as can be."""

    def check(self) -> None:
        """Ends the game, and raises if a token was lost or doubled, or a checkpoint is not consistent."""

    def close(self) -> None:
        """Ends the actors."""


def _checkpointing(checkpoint: Callable[[], object], per_second: float, seconds: float) -> int:
    """Takes checkpoints for so long, the first in the middle of the first interval; says how many."""
    began = time.monotonic()
    if not per_second:
        time.sleep(seconds)
        return 0
    taken = 0
    while (due := began + (taken + 0.5) / per_second) < began + seconds:
        if due > time.monotonic():
            time.sleep(due - time.monotonic())
        elif time.monotonic() >= began + seconds:
            break
        checkpoint()
        taken += 1
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return taken


def _rate(before: list[tuple[float, int]], after: list[tuple[float, int]]) -> float:
    """Each actor's tokens by its own clock, added up."""
    pairs = zip(before, after, strict=True)
    return sum((count - earlier) / (at - since) for (since, earlier), (at, count) in pairs)


def _balance(totals: list[_Totals], under_way: int, tokens: int, what: str) -> None:
    """Raises unless what was sent is what was handled and what is under way, and no token is missing."""
    sent, handled, held, _bytes_sent, _bytes_taken = (sum(column) for column in zip(*totals, strict=True))
    if sent != handled + under_way or held + under_way != tokens:
        raise AssertionError(
            f"{what}: {sent} tokens sent, {handled} handled, {under_way} under way, {held} held; "
            f"{tokens} are in the game"
        )


def _still(side: Side) -> list[_Totals]:
    """Lets all hold what comes, and waits until every token is held."""
    deadline = time.monotonic() + _PATIENCE
    side.ask("pause")
    while True:
        totals: list[_Totals] = side.ask("totals")
        if sum(each[2] for each in totals) == side.cell.tokens:
            return totals
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not all of {side.cell.tokens} tokens are held after {_PATIENCE:g} s: {totals}"
            )
        time.sleep(0.001)


def _spell(side: Side, checkpoint: Callable[[], object], per_second: float, seconds: float) -> float:
    """The rate of a spell between two stands."""
    side.ask("resume")
    time.sleep(_WARM)
    before = side.ask("count")
    side.taken = _checkpointing(checkpoint, per_second, seconds)
    after = side.ask("count")
    _still(side)
    return _rate(before, after)


class Ours:
    """The game on participants."""

    def __init__(self, cell: Cell, runtime: str = "ray") -> None:
        self.cell, self.taken = cell, 0
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cutline-bench-"))
            self._folder = folder
            self.system = cutline.start(folder, name=_SYSTEM, interval=None, quiet=True, runtime=runtime)
            stack.callback(self.system.stop)
            self.nodes: list[Any] = [
                self.system.spawn(f"n{place}", Node, place, cell.topology, cell.payload, cell.pages)
                for place in range(cell.actors)
            ]
            self.ask("connect", self.nodes, "tell")
            for node, tokens in zip(self.nodes, tokens_of(cell.topology, cell.actors), strict=True):
                node.deal.remote(tokens).result(timeout=_PATIENCE)
            for _ in range(2):
                # The first ones write everything.
                self.system.checkpoint()
            self._stack = stack.pop_all()

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        refs = [getattr(node, method).options(durable=False).remote(*arguments) for node in self.nodes]
        return [ref.result(timeout=_PATIENCE) for ref in refs]

    def rate(self, per_second: float, seconds: float) -> float:
        """See `Side`."""
        return _spell(self, self.system.checkpoint, per_second, seconds)

    def check(self) -> None:
        """See `Side`; what a checkpoint in the middle of the game holds is counted too."""
        self.ask("resume")
        point = self.system.savepoint("counted")
        totals = _still(self)
        _balance(totals, 0, self.cell.tokens, "participants")
        if sum(each[3] for each in totals) != sum(each[4] for each in totals):
            raise AssertionError(f"bytes were lost or doubled: {totals}")
        cut = cutline.load(point, self._folder, name=_SYSTEM)
        nodes = [node for node in cut.values() if isinstance(node, Node)]
        under_way = sum(
            message.method == "take" for each in cut.participants.values() for message in each.pending
        )
        _balance([node.totals() for node in nodes], under_way, self.cell.tokens, "a checkpoint")

    def close(self) -> None:
        """See `Side`."""
        self._stack.close()


class Plain:
    """The game on plain Ray actors that save their own state while all stand still."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.taken = cell, 0
        self._folder = tempfile.TemporaryDirectory(prefix="cutline-bench-")
        actor: Any = ray.remote(Node)
        self.nodes = [
            actor.remote(place, cell.topology, cell.payload, cell.pages) for place in range(cell.actors)
        ]
        self.ask("connect", self.nodes, "remote")
        for node, tokens in zip(self.nodes, tokens_of(cell.topology, cell.actors), strict=True):
            ray.get(node.deal.remote(tokens), timeout=_PATIENCE)
        self._files = [str(Path(self._folder.name) / f"state-{place}") for place in range(cell.actors)]

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        refs = [getattr(node, method).remote(*arguments) for node in self.nodes]
        return list(ray.get(refs, timeout=_PATIENCE))

    def _checkpoint(self) -> None:
        _still(self)
        saving = [node.save.remote(file) for node, file in zip(self.nodes, self._files, strict=True)]
        ray.get(saving, timeout=_PATIENCE)
        # One more rename makes all of them the newest at once; that is not counted here.
        self.ask("resume")

    def rate(self, per_second: float, seconds: float) -> float:
        """See `Side`."""
        return _spell(self, self._checkpoint, per_second, seconds)

    def check(self) -> None:
        """See `Side`."""
        self.ask("resume")
        self._checkpoint()
        _balance(_still(self), 0, self.cell.tokens, "plain Ray")
        saved = []
        for file in self._files:
            state = pickle.loads(Path(file).read_bytes())
            saved.append((state["sent"], state["handled"], len(state["held"]), 0, 0))
        _balance(saved, 0, self.cell.tokens, "plain Ray's saved states")

    def close(self) -> None:
        """See `Side`."""
        for node in self.nodes:
            ray.kill(node)
        self._folder.cleanup()
