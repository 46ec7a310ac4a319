"""``python -m tests.simulation.mutants``: plants each bug, and counts the schedules until it shows.

A planted bug must pass runs without faults (else it is not subtle) and must be caught; the last line is
``caught K of K``, and the exit status is 0 only then.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from statistics import median

import pytest

from .planted import PLANTED
from .schedule import run_schedule

__all__ = ("Verdict", "main", "try_plant")

HAPPY = (101, 102, 103)
TRIES = 3
MOST = 600
# One that took so many is not tried again: what it takes is known well enough.
LONG = 60


class Verdict:
    """What became of one planted bug: schedules until it was caught, each from another first seed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.noticed_without_faults = ""
        self.took: list[int] = []
        self.missed = 0
        self.shown = ""

    @property
    def caught(self) -> bool:
        """Every time, and not without faults."""
        return not self.noticed_without_faults and not self.missed

    def line(self) -> str:
        """For people."""
        if self.noticed_without_faults:
            return f"not subtle: {self.name}: {self.noticed_without_faults}"
        if self.missed:
            return f"MISSED: {self.name}: not in {MOST} schedules"
        return f"{median(self.took):5.0f} schedules  {self.name}  ({self.shown})"


def try_plant(name: str, tries: int = TRIES, most: int = MOST) -> Verdict:
    """Plants one bug in this process for as long as it takes."""
    verdict = Verdict(name)
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name](patch)
        for seed in HAPPY:
            outcome = run_schedule(seed, phase=3.0, happy=True)
            if outcome.violation:
                verdict.noticed_without_faults = _short(outcome.violation)
                return verdict
        for attempt in range(tries):
            first = 1000 * (attempt + 1)
            for seed in range(first, first + most):
                outcome = run_schedule(seed)
                if outcome.violation:
                    verdict.took.append(seed - first + 1)
                    verdict.shown = _short(outcome.violation)
                    break
            else:
                verdict.missed += 1
            if verdict.missed or verdict.took[-1] > LONG:
                break
    return verdict


def _short(text: str) -> str:
    return text.strip().splitlines()[-1 if text.startswith("Traceback") else 0][:110]


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    names = [name for name in PLANTED if chosen.only in name]
    caught = 0
    with multiprocessing.get_context("spawn").Pool(chosen.workers, maxtasksperchild=1) as pool:
        for verdict in pool.imap(try_plant, names, chunksize=1):
            caught += verdict.caught
            print(verdict.line(), flush=True)
    print(f"caught {caught} of {len(names)}")
    return 0 if caught == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
