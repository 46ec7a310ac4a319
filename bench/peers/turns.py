"""Ours and its peers, measured in turns in one run, and the rows that come of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TypeVar

from bench.peers.child import Absent
from bench.row import Missing

__all__ = ("Peers", "in_turns")

T = TypeVar("T")


class Peers(ExitStack):
    """Peers that are opened for a run and closed after it; who cannot be had is in ``missing``, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, str] = {}

    def open(self, name: str, peer: Callable[[], T]) -> T | None:
        """The peer, or None if it is absent."""
        try:
            found = peer()
        except (Absent, ImportError) as error:
            self.missing[name] = str(error)
            return None
        close = getattr(found, "close", None)
        if close is not None:
            self.callback(close)
        return found

    def rows(self, names: Mapping[str, str]) -> list[Missing]:
        """What stands in the place of the rows of those that are absent. ``names``: row by peer."""
        return [Missing(row, self.missing[peer]) for row, peer in names.items() if peer in self.missing]


def in_turns(rounds: int, sides: Mapping[str, Callable[[], T]], *, warm: int = 1) -> dict[str, list[T]]:
    """Samples of all sides, one of each a round, after ``warm`` rounds that do not count.

    Each round begins with the next side and goes the other way round than the one before, so that nobody
    always comes right after the same other one's work.
    """
    samples: dict[str, list[T]] = {name: [] for name in sides}
    order = list(sides)
    for number in range(-warm, rounds):
        step = 1 if number % 2 == 0 else -1
        for place in range(len(order)):
            name = order[(number + step * place) % len(order)]
            gc.collect()
            sample = sides[name]()
            if number >= 0:
                samples[name].append(sample)
    return samples
