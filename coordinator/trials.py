"""``cutline bench``: a user's own program, without and with checkpoints, and what to make of the difference.

The program is run as it stands, several times on each side in turns (without, with; with, without; ...), each
time with a storage folder of its own that is empty. What is changed is changed through the environment
(`environment`): where the storage is, the interval, and where the system reports to. Its time is that from
the moment the system is up until it is stopped, so neither start-up nor the last checkpoint count.
Checkpoints that the program asks for itself are taken on both sides.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cutline.errors import CutlineError, Misuse
from cutline.storage.authentic import StoreKey
from cutline.storage.keys import ENVIRONMENT

from .environment import INTERVAL, REPORT, STORAGE
from .interval import daly, share_lost, young

__all__ = ("Trials", "conclude", "run_trials")

_SHOWN_LINES = 15
_SIDES = ("without", "with")


@dataclass
class Trials:
    """What the command line was given. ``interval`` None: the program's own."""

    program: Path
    arguments: Sequence[str] = ()
    rounds: int = 3
    interval: float | None = None
    mean_hours: float = 24.0
    storage: Path = Path()

    def __post_init__(self) -> None:
        if not self.program.is_file():
            raise Misuse(f"there is no program {self.program}")
        if self.rounds < 1:
            raise Misuse(f"at least one round is needed, not {self.rounds}")
        if not self.mean_hours > 0:
            raise Misuse(f"the hours between two losses are more than 0, not {self.mean_hours:g}")
        if self.interval is not None and not self.interval > 0:
            raise Misuse(f"the interval is more than 0 seconds, not {self.interval:g}")


def run_trials(
    trials: Trials, told: Callable[[str, float], None] = lambda _side, _seconds: None
) -> dict[str, Any]:
    """Runs the rounds and concludes; `told` hears of each run as it ends.

    Raises:
        CutlineError: a run failed, or had nothing to measure; the message says what to do.
    """
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in _SIDES}
    for number in range(trials.rounds):
        for side in _SIDES if number % 2 == 0 else _SIDES[::-1]:
            run = _run(trials, side)
            runs[side].append(run)
            told(side, run["seconds"])
    return conclude(trials, runs)


def _run(trials: Trials, side: str) -> dict[str, Any]:
    """One run of the program, in a storage folder that is removed afterwards."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="cutline-bench-", dir=trials.storage)).absolute()
    except OSError as error:
        raise Misuse(f"{trials.storage}: {error.strerror}; choose another folder with --storage") from error
    try:
        report, output = folder / "report", folder / "output"
        # The store goes with the run: its key is not for the user to keep.
        told = {STORAGE: str(folder / "checkpoints"), REPORT: str(report), ENVIRONMENT: StoreKey.new().text}
        if side == "without":
            told[INTERVAL] = "off"
        elif trials.interval is not None:
            told[INTERVAL] = str(trials.interval)
        inherited = {key: value for key, value in os.environ.items() if key != INTERVAL}
        command = [sys.executable, str(trials.program), *trials.arguments]
        with output.open("wb") as file:
            done = subprocess.run(
                command, env={**inherited, **told}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        if done.returncode != 0:
            lines = output.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise CutlineError(
                f"{trials.program} ended with status {done.returncode} ({side} checkpoints); its last "
                "lines:\n" + "\n".join(lines)
            )
        return _summed(trials, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _summed(trials: Trials, report: Path) -> dict[str, Any]:
    """The report of one run; of several systems one after the other, their sum."""
    if not report.exists():
        raise Misuse(
            f"{trials.program} stopped no system: there is nothing to measure in a program that does not "
            "call cutline.start, or that is ended from outside"
        )
    systems = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    if any(system["recovered"] for system in systems):
        raise CutlineError(
            f"{trials.program} lost a participant on the way, so its time says nothing about checkpoints; "
            "run it again"
        )
    return {
        "seconds": sum(system["seconds"] for system in systems),
        "interval": next((s["interval"] for s in systems if s["interval"] is not None), None),
        "checkpoints": [each for system in systems for each in system["checkpoints"]],
        "aborted": sum(system["aborted"] for system in systems),
    }


def conclude(trials: Trials, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The document: figures of both sides, the cost of a checkpoint, the interval that follows.

    Raises:
        Misuse: no run with checkpoints had more of them than those without.
    """
    plain, taken = ([run["seconds"] for run in runs[side]] for side in _SIDES)
    extra = [
        len(a["checkpoints"]) - len(b["checkpoints"])
        for a, b in zip(runs["with"], runs["without"], strict=True)
    ]
    interval = runs["with"][0]["interval"]
    if min(extra) < 1:
        why = "the program passes interval=None" if interval is None else f"one is taken every {interval:g} s"
        raise Misuse(
            f"no checkpoint fell into a run of {median(taken):.1f} s ({why}): give --interval SECONDS, or "
            "more work to the program"
        )
    each = [(a - b) / more for a, b, more in zip(taken, plain, extra, strict=True)]
    rows = [row for run in runs["with"] for row in run["checkpoints"]]
    stall = median([row["stall_ms_max"] for row in rows]) / 1000
    later = median(each)
    mean = trials.mean_hours * 3600
    # A difference of two noisy times may come out below what is certain: somebody stood still for `stall`.
    cost = max(later, stall)
    duration = median([row["duration_ms"] for row in rows]) / 1000
    ratios = [a / b - 1 for a, b in zip(taken, plain, strict=True)]
    return {
        "program": str(trials.program),
        "arguments": list(trials.arguments),
        "interval": interval,
        "seconds": {"without": plain, "with": taken},
        "overhead": median(ratios),
        "overhead_range": [min(ratios), max(ratios)],
        "checkpoints": _figures(rows, extra, taken),
        "aborted": sum(run["aborted"] for run in runs["with"]),
        "cost_seconds": {"later": later, "stall": stall, "used": cost},
        "hours_between_losses": trials.mean_hours,
        "suggested": {
            "young": young(cost, mean),
            "daly": daly(cost, mean),
            # More often than one is done with, it cannot be taken.
            "interval": max(daly(cost, mean), duration),
        },
        "share_lost": {
            "now": share_lost(interval, cost, mean) if interval else None,
            "suggested": share_lost(max(daly(cost, mean), duration), cost, mean),
        },
    }


def _figures(
    rows: Sequence[Mapping[str, Any]], extra: Sequence[int], seconds: Sequence[float]
) -> dict[str, Any]:
    written: dict[str, float | None] = {}
    for kind, full in (("full", True), ("delta", False)):
        sizes = [row["written_bytes"] for row in rows if row["full"] is full]
        written[kind] = median(sizes) if sizes else None
    return {
        "count": list(extra),
        "participants": max(row["participants"] for row in rows),
        "state_bytes": max(row["state_bytes"] for row in rows),
        "changed_bytes": median([row["changed_bytes"] for row in rows]),
        "written_bytes": written,
        "written_bytes_per_second": sum(row["written_bytes"] for row in rows) / sum(seconds),
        "stall_ms": {
            "median": median([row["stall_ms_max"] for row in rows]),
            "longest": max(row["stall_ms_max"] for row in rows),
        },
        "detect_ms": {
            "median": median([row["detect_ms_max"] for row in rows]),
            "longest": max(row["detect_ms_max"] for row in rows),
        },
        "duration_ms": {
            "median": median([row["duration_ms"] for row in rows]),
            "longest": max(row["duration_ms"] for row in rows),
        },
    }
