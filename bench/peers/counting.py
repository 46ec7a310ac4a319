"""The same counter by key with and without checkpoints: what ours keeps of its rate, and what a peer does.

Ours is a participant that is told of each event and counts it in a `Map`, and another that tells it. A round
measures every side without checkpoints, with one a second and with ten; a side's share is its rate with them
by its rate without, of the same round. The rates themselves are not compared: Flink counts in Java.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import cutline
from bench.limits import polled
from bench.peers.child import Child
from bench.peers.turns import Peers, in_turns
from bench.row import Missing, Row
from bench.sender_receiver import CHUNK, Receiver
from bench.trigger import Trigger, enough

__all__ = ("GROUP", "compared")

GROUP = "overhead"
# (end of the row's name, seconds between two checkpoints)
_INTERVALS = (("1s", 1.0), ("100ms", 0.1))
_CALIBRATE = 20_000


class Counter:
    """Counts events by their keys."""

    def __init__(self) -> None:
        self.expect(0)

    def expect(self, goal: int) -> None:
        """A new measurement begins."""
        self.counts: cutline.Map[str, int] = cutline.Map()
        self.left = goal
        self.ended = 0.0

    def add(self, key: str) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1
        self.left -= 1
        if not self.left:
            self.ended = Receiver.clock()

    def report(self) -> tuple[int, int, float]:
        """Keys, events counted, and when the last one that was expected came."""
        return len(self.counts), sum(self.counts.values()), self.ended


class Events:
    """Tells a counter of events, one message each."""

    def __init__(self, to: Any) -> None:
        self.to = to
        self.keys: list[str] = []
        self.began = 0.0

    def start(self, events: int, keys: int) -> None:
        """As many events, their keys one after the other."""
        self.keys = [f"key {number}" for number in range(keys)]
        self.began = Receiver.clock()
        self.pump(0, events)

    def pump(self, first: int, events: int) -> None:
        for number in range(first, min(first + CHUNK, events)):
            self.to.add.tell(self.keys[number % len(self.keys)])
        if first + CHUNK < events:
            cutline.me().pump.tell(first + CHUNK, events)

    def report(self) -> float:
        """When the measurement began."""
        return self.began


class _Ours:
    def __init__(self, folder: str) -> None:
        self.system = cutline.start(folder, name="counter", interval=None, quiet=True)
        self.counter: Any = self.system.spawn("counter", Counter)
        self.events: Any = self.system.spawn("events", Events, self.counter)
        # By the interval asked for: checkpoints that each measurement had, and its seconds.
        self.taken: dict[float, list[int]] = {}
        self.seconds: dict[float, list[float]] = {}

    @staticmethod
    def _ask(method: Any, *args: Any) -> Any:
        return method.options(durable=False).remote(*args).result(timeout=60)

    def rate(self, events: int, keys: int, interval: float) -> float:
        """Events a second, from the first that is told to the last that is counted."""
        self._ask(self.counter.expect, events)
        if interval:
            with Trigger(self.system, 1 / interval) as trigger:
                trigger.wanted.set()
                found, seconds = self._counted(events, keys, trigger.check)
            # With the one that was under way: its work was in the spell too.
            self.taken.setdefault(interval, []).append(trigger.taken)
            self.seconds.setdefault(interval, []).append(seconds)
        else:
            found, seconds = self._counted(events, keys, lambda: None)
        if found[:2] != (min(keys, events), events):
            raise AssertionError(f"ours counted {found[1]} of {events} events, {found[0]} keys")
        return events / seconds

    def _counted(self, events: int, keys: int, check: Callable[[], None]) -> tuple[Any, float]:
        """What the counter reports after the last event, and the seconds until then."""

        def report() -> Any:
            check()
            return self._ask(self.counter.report)

        self._ask(self.events.start, events, keys)
        found = polled(report, lambda found: found[2], f"our counter, of {events} events")
        return found, float(found[2] - self._ask(self.events.report))

    def checkpoints(self, interval: float) -> str:
        """How many there were, for a note.

        Raises:
            AssertionError: too few to show what they cost.
        """
        enough(self.taken[interval], self.seconds[interval], 1 / interval)
        a_second = sum(self.taken[interval]) / sum(self.seconds[interval])
        return f"ours took {a_second:.2g} checkpoints a second, {min(self.taken[interval])} or more in each"


def compared(
    name: str,
    against: str,
    opened: Callable[[], Child],
    *,
    clock: str,
    rounds: int,
    spell: float,
    keys: int,
) -> list[Row | Missing]:
    """The rows against one peer, whose process answers with events a second; ``clock``: from when until when.

    A spell is that of the rate without checkpoints; with them it takes longer.
    """
    clocks = f"our clock runs from the first event told to the last one counted, the peer's {clock}"
    names = {f"overhead_{end}_vs_{name}": name for end, _interval in _INTERVALS}
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, Peers() as peers:
        peer = peers.open(name, opened)
        if peer is None:
            return list(peers.rows(names))
        ours = _Ours(folder)
        peers.callback(ours.system.stop, checkpoint=False)
        measured: dict[str, Callable[[int, float], float]] = {
            "ours": lambda events, interval: ours.rate(events, keys, interval),
            name: lambda events, interval: float(
                peer.ask(events=events, keys=keys, interval=interval)["rate"]
            ),
        }
        sides: dict[str, Callable[[], float]] = {}
        for side, rate in measured.items():
            events = _as_many(lambda events, rate=rate: rate(events, 0.0), spell)  # type: ignore[misc]
            for end, interval in (("none", 0.0), *_INTERVALS):
                sides[f"{side} {end}"] = lambda rate=rate, events=events, interval=interval: rate(  # type: ignore[misc]
                    events, interval
                )
        samples = in_turns(rounds, sides, warm=0)
        taken = {interval: ours.checkpoints(interval) for _end, interval in _INTERVALS}
    return [
        Row(
            name=f"overhead_{end}_vs_{name}",
            unit="share of the rate without checkpoints",
            samples_ours=_shares(samples[f"ours {end}"], samples["ours none"]),
            samples_baseline=_shares(samples[f"{name} {end}"], samples[f"{name} none"]),
            at_least=1.0,
            against=against,
            group=GROUP,
            note=f"a counter of {keys:,} keys, about {spell:g} s each; each event counted once, checked; "
            f"{taken[interval]}; {clocks}",
        )
        for end, interval in _INTERVALS
    ]


def _as_many(rate: Callable[[int], float], spell: float) -> int:
    """Events that take about so many seconds; found by measuring more and more."""
    events = _CALIBRATE
    while True:
        seconds = events / rate(events)
        if seconds >= spell / 2:
            return int(events * spell / seconds)
        events = int(events * min(10.0, max(2.0, spell / seconds)))


def _shares(taken: list[float], free: list[float]) -> list[float]:
    return [rate / bare for rate, bare in zip(taken, free, strict=True)]
