"""``cutline simulate``: one schedule of the simulator again. The simulator lives with the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from cutline.errors import Misuse

__all__ = ("run_simulation",)


def run_simulation(seed: int, trace: Callable[[str], None] | None) -> int:
    """Runs the schedule of `seed`; returns 1 if it shows a violation, and prints it.

    Raises:
        Misuse: this is not a source checkout.
    """
    root = Path(__file__).resolve().parents[1]
    if not (root / "tests" / "simulation" / "schedule.py").is_file():
        raise Misuse(
            "the simulator is part of the source, not of the installed package: clone the project, "
            "`make check` there, and run .venv/bin/cutline simulate in it"
        )
    sys.path.insert(0, str(root))
    outcome = import_module("tests.simulation.schedule").run_schedule(seed, trace)
    print(f"seed {seed}: {outcome.violation or 'nothing wrong'}")
    print(f"{outcome.cuts} cuts, {outcome.recoveries} recoveries, trace {outcome.digest}")
    return 1 if outcome.violation else 0
