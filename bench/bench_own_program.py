"""Whether `cutline bench` says the overhead that a clock of the bench's own sees, of three programs on Ray.

Each program of tests/adoption is run by `cutline bench` as it stands, without and with checkpoints in turns;
the same runs are timed by `bench.clocked`. The overheads of both, from the same pairs, must be within five
points.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import ray

import bench.clocked
from bench.ray_peers import local_ray
from bench.row import Row
from cutline.coordinator.trials import Trials, run_trials

__all__ = ("PROGRAMS", "measure", "measure_program")

PROGRAMS = ("simulation_cutline", "server", "team")
_FOLDER = Path(__file__).parents[1] / "tests" / "adoption" / "programs"


def measure_program(program: Path, *, rounds: int, interval: float, arguments: Sequence[str] = ()) -> Row:
    """The row of one program."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        clock = Path(folder) / "clock"
        clocked = Path(bench.clocked.__file__)
        paths = [str(clocked.parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        told = {bench.clocked.CLOCK: str(clock), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with patch.dict(os.environ, told):
            document = run_trials(
                Trials(
                    clocked,
                    [str(program), *arguments],
                    rounds=rounds,
                    interval=interval,
                    storage=Path(folder),
                )
            )
        seen = [float(line) for line in clock.read_text(encoding="utf-8").splitlines()]
    if len(seen) != 2 * rounds:
        raise AssertionError(f"{program.name}: {len(seen)} runs were timed, {2 * rounds} made")
    seconds = document["seconds"]
    said = [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    # The runs come without, with; with, without; ...
    pairs = [tuple(seen[at : at + 2]) for at in range(0, len(seen), 2)]
    timed = [b / a if number % 2 == 0 else a / b for number, (a, b) in enumerate(pairs)]
    counts = document["checkpoints"]["count"]
    return Row(
        name=f"own_program_{program.stem}",
        unit="of the time without checkpoints",
        samples_ours=said,
        samples_baseline=timed,
        at_least=0.95,
        at_most=1.05,
        note=f"cutline bench says {document['overhead']:+.1%}; {rounds} pairs of runs, {min(counts)} to "
        f"{max(counts)} checkpoints each, one asked for every {interval:g} s",
    )


def measure(*, rounds: int = 5, interval: float = 0.25, programs: Sequence[str] = PROGRAMS) -> list[Row]:
    """The rows, on one Ray that all runs share."""
    with local_ray():
        address = ray.get_runtime_context().gcs_address
        with patch.dict(os.environ, {"RAY_ADDRESS": address}):
            return [
                measure_program(_FOLDER / f"{name}.py", rounds=rounds, interval=interval) for name in programs
            ]
