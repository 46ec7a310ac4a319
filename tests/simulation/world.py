"""One seed decides everything: the clock, what happens when, and what is drawn by lot.

A `World` is a heap of moments. Whoever simulates something (a network, a disk, a process) asks it for a
moment and for lots; nothing else in a schedule may look at a clock or draw. What happens is counted by
situation, written to a trace on request, and folded into a digest, so that two runs of a seed can be compared
and two schedules told apart.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ("Violation", "World")

START = 1000.0
# Moments after which a schedule has lost its way: something goes round without end.
MOST_MOMENTS = 150_000


class Violation(Exception):
    """The schedule showed something that must never be."""


class World:
    """See the module's head. Times in virtual seconds."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = START
        self.hits: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._moments = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._write = trace

    def clock(self) -> float:
        """The time, for whoever is given a clock."""
        return self.now

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Something happens in `delay` seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + max(0.0, delay), self._count, what))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Lets time pass; whether `done` became true before `until`."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, what = heapq.heappop(self._heap)
            self._moments += 1
            if self._moments > MOST_MOMENTS:
                raise Violation(f"{MOST_MOMENTS} moments and no end")
            what()
            if done():
                return True
        self.now = max(self.now, until)
        return done()

    def note(self, what: str, *facts: object) -> None:
        """A line of the trace."""
        line = f"{self.now - START:9.4f} {what} {' '.join(map(str, facts))}"
        self._digest.update(line.encode())
        if self._write is not None:
            self._write(line)

    @property
    def traced(self) -> bool:
        """Whether anybody reads the trace."""
        return self._write is not None

    def detail(self, line: str) -> None:
        """A line for who reads the trace; too many of them to be part of its digest."""
        if self._write is not None:
            self._write(f"{self.now - START:9.4f}   {line}")

    def fault(self, kind: str, *facts: object) -> None:
        """A fault happens now."""
        self.faults[kind] += 1
        self.note(f"! {kind}", *facts)

    @property
    def digest(self) -> str:
        """Of the trace so far."""
        return self._digest.hexdigest()

    def chance(self, probability: float) -> bool:
        """Drawn by lot."""
        return self.rng.random() < probability

    def span(self, low: float, high: float) -> float:
        """Seconds between two bounds, short ones as likely as long ones."""
        return float(low * (high / low) ** self.rng.random())

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Names that are drawn at random (of packs, of lineages, of launches) come from the seed as well."""
        real, inner = os.urandom, vars(random)["_urandom"]
        draw = random.Random(self.seed ^ 0x5EED).randbytes
        os.urandom = draw
        vars(random)["_urandom"] = draw
        try:
            yield
        finally:
            os.urandom = real
            vars(random)["_urandom"] = inner
