"""Programs a user would write, run as programs: what they print and how they end.

Nobody has the patience for a dozen starts of Ray, so they share one, which also makes it a cluster that
somebody else has started. They run three at a time, all before the first test looks.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ray = pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
pytestmark = [pytest.mark.timeout(150), pytest.mark.filterwarnings("default")]


class Ran(NamedTuple):
    """How a program ended."""

    status: int
    out: str
    err: str


# What is run, how often one after the other in one folder.
RUNS = {
    "simulation_ray": 1,
    "simulation_cutline": 1,
    "team": 1,
    "server": 1,
    "script_classes": 1,
    "inheritance": 1,
    "async_calls": 1,
    "wrapped": 1,
    "returns": 2,
    "visits": 3,
    "crashes": 2,
    "workers": 1,
}


def _run(name: str, times: int, folder: Path, address: str) -> list[Ran]:
    folder.mkdir()
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    ran = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / f"{name}.py")],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        # Ray tells every program of the cluster what it thinks of its load.
        own = [line for line in done.stdout.splitlines(keepends=True) if "(raylet)" not in line]
        ran.append(Ran(done.returncode, "".join(own), done.stderr))
    return ran


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[list[Ran]]]]:
    """All programs, under way."""
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 3, "include_dashboard": False, "object_store_memory": 200 * 1024 * 1024},
    )
    top = tmp_path_factory.mktemp("adoption")
    pool = ThreadPoolExecutor(3)
    try:
        yield {
            name: pool.submit(_run, name, times, top / name, cluster.address) for name, times in RUNS.items()
        }
    finally:
        pool.shutdown(cancel_futures=True)
        cluster.shutdown()


def _outcome(started: dict[str, Future[list[Ran]]], name: str) -> list[Ran]:
    return started[name].result(140)


def test_the_simulation_changes_in_four_lines_and_in_nothing_it_prints(
    started: dict[str, Future[list[Ran]]],
) -> None:
    plain = (PROGRAMS / "simulation_ray.py").read_text().splitlines()
    ours = (PROGRAMS / "simulation_cutline.py").read_text().splitlines()
    changes = [line for line in difflib.ndiff(plain, ours) if line[0] in "+-" and line[2:].strip()]
    assert sum(line.startswith("+") for line in changes) <= 4, "\n".join(changes)
    assert sum(line.startswith("-") for line in changes) <= 4, "\n".join(changes)
    (before,), (after,) = _outcome(started, "simulation_ray"), _outcome(started, "simulation_cutline")
    assert (before.status, after.status) == (0, 0), after.err
    assert before.out == after.out
    assert before.out.splitlines()[0] == "cash 8028 stock 80"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "team",
            "Facts About Tides\nFacts About Moons\nFacts About Tides\nFacts About Moons\n"
            "['moons', 'moons', 'tides', 'tides']\nTrue\n",
        ),
        ("script_classes", "True True Draft(title='three', color=<Color.RED: 1>)\n[True, True] [False]\n"),
        ("inheritance", "20 True\n[20, 10]\nSavings ann: 20\nJoint ann and bob: 10\n"),
        ("async_calls", "[10, 15, 35] 42\nworker said: -3 is negative\n[60, 42]\n"),
        ("wrapped", "101 [6, 8]\nrunning\n"),
        ("workers", "[1, 4, 9, 'done', 81]\n81\n"),
    ],
)
def test_a_program(started: dict[str, Future[list[Ran]]], name: str, expected: str) -> None:
    (ran,) = _outcome(started, name)
    assert ran.status == 0, ran.err
    assert ran.out == expected


def test_a_parameter_server_with_plain_tasks_as_workers(started: dict[str, Future[list[Ran]]]) -> None:
    (ran,) = _outcome(started, "server")
    assert ran.status == 0, ran.err
    # Each step replaces the weights by 0 + 1 + 2 + 3: what they were is taken away in four quarters.
    assert ran.out == "6000.0\n"


def test_a_driver_that_exits_and_returns(started: dict[str, Future[list[Ran]]]) -> None:
    first, second = _outcome(started, "returns")
    assert (first.status, first.out) == (0, "new 1\n"), first.err
    assert (second.status, second.out) == (0, "resumed 2\n"), second.err


def test_a_driver_that_leaves_its_system_running_and_returns(
    started: dict[str, Future[list[Ran]]],
) -> None:
    first, second, third = _outcome(started, "visits")
    assert (first.status, first.out) == (0, "first 1 ['first']\n"), first.err
    assert (second.status, second.out) == (0, "visitor 2 ['first', 'visitor']\n"), second.err
    assert (third.status, third.out) == (0, "visitor 3 ['first', 'visitor', 'visitor']\n"), third.err
    assert "the system goes on" in first.err and "the system goes on" in second.err
    assert "stopped at checkpoint" in third.err


def test_a_second_run_resumes_what_the_first_did_not_finish(started: dict[str, Future[list[Ran]]]) -> None:
    first, second = _outcome(started, "crashes")
    assert (first.status, first.out) == (9, "")
    assert second.status == 0, second.err
    assert second.out == f"{list(range(12))}\n"
    assert "resumed from checkpoint" in second.err
