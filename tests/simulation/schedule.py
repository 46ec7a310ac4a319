"""One schedule: a system under faults that one seed has drawn, then calm, then the accounts.

The faults come in a phase of their own. After it everything is mended, the system must come to rest by
itself, the next checkpoint must commit, and what was promised is compared with what was done; then the power
is cut once more, sometimes, and all of it must still be so.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from .network import CALM
from .program import ACTIVITIES
from .town import Town, describe
from .world import START, Violation, World

__all__ = ("Outcome", "run_schedule")

PHASE = 8.0
REST = 150.0
MEMORY = Path("/dev/shm")


@dataclass
class Outcome:
    """What came of a schedule. `in_flight`: messages in the channels of a cut, the mean of all its cuts."""

    seed: int
    violation: str = ""
    digest: str = ""
    cuts: int = 0
    recoveries: int = 0
    in_flight: float = 0.0
    hits: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)


class _Faults:
    """What befalls a town while the phase lasts."""

    def __init__(self, town: Town, harsh: bool) -> None:
        self.town = town
        self.world = town.world
        rng = town.world.rng
        kinds: list[Callable[[], None]] = [
            self.crash_participant,
            self.pause_participant,
            self.give_up_participant,
            town.kill_coordinator,
            self.doom_coordinator,
            self.pause_coordinator,
            self.sever,
            self.partition,
            self.cut_off,
            self.trouble_disk,
            self.trouble_catalog,
            town.cut_power,
            town.run_twice,
        ]
        weights = [4, 3, 2, 2, 3, 1, 4, 2, 2, 2, 2, 1, 1]
        # Some schedules see only a few kinds, so that each kind is also met alone.
        self.kinds = kinds
        self.weights = [w if rng.random() < (0.8 if harsh else 0.4) else 0 for w in weights]
        self.weights[0] = max(self.weights[0], 1)
        self.every = rng.choice((0.3, 0.7, 1.5))

    def go(self) -> None:
        """One fault, and another one later, until the phase ends."""
        if self.world.now > START + PHASE:
            return
        self.world.rng.choices(self.kinds, self.weights)[0]()
        self.world.after(self.world.span(self.every / 4, self.every * 3), self.go)

    def _someone(self) -> Any:
        # One that dies at its birth is an error that the program hears of, and what was sent to it is lost.
        people = [
            p
            for p in self.town.participants()
            if p.runner.phase != "starting" and not (p.spec["mode"] == "born" and p.runner.phase == "born")
        ]
        return self.world.rng.choice(people) if people else None

    def crash_participant(self) -> None:
        """SIGKILL."""
        process = self._someone()
        if process is not None:
            self.world.fault("participant killed", process.name, process.runner.phase)
            process.end("ended by SIGKILL")

    def pause_participant(self) -> None:
        """SIGSTOP, SIGCONT."""
        process = self._someone()
        if process is not None:
            self.world.fault("participant paused", process.name)
            process.pause(self.world.span(0.01, 3.0))

    def give_up_participant(self) -> None:
        """Declared dead, and not dead."""
        process = self._someone()
        if process is not None:
            self.town.give_up(process)

    def doom_coordinator(self) -> None:
        """It will die at a certain line."""
        place = self.world.rng.choice(("after begun", "before the row", "after the row", "after the epoch"))
        self.town.dooms[place] = self.world.rng.choice((0.3, 1.0))
        self.world.after(self.world.span(0.3, 3.0), lambda: self._spare(place))

    def _spare(self, place: str) -> None:
        self.town.dooms.pop(place, None)

    def pause_coordinator(self) -> None:
        """Longer than its lease, sometimes; then another one takes over, and two of them are there."""
        process = self.town.coordinator
        if process is None or process.coordinator is None:
            return
        if self.world.chance(0.5):
            self.world.fault("coordinator paused")
            process.pause(self.world.span(0.05, 4.0))
            return
        self.world.fault("coordinator paused beyond its lease")
        process.pause(self.world.span(11.0, 18.0))
        if self.world.chance(0.7):
            for link in sorted(process.transport.links, key=repr):
                link.sever()
        self.world.after(10.5, lambda: self._second(process))

    def _second(self, process: Any) -> None:
        if process is self.town.coordinator:
            self.world.hits["two coordinators at once"] += 1
            self.town.replace()

    def sever(self) -> None:
        """A link breaks."""
        people = self.town.processes()
        if people:
            process = self.world.rng.choice(people)
            self.world.fault("link broken", process.name)
            self.town.network.sever(process.transport)

    def partition(self) -> None:
        """Some cannot reach the others for a while."""
        people = [p.transport.name for p in self.town.processes()]
        some = frozenset(name for name in people if self.world.chance(0.4))
        if some:
            self.world.fault("partition", *sorted(some))
            seconds = self.world.span(0.05, 4.0)
            self.town.network.part(some, seconds)
            self.world.after(seconds, self.town.network.heal)

    def cut_off(self) -> None:
        """The coordinator and a participant cannot reach each other; all others can reach both.

        If nothing is under way then, it may be cut off from everybody, so that it does not hear of a
        checkpoint that begins, but from somebody who is born into it; or one may leave, of which it does not
        hear, and another one take the name.
        """
        process, coordinator = self._someone(), self.town.coordinator
        if process is None or coordinator is None or coordinator.coordinator is None:
            return
        world, program = self.world, self.town.program
        world.fault("cut off from the coordinator", process.name)
        pair = frozenset((process.transport.name, coordinator.name))
        made = coordinator.coordinator
        if made.commit.undecided or not made.flowing or world.chance(0.2):
            self.town.network.separate(pair, world.span(0.3, 4.0))
            return
        target = world.rng.choice(program.names)
        if world.chance(0.5):
            seconds = world.span(1.0, 4.0)
            for other in self.town.processes():
                if other is not process:
                    self.town.network.separate(
                        frozenset((process.transport.name, other.transport.name)), seconds
                    )
            world.after(0.05, program.want_checkpoint)
            world.after(world.span(0.06, 0.2), lambda: program.bear(target, 1))
            return
        program.bear(target, 0)
        world.after(0.3, lambda: self.town.network.separate(pair, world.span(1.0, 4.0)))
        for k in range(1, 4):
            world.after(0.1 + 0.3 * k, lambda: program.bear(target, 0))

    def trouble_disk(self) -> None:
        """Writes fail now and then."""
        self.world.fault("disk trouble")
        self.town.media.trouble = self.world.rng.choice((0.02, 0.3))
        self.world.after(self.world.span(0.2, 3.0), lambda: setattr(self.town.media, "trouble", 0.0))

    def trouble_catalog(self) -> None:
        """Transactions fail now and then, before or after they count."""
        self.world.fault("catalog trouble")
        self.town.media.catalog_trouble = self.world.rng.choice((0.1, 0.5))
        self.world.after(self.world.span(0.2, 3.0), lambda: setattr(self.town.media, "catalog_trouble", 0.0))


def run_schedule(
    seed: int,
    trace: Callable[[str], None] | None = None,
    *,
    faults: bool = True,
    phase: float = PHASE,
    happy: bool = False,
) -> Outcome:
    """Runs one schedule to its end. Every process of it lives in this one.

    `happy`: as a test would be that thinks of nothing bad: network and disk are quiet, nobody is lost or born
    late, a checkpoint when all is at rest, and only the outcome is looked at.
    """
    outcome = Outcome(seed)
    world = World(seed, trace)
    folder = Path(tempfile.mkdtemp(prefix="cutline-sim-", dir=MEMORY if MEMORY.is_dir() else None))
    log = logging.getLogger("cutline")
    level, log.level = log.level, logging.CRITICAL
    town = None
    try:
        with world.randomness():
            town = Town(world, folder)
            if happy:
                _be_happy(town)
            _run(town, faults and not happy, phase)
    except Violation as violation:
        outcome.violation = str(violation)
    except Exception:
        # Nothing is expected to raise here: whatever did is the product's bug, or the simulator's.
        outcome.violation = traceback.format_exc()
    finally:
        log.level = level
        if town is not None:
            for process in town.processes():
                process.crash()
            outcome.cuts = len(town.checker.committed)
            outcome.recoveries = len(town.checker.resumed)
            outcome.in_flight = fmean(town.checker.in_flight or [0])
        shutil.rmtree(folder, ignore_errors=True)
    outcome.digest = world.digest
    outcome.hits, outcome.faults = world.hits, world.faults
    return outcome


def _be_happy(town: Town) -> None:
    town.network.manners = CALM
    town.settings["interval"] = None
    town.slow_writes = 0.0
    town.program.haste, town.program.late, town.program.most_children = 0.0, [], 0
    town.program.weights[ACTIVITIES.index("flaky")] = 0
    town.checker.watching = False


def _run(town: Town, faults: bool, phase: float) -> None:
    world = town.world
    town.appoint({})
    world.after(0.1, town.program.go)
    if faults:
        befalling = _Faults(town, world.chance(0.5))
        world.after(world.span(0.8, 2.0), befalling.go)
    world.run(START + phase)
    town.program.stopped = True
    town.network.manners = CALM
    town.media.trouble = town.media.catalog_trouble = 0.0
    # A disk that goes on being slow can let any number of checkpoints time out.
    town.slow_writes = 0.0
    town.dooms.clear()
    rest(town)
    account(town)
    if faults and world.chance(0.3):
        town.cut_power()
        rest(town)
        account(town)


def rest(town: Town) -> None:
    """Time passes until nothing is under way."""
    world = town.world
    until = world.now + REST
    while world.now < until:
        world.run(world.now + 0.25)
        if town.quiet():
            return
    raise Violation(f"the system does not come to rest:\n{describe(town)}")


def account(town: Town) -> None:
    """The next checkpoint commits; what was promised was done; what is listed is whole."""
    world = town.world
    for _ in range(3):
        done = town.program.checkpoint()
        if not world.run(world.now + 30.0, done.done):
            raise Violation(f"a checkpoint after the faults does not end:\n{describe(town)}")
        if done.exception() is None:
            break
    else:
        raise Violation(f"no checkpoint after the faults commits: {done.exception()}")
    rest(town)
    town.checker.settled_books()
    if not town.checker.readable():
        raise Violation("there is no cut at all")
