"""Runs a program as it is, with a clock of the bench's own around its system: ``python clocked.py PROGRAM``.

The clock goes from the moment `cutline.start` has returned until the system is stopped, and appends the
seconds to the file that CUTLINE_BENCH_CLOCK names. The program is this interpreter's ``__main__``.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cutline
from cutline.coordinator.system import System

__all__ = ("CLOCK", "install")

CLOCK = "CUTLINE_BENCH_CLOCK"


def install(file: Path) -> None:
    """Puts the clock around every system that is started from now on.

    A system ends by `stop`, with its block, or with the program.
    """
    start = cutline.start
    began: dict[int, float] = {}

    def ended(system: System) -> None:
        since = began.pop(id(system), None)
        if since is not None:
            seconds = time.perf_counter() - since
            with file.open("a", encoding="utf-8") as out:
                out.write(f"{seconds}\n")

    def clocked_start(*arguments: Any, **options: Any) -> System:
        system = start(*arguments, **options)
        began[id(system)] = time.perf_counter()
        # What is registered last runs first: before the system's own end.
        atexit.register(ended, system)
        return system

    def clocked(method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(system: System, *arguments: Any, **options: Any) -> Any:
            ended(system)
            return method(system, *arguments, **options)

        return timed

    vars(cutline)["start"] = clocked_start
    for name in ("stop", "__exit__"):
        setattr(System, name, clocked(getattr(System, name)))


if __name__ == "__main__":
    _program = Path(sys.argv.pop(1))
    sys.argv[0], sys.path[0] = str(_program), str(_program.parent)
    install(Path(os.environ[CLOCK]))
    globals()["__file__"] = str(_program)
    exec(compile(_program.read_text(encoding="utf-8"), str(_program), "exec"))
