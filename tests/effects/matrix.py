"""Kills, and stops, at every step of an effect: a matrix of steps and faults, and what the world has seen.

::

    python -m tests.effects.matrix --kills 300

A program pays (`payments`) while `points` ends participants, the coordinator, or everybody, or stops a
participant and wakes it up later. The recorder writes down each call. At the end each payment must be there
once: none doubled, none lost, and every cell of the matrix must have been carried out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.effects.payments import TWICE
from tests.effects.points import FAULTS, STEPS, count

__all__ = ("Found", "main", "play", "table")

ROOT = Path(__file__).resolve().parents[2]
# Payments that one run of the program makes; runs follow each other until the plan is carried out.
BATCH = 20
# Seconds that it has to come to its end when time is up.
LAST = 180.0
# How often the program may end with an error that is none of the effects'.
HALTS = 3


@dataclass
class Found:
    """What a whole play has shown."""

    cells: dict[tuple[str, str], int] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    payments: int = 0
    calls: int = 0
    starts: int = 0
    seconds: float = 0.0
    trouble: list[str] = field(default_factory=list)
    halts: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Faults that were carried out."""
        return sum(self.cells.values())

    @property
    def is_good(self) -> bool:
        """Whether nothing was doubled or lost, and nothing else went wrong."""
        return not (self.doubled or self.lost or self.trouble)


def play(
    folder: Path, times: int, wanted: int | None = None, limit: float = 3600.0, batch: int = BATCH
) -> Found:
    """Pays until each cell was carried out `times` times, or `wanted` faults altogether, or time is up."""
    for name in ("fired", "roles"):
        (folder / name).mkdir(parents=True)
    (folder / "times").write_text(str(times))
    (folder / "clock").touch()
    world = folder / "world"
    paths = [str(Path(__file__).parent / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "EFFECT_PLAN": str(folder),
        "EFFECT_WORLD": str(world),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    found = Found()
    began = time.monotonic()
    goal = 0
    while time.monotonic() - began < limit:
        goal += batch
        _pay(folder, goal, environment, found, began + limit)
        found.cells = {(step, fault): count(folder, step, fault) for step in STEPS for fault in FAULTS}
        enough = found.kills >= wanted if wanted is not None else False
        if found.trouble or enough or min(found.cells.values()) >= times:
            break
    found.seconds = time.monotonic() - began
    _judge(found, world, goal)
    return found


def _pay(folder: Path, goal: int, environment: dict[str, str], found: Found, until: float) -> None:
    """Runs the program, again whenever it was killed, until it has made so many payments of each payer."""
    while True:
        found.starts += 1
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.effects.payments", str(folder / "store"), str(goal)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            # No more faults; what is under way has to come to its end.
            (folder / "times").write_text("0")
            until = time.monotonic() + LAST
            last = _last(process)
            if last is None:
                found.trouble.append("it did not come to its end after the last fault")
                return
            said = last
        if process.returncode == 0:
            return
        if process.returncode == TWICE:
            found.trouble.append(said[-3000:])
            return
        if process.returncode != -9:
            # It halted, for a reason that is none of the effects' (a machine that stood still): it goes on
            # from its newest checkpoint, and must still lose and double nothing.
            found.halts.append(said[-500:])
            if len(found.halts) > HALTS:
                found.trouble.append(f"status {process.returncode}: {said[-3000:]}")
                return


def _last(process: subprocess.Popen[str]) -> str | None:
    """What the program says until its end; None if it does not come."""
    try:
        return process.communicate(timeout=LAST)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None


def _judge(found: Found, world: Path, goal: int) -> None:
    lines = world.read_text().split("\n")[:-1]
    calls = Counter(tuple(line.split()[:2]) for line in lines)
    wanted = [(payer, str(number)) for payer in ("ann", "bob") for number in range(goal)]
    found.payments, found.calls = len(wanted), len(lines)
    found.doubled = [f"{payer} {number}" for (payer, number), times in calls.items() if times > 1]
    found.lost = [f"{payer} {number}" for payer, number in wanted if not calls[payer, number]]


def table(found: Found) -> str:
    """The matrix, for people."""
    lines = [f"{'':>12}" + "".join(f"{fault:>13}" for fault in FAULTS)]
    for step in STEPS:
        lines.append(f"{step:>12}" + "".join(f"{found.cells[step, fault]:>13}" for fault in FAULTS))
    lines.append(
        f"{found.kills} faults, {found.payments} payments, {found.calls} calls, {found.starts} starts, "
        f"{found.seconds:.0f} s, {len(found.halts)} halts: "
        f"{len(found.doubled)} doubled, {len(found.lost)} lost"
    )
    return "\n".join(lines)


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds")
    options = parser.parse_args()
    cells = len(STEPS) * len(FAULTS)
    folder = Path(tempfile.mkdtemp(prefix="effects-"))
    found = play(folder, -(-options.kills // cells), limit=options.limit)
    print(table(found))
    for text in (*found.halts, *found.trouble, *(f"doubled: {each}" for each in found.doubled)):
        print(text)
    empty = [f"{step} x {fault}" for (step, fault), times in found.cells.items() if not times]
    if empty:
        print(f"never carried out: {', '.join(empty)}")
    if found.is_good and not empty:
        shutil.rmtree(folder)
        return 0
    print(f"kept: {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
