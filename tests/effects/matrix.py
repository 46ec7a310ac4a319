"""Kills, and stops, at every step of an effect: a matrix of steps and faults, and what the world has seen.

::

    python -m tests.effects.matrix --kills 300
    python -m tests.effects.matrix --asking --kills 100

A program pays (`payments`) while `points` ends participants, the coordinator, or everybody, or stops a
participant and wakes it up later. The recorder writes down each call. At the end each payment must be there
once: none doubled, none lost, and every cell of the matrix must have been carried out. With ``--asking`` it
asks people (`asking`) instead, beside a process that answers, which is ended as well: each question must have
been seen under one id, and been answered by the word that was recorded first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.effects.payments import TWICE
from tests.effects.points import ASKING, FAULTS, OUTPUT_STEPS, STEPS, count
from tests.effects.written import differences, prepare
from tests.storage.servers import a_postgres

__all__ = ("Found", "Plan", "main", "payments", "play", "table")

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

    steps: Sequence[str] = STEPS
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


class Plan(NamedTuple):
    """What is played: a program, what it is given, the steps of its matrix, and who looks at what is left."""

    module: str
    steps: tuple[str, ...]
    place: Callable[[Path], str]
    judge: Callable[[Found, Path, int], None]
    environment: Callable[[Path], dict[str, str]]
    # Whether somebody answers beside it.
    beside: bool = False


def play(
    folder: Path,
    times: int,
    wanted: int | None = None,
    limit: float = 3600.0,
    batch: int = BATCH,
    *,
    plan: Plan | None = None,
) -> Found:
    """Pays, or what the plan says, until each cell was carried out `times` times, or `wanted` faults, or time
    is up."""
    plan = plan or payments()
    for name in ("fired", "roles"):
        (folder / name).mkdir(parents=True)
    (folder / "times").write_text(str(times))
    (folder / "clock").touch()
    paths = [str(Path(__file__).parent / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "EFFECT_PLAN": str(folder),
        **plan.environment(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    found = Found(plan.steps)
    began = time.monotonic()
    goal = 0
    with _beside(plan.module, folder, environment, found) if plan.beside else nullcontext():
        while time.monotonic() - began < limit:
            goal += batch
            command = [sys.executable, "-m", plan.module, plan.place(folder), str(goal)]
            _run(folder, command, environment, found, began + limit)
            found.cells = {
                (step, fault): count(folder, step, fault) for step in found.steps for fault in FAULTS
            }
            enough = found.kills >= wanted if wanted is not None else False
            if found.trouble or enough or min(found.cells.values()) >= times:
                break
    found.seconds = time.monotonic() - began
    plan.judge(found, folder, goal)
    return found


def payments(catalog: str = "") -> Plan:
    """Payments; `catalog`: a URL of PostgreSQL."""
    tail = f"?catalog={catalog}" if catalog else ""
    return Plan(
        "tests.effects.payments",
        STEPS,
        lambda folder: f"{folder / 'store'}{tail}",
        _judge,
        lambda folder: {"EFFECT_WORLD": str(folder / "world")},
    )


def people() -> Plan:
    """Questions to somebody who answers beside the program."""
    return Plan(
        "tests.effects.asking",
        ASKING,
        lambda folder: str(folder / "store"),
        lambda found, folder, goal: _judge_answers(found, folder / "world", folder / "got", goal),
        lambda folder: {"EFFECT_WORLD": str(folder / "world"), "EFFECT_GOT": str(folder / "got")},
        beside=True,
    )


@contextmanager
def _beside(module: str, folder: Path, environment: dict[str, str], found: Found) -> Iterator[None]:
    """Somebody who answers, and comes again when he was killed."""
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            person = subprocess.Popen(
                [sys.executable, "-m", module, str(folder / "store"), "person"],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            while person.poll() is None and not over.wait(0.05):
                continue
            if over.is_set():
                person.kill()
            said, _ = person.communicate()
            if person.returncode != -9:
                found.trouble.append(f"whoever answers ended with {person.returncode}: {said[-3000:]}")
                return

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def writing(url: str = "") -> Plan:
    """Lines of a file, a function, and rows of a table if there is a `url` of PostgreSQL."""
    if url:
        prepare(url)

    def judge(found: Found, folder: Path, goal: int) -> None:
        found.payments = 2 * goal
        found.calls, found.doubled, found.lost = differences(folder, url, goal)

    def environment(folder: Path) -> dict[str, str]:
        return {"OUTPUT_HEARD": str(folder / "heard"), "OUTPUT_URL": url}

    return Plan("tests.effects.writing", OUTPUT_STEPS, str, judge, environment)


def _run(
    folder: Path, command: Sequence[str], environment: dict[str, str], found: Found, until: float
) -> None:
    """Runs the program, again whenever it was killed, until it has done as much as it was told."""
    while True:
        found.starts += 1
        process = subprocess.Popen(
            command,
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


def _judge(found: Found, folder: Path, goal: int) -> None:
    lines = (folder / "world").read_text().split("\n")[:-1]
    calls = Counter(tuple(line.split()[:2]) for line in lines)
    wanted = [(payer, str(number)) for payer in ("ann", "bob") for number in range(goal)]
    found.payments, found.calls = len(wanted), len(lines)
    found.doubled = [f"{payer} {number}" for (payer, number), times in calls.items() if times > 1]
    found.lost = [f"{payer} {number}" for payer, number in wanted if not calls[payer, number]]


def _judge_answers(found: Found, world: Path, got: Path, goal: int) -> None:
    """Each question was seen under one id, and was answered by the word that was recorded first."""
    said = [line.split() for line in world.read_text().split("\n")[:-1]]
    answers = [tuple(line.split()) for line in got.read_text().split("\n")[:-1]] if got.exists() else []
    wanted = [(name, str(number)) for name in ("ann", "bob") for number in range(goal)]
    found.payments, found.calls = len(wanted), len(said)
    for name, number in wanted:
        lines = [line for line in said if (line[2], line[3]) == (name, number)]
        ids = {line[1] for line in lines}
        words = {line[4] for line in lines if line[0] == "taken"} or {line[4] for line in lines}
        heard = [word for who, which, word in answers if (who, which) == (name, number)]
        if len(ids) > 1 or len({line[4] for line in lines if line[0] == "taken"}) > 1 or len(heard) > 1:
            found.doubled.append(f"{name} {number}: asked as {sorted(ids)}, answered {heard}")
        if len(heard) != 1 or heard[0] not in words:
            found.lost.append(f"{name} {number}: said were {sorted(words)}, heard {heard}")


def table(found: Found) -> str:
    """The matrix, for people."""
    lines = [f"{'':>12}" + "".join(f"{fault:>13}" for fault in FAULTS)]
    for step in found.steps:
        lines.append(f"{step:>12}" + "".join(f"{found.cells[step, fault]:>13}" for fault in FAULTS))
    what = "questions" if found.steps is ASKING else "payments"
    lines.append(
        f"{found.kills} faults, {found.payments} {what}, {found.calls} calls, {found.starts} starts, "
        f"{found.seconds:.0f} s, {len(found.halts)} halts: "
        f"{len(found.doubled)} doubled, {len(found.lost)} lost"
    )
    return "\n".join(lines)


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds")
    parser.add_argument("--asking", action="store_true", help="people are asked, in place of effects")
    parser.add_argument("--output", action="store_true", help="what is emitted, in place of effects")
    parser.add_argument(
        "--postgres", action="store_true", help="a catalog, or a sink, in a PostgreSQL database"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="effects-"))
    with ExitStack() as stack:
        url = stack.enter_context(a_postgres()).url("effects") if options.postgres else ""
        plan = people() if options.asking else writing(url) if options.output else payments(url)
        times = -(-options.kills // (len(plan.steps) * len(FAULTS)))
        found = play(folder, times, limit=options.limit, plan=plan)
    print(table(found))
    for text in (*found.halts, *found.trouble, *(f"doubled: {each}" for each in found.doubled), *found.lost):
        print(text)
    empty = [f"{step} x {fault}" for (step, fault), times in found.cells.items() if not times]
    if empty:
        # Each step is passed by every effect, so each cell comes, given time.
        why = f"time was up after {found.seconds:.0f} s" if found.seconds >= options.limit else "see above"
        print(f"never carried out ({why}): {', '.join(empty)}")
    if found.is_good and not empty:
        shutil.rmtree(folder)
        return 0
    print(f"kept: {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
