"""The stall of a capture with a Map of 1,000,000 entries, 1,000 of them changed, against `pickle.dumps`.

The stall is that of the whole capture, as the participant's thread has it: pickling what changed included.
The baseline pickles the dict with the same entries. Both sides of a round follow each other; changed keys are
drawn at random. The second row is the first capture after the pickle, which finds nothing in the caches. The
third one has tuples as values, the last one dicts, which each capture pickles with the attributes.
"""

from __future__ import annotations

import gc
import pickle
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from bench.row import Row
from cutline.participant.capture import Capturer
from cutline.participant.map import Map

__all__ = ("measure",)

SPELL = 7


class _Agent:
    def __init__(self, seen: Map[str, Any]) -> None:
        self.name = "agent"
        self.seen = seen


class _Captured:
    """Captures of one agent, each committed at once."""

    def __init__(self, agent: _Agent) -> None:
        self.agent, self.number = agent, 1
        self.capturer = Capturer("bench")
        self.capturer.capture(agent, number=1, against=None)
        self.capturer.committed(1)

    def stall(self) -> float:
        before, self.number = self.number, self.number + 1
        captured = self.capturer.capture(self.agent, number=self.number, against=before)
        self.capturer.committed(self.number)
        return captured.stall


def _pickled(entries: Any) -> float:
    began = time.perf_counter()
    pickle.dumps(entries, 5)
    return time.perf_counter() - began


def _row(name: str, samples: list[float], pickles: list[float], at_least: float, note: str) -> Row:
    return Row(
        name=name,
        unit="s",
        samples_ours=samples,
        samples_baseline=pickles,
        ratio="baseline/ours",
        at_least=at_least,
        note=note,
    )


def _flat(
    name: str, make: Callable[[int], Any], what: str, entries: int, changed: int, rounds: int
) -> tuple[Row, Row]:
    """The row for one kind of values, and that of the first captures after the pickle."""
    chance = random.Random(1)
    keys = [f"key {number}" for number in range(entries)]
    plain = {key: make(number) for number, key in enumerate(keys)}
    taking = _Captured(_Agent(Map(plain)))
    stalls, pickles, cold = [], [], []
    gc.collect()
    for turn in range(rounds):
        pickles.append(_pickled(plain))
        samples = []
        for step in range(SPELL):
            for key in chance.sample(keys, changed):
                taking.agent.seen[key] = make(-turn - step)
            samples.append(taking.stall())
        stalls.append(median(samples))
        cold.append(samples[0])
    note = (
        f"{entries:,} entries of text to {what}, {changed:,} changed; the whole capture, median of {SPELL} "
        f"in a row; the first one after the pickle, out of no cache, {median(cold) * 1000:.2f} ms"
    )
    first = "the first capture after the pickle, which finds nothing in the caches"
    return _row(name, stalls, pickles, 2000.0, note), _row("map_stall_cold", cold, pickles, 2000.0, first)


def _nested(entries: int, changed: int, rounds: int) -> Row:
    chance = random.Random(2)
    keys = [f"key {number}" for number in range(entries)]
    plain = {key: {"count": number, "name": key} for number, key in enumerate(keys)}
    taking = _Captured(_Agent(Map(plain)))
    stalls, pickles = [], []
    for turn in range(rounds):
        pickles.append(_pickled(plain))
        for key in chance.sample(keys, changed):
            taking.agent.seen[key]["count"] = -turn
        stalls.append(taking.stall())
    note = f"{entries:,} dicts as values, which each capture has to look at; {changed:,} changed"
    return _row("map_of_dicts_stall", stalls, pickles, 0.5, note)


def measure(*, entries: int = 1_000_000, changed: int = 1000, rounds: int = 15) -> list[Row]:
    """The rows; see the module's head."""
    tuples = _flat(
        "map_stall_tuples", lambda number: ("seen", number), "(text, int)", entries, changed, rounds
    )
    return [
        *_flat("map_stall_vs_pickle", lambda number: number, "int", entries, changed, rounds),
        tuples[0],
        _nested(entries // 10, changed // 10, rounds),
    ]
