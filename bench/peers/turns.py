"""Ours and its peers, measured in turns in one run, and the rows that come of it.

A peer that ends with an error costs its own rows and no others: it is left out from then on, and its rows
are errors with the reason. An error on our side, or of what is compared with all peers, ends the module.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TypeVar

from bench.peers.child import Absent
from bench.reasons import first_line, reason_of
from bench.row import Failed, Missing

__all__ = ("PeerFailed", "Peers", "in_turns")

T = TypeVar("T")


class PeerFailed(Exception):
    """What a peer was asked for ended with an error, now or before; which one `Peers.failed` says."""


class Peers(ExitStack):
    """Peers that are opened for a run and closed after it.

    Who cannot be had is in ``missing``, by name, with the reason; who ended with an error in ``failed``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def open(self, name: str, peer: Callable[[], T]) -> T | None:
        """The peer, or None if it is absent or does not come up."""
        try:
            found = peer()
        except (Absent, ImportError) as error:
            self.missing[name] = first_line(error)
            return None
        except Exception as error:
            self.fail(name, error)
            return None
        close = getattr(found, "close", None)
        if close is not None:
            self.callback(self.attempt, name, close)
        return found

    def fail(self, name: str, error: Exception) -> None:
        """It has ended with an error; the first one counts."""
        traceback.print_exception(error)
        self.failed.setdefault(name, reason_of(error))

    def side(self, name: str, take: Callable[[], T]) -> Callable[[], T]:
        """What takes a sample of a peer: any error of it is `PeerFailed`, and it is not called after one."""

        def taken() -> T:
            if name in self.failed:
                raise PeerFailed(name)
            try:
                return take()
            except Exception as error:
                self.fail(name, error)
                raise PeerFailed(name) from error

        return taken

    def attempt(self, name: str, ask: Callable[[], T]) -> T | None:
        """What a peer answers; None if that ends with an error, which is in ``failed`` then."""
        try:
            return ask()
        except Exception as error:
            self.fail(name, error)
            return None

    def rows(self, names: Mapping[str, str]) -> list[Missing]:
        """What stands in the place of the rows of those that are absent or failed. ``names``: row by peer."""
        return [
            *(Missing(row, self.missing[peer]) for row, peer in names.items() if peer in self.missing),
            *(Failed(row, self.failed[peer]) for row, peer in names.items() if peer in self.failed),
        ]


def in_turns(rounds: int, sides: Mapping[str, Callable[[], T]], *, warm: int = 1) -> dict[str, list[T]]:
    """Samples of all sides, one of each a round, after ``warm`` rounds that do not count.

    Each round begins with the next side and goes the other way round than the one before, so that nobody
    always comes right after the same other one's work. A side whose peer fails has no samples.
    """
    samples: dict[str, list[T]] = {name: [] for name in sides}
    order = list(sides)
    for number in range(-warm, rounds):
        step = 1 if number % 2 == 0 else -1
        for place in range(len(order)):
            name = order[(number + step * place) % len(order)]
            if name not in samples:
                continue
            gc.collect()
            try:
                sample = sides[name]()
            except PeerFailed:
                del samples[name]
                continue
            if number >= 0:
                samples[name].append(sample)
    return samples
