"""The program of ``cutline demo --agents``: it starts the team, or goes on with it, and writes its report.

Run as ``python -m cutline.coordinator.team_program JOB``, where JOB is a JSON file. It may be killed, and run
again, at any moment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cutline.errors import RolledBack

from .system import System, start
from .team_cast import RESEARCHERS, Approver, Planner, Researcher, World, Writer

__all__ = ("BEGUN", "NAME", "main")

NAME = "team"
# A checkpoint from before the first effect: as long as it is there, what became of effects is remembered.
BEGUN = "begun"

T = TypeVar("T")


def main() -> int:
    """Entry."""
    job = json.loads(Path(sys.argv[1]).read_text())
    with start(job["store"], name=NAME, interval=1.0, quiet=True) as system:
        planner = _team(system, World(job["bank"], job["url"]))
        if not any(row.label == BEGUN for row in system.checkpoints()):
            _again(lambda: system.savepoint(BEGUN))
        report = _again(
            lambda: planner.report.options(key="the report").remote(job["topics"]).result(committed=True)
        )
        _write(Path(job["report"]), report)
    return 0


def _team(system: System, world: World) -> Any:
    def member(name: str, kind: type, *args: Any) -> Any:
        return _again(lambda: system.spawn(name, kind, *args))

    researchers = [member(f"researcher-{number}", Researcher, world) for number in range(RESEARCHERS)]
    writer, approver = member("writer", Writer, world), member("approver", Approver, world)
    return member("planner", Planner, researchers, writer, approver)


def _again(call: Callable[[], T]) -> T:
    while True:
        try:
            return call()
        except RolledBack:
            continue


def _write(path: Path, report: Any) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(report))
    os.replace(fresh, path)


if __name__ == "__main__":
    sys.exit(main())
