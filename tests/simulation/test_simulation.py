"""The whole system under random faults: nothing wrong in any schedule, and one trace for one seed."""

from __future__ import annotations

import ast
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

from .run import Summary
from .schedule import run_schedule

ROOT = Path(__file__).resolve().parents[2]
BATCH = 100
BATCHES = int(os.environ.get("CUTLINE_TEST_SIMULATE", "1500")) // BATCH


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A process for each core."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as made:
        yield made


@pytest.fixture(scope="module")
def summary() -> Summary:
    """Of all schedules so far."""
    return Summary()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_schedule_shows_anything_wrong(batch: int, pool: Pool, summary: Summary) -> None:
    first = 1 + batch * BATCH
    for outcome in pool.imap_unordered(run_schedule, range(first, first + BATCH), chunksize=2):
        assert not outcome.violation, f"cutline simulate --seed {outcome.seed} --trace: {outcome.violation}"
        summary.add(outcome)


def test_the_schedules_meet_what_they_are_to_meet(summary: Summary) -> None:
    assert len(summary.cuts) == BATCHES * BATCH, "the batches before this one have to run first"
    assert summary.wanting() == []


@pytest.mark.parametrize("seed", [3, 7])
def test_one_seed_gives_one_trace_whatever_the_hash_seed(seed: int) -> None:
    program = (
        "from tests.simulation.schedule import run_schedule\n"
        f"outcome = run_schedule({seed}, print)\n"
        "print(outcome.digest, outcome.violation)\n"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) > 20


def test_without_faults_everything_is_done() -> None:
    outcome = run_schedule(5, faults=False, phase=4.0)
    assert not outcome.violation
    assert outcome.cuts >= 3 and outcome.in_flight > 0


def test_the_simulator_keeps_no_messages_of_its_own() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            )
            held = {"queue", "deque", "Queue", "SimpleQueue"} & set(names)
            assert not held, f"{path.name} imports {held}: messages wait in the product's own queues"
            if "heapq" in names:
                assert path.name == "world.py", f"{path.name}: only the clock keeps what is to come"
