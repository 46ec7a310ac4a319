"""The process way: at each operation of a deed a child is killed, or the operation fails; it is judged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.crash.deeds import here, prepare
from tests.crash.judge import Wrong, judge, said_in
from tests.crash.power import Tally
from tests.crash.worker import Worker

__all__ = ("process",)


def process(
    worker: Worker,
    deed: str,
    base: Path,
    place: Path,
    how: str,
    *,
    plant: str = "",
    every: int = 1,
    enough: int = 5,
) -> Tally:
    """Each operation is struck as ``how`` says, or each of ``every`` so many, in a child of its own."""
    tally = Tally()
    at = 1
    while len(tally.lost) < enough:
        top = place / "live"
        prepare(deed, base, top)
        fault = ""
        over = False
        try:
            done = worker.do(deed, top, at=at, how=how, plant=plant)
            over = not done.killed if how == "kill" else done.count < at
            judge(top, here(top), said_in(done.marks, None if deed == "make" else "old"))
        except Wrong as wrong:
            fault = str(wrong)
        shutil.rmtree(top)
        tally.points += 1
        if fault:
            tally.lost.append(f"{deed}, {how} at operation {at}: {fault}")
        if over:
            break
        at += every
    return tally
