"""``python -m tests.simulation.run --runs N``: many schedules, what they met, and whether anything was wrong.

Exit status 0 only if no schedule showed a violation, every situation came up as often as it must, and nearly
all traces differ: schedules that all look alike would prove little.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

from .schedule import Outcome, run_schedule

__all__ = ("SITUATIONS", "Summary", "main", "run_many")

# How often a thousand schedules must meet each situation.
SITUATIONS = {
    "second program refused": 50,
    "capture by initiate": 2000,
    "capture by marker": 2000,
    "capture by frame": 100,
    "capture with a mailbox": 2000,
    "capture with suspended calls": 500,
    "marker before data": 2000,
    "released withheld": 500,
    "link lost with frames under way": 500,
    "packet of another epoch or run refused": 20,
    "join in a snapshot": 50,
    "leave in a snapshot": 20,
    "overlap with the older aborted": 100,
    "chain folded": 500,
    "chain written whole": 500,
    "cut with messages in flight": 2000,
    "zombie coordinator refused": 10,
    "two coordinators at once": 10,
    "coordinator dead idle": 100,
    "coordinator dead with a checkpoint under way": 50,
    "coordinator dead after begun": 30,
    "coordinator dead before the row": 20,
    "coordinator dead after the row": 20,
    "coordinator dead after the epoch": 15,
    "coordinator dead restoring": 5,
    "coordinator dead gathering": 5,
    "log cut": 200,
    "input again under its key": 1000,
}
FEWEST_CUTS, FEWEST_RECOVERIES, FEWEST_IN_FLIGHT = 3, 1, 1
DISTINCT = 0.99
MOST_TEXT = 1500


class Summary:
    """What many schedules came to."""

    def __init__(self) -> None:
        self.violations: list[Outcome] = []
        self.cuts: list[int] = []
        self.recoveries: list[int] = []
        self.in_flight: list[float] = []
        self.hits: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.digests: set[str] = set()

    def add(self, outcome: Outcome) -> None:
        """One more."""
        if outcome.violation:
            self.violations.append(outcome)
        self.cuts.append(outcome.cuts)
        self.recoveries.append(outcome.recoveries)
        self.in_flight.append(outcome.in_flight)
        self.hits += outcome.hits
        self.faults += outcome.faults
        self.digests.add(outcome.digest)

    def wanting(self) -> list[str]:
        """Why these schedules prove too little; empty if they do not."""
        count = len(self.cuts)
        found = [
            f"{name}: {self.hits[name]} times, at least {least * count // 1000} are wanted"
            for name, least in SITUATIONS.items()
            if self.hits[name] < least * count // 1000
        ]
        for what, values, least in (
            ("cuts committed", self.cuts, FEWEST_CUTS),
            ("recoveries", self.recoveries, FEWEST_RECOVERIES),
            ("messages in flight in a cut", self.in_flight, FEWEST_IN_FLIGHT),
        ):
            if median(values) < least:
                found.append(f"{what}: {median(values)} in the middle schedule, at least {least} are wanted")
        if len(self.digests) < DISTINCT * count:
            found.append(f"only {len(self.digests)} of {count} traces differ")
        return found

    def lines(self, seconds: float) -> Iterator[str]:
        """For people."""
        count = len(self.cuts)
        yield f"{count / seconds:.1f} schedules a second"
        yield "faults: " + ", ".join(f"{name} {times}" for name, times in self.faults.most_common())
        yield "situations: " + ", ".join(f"{name} {self.hits[name]}" for name in SITUATIONS)
        yield (
            f"in the middle schedule: {median(self.cuts):g} cuts committed, {median(self.recoveries):g} "
            f"recoveries, {median(self.in_flight):.1f} messages in flight in a cut on average"
        )
        yield f"{len(self.digests)} of {count} traces differ"


def run_many(first: int, runs: int, workers: int) -> Iterator[Outcome]:
    """Schedules `first` ... `first + runs - 1`, in any order."""
    if workers == 1:
        yield from map(run_schedule, range(first, first + runs))
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(run_schedule, range(first, first + runs), chunksize=4)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--runs", type=int, default=1500)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    summary = Summary()
    began = time.monotonic()
    for outcome in run_many(chosen.first, chosen.runs, chosen.workers):
        summary.add(outcome)
        if outcome.violation:
            print(f"seed {outcome.seed}: {outcome.violation[-MOST_TEXT:]}")
            print(f"again: cutline simulate --seed {outcome.seed} --trace", flush=True)
        if len(summary.cuts) % 1000 == 0:
            print(f"... {len(summary.cuts)} of {chosen.runs}", file=sys.stderr, flush=True)
    for line in summary.lines(time.monotonic() - began):
        print(line)
    wanting = summary.wanting()
    for line in wanting:
        print(f"too little: {line}")
    print(f"{len(summary.cuts)} schedules, {len(summary.violations)} violations")
    return 1 if summary.violations or wanting else 0


if __name__ == "__main__":
    sys.exit(main())
