"""``python -m tests.simulation.mutants``: plants each bug, and counts the schedules until it shows.

A planted bug must pass runs without faults (else it is not subtle) and must be caught, by a sign of its own
where another one could be taken for it; the last line is ``caught K of K``, and the exit status is 0 only
then.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
from statistics import median

import pytest

from .planted_storage import PLANTED, SIGNS
from .schedule import run_schedule

__all__ = ("Verdict", "main", "try_plant")

HAPPY = (101, 102, 103)
TRIES = 3
MOST = 2000
# One that took so many is not tried again: what it takes is known well enough.
LONG = 100
# A patch that does not fit the product any more raises this; that is no bug caught.
_STALE = re.compile(r"(TypeError|AttributeError|NameError)\b.*(<locals>|tests.simulation.planted)")


class Verdict:
    """What became of one planted bug: schedules until it was caught, each from another first seed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spoilt = ""
        self.took: list[int] = []
        self.missed = 0
        self.most = MOST
        self.shown = ""

    @property
    def caught(self) -> bool:
        """Every time, and not without faults."""
        return bool(self.took) and not self.spoilt and not self.missed

    def line(self) -> str:
        """For people."""
        if self.spoilt:
            return f"{self.spoilt}: {self.name}: {self.shown}"
        if self.missed:
            return f"MISSED: {self.name}: not in {self.most} schedules"
        return f"{median(self.took):5.0f} schedules  {self.name}  ({self.shown})"


def try_plant(name: str, tries: int = TRIES, most: int = MOST) -> Verdict:
    """Plants one bug in this process for as long as it takes."""
    verdict = Verdict(name)
    verdict.most = most
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name](patch)
        for seed in HAPPY:
            outcome = run_schedule(seed, phase=3.0, happy=True)
            if outcome.violation:
                verdict.spoilt, verdict.shown = "not subtle", _short(outcome.violation)
                return verdict
        for attempt in range(tries):
            _try(verdict, 1000 * (attempt + 1), most)
            if verdict.spoilt or verdict.missed or verdict.took[-1] > LONG:
                break
    return verdict


def _try(verdict: Verdict, first: int, most: int) -> None:
    for seed in range(first, first + most):
        violation = run_schedule(seed).violation
        if _STALE.search(violation):
            verdict.spoilt, verdict.shown = "does not fit the product", _short(violation)
            return
        if violation and re.search(SIGNS.get(verdict.name, ""), violation):
            verdict.took.append(seed - first + 1)
            verdict.shown = _short(violation)
            return
    verdict.missed += 1


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
    return 0 if names and caught == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
