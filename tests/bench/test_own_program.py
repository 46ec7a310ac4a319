"""A program's time is the same by `cutline bench` and by the bench's own clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bench_own_program import PROGRAMS, measure_program

PROGRAM = """
import sys, time
import cutline

class Counter:
    def __init__(self): self.count = 0
    def add(self): self.count += 1

if __name__ == "__main__":
    system = cutline.start(name="counted", quiet=True)
    counter = system.spawn("counter", Counter)
    for _ in range(int(sys.argv[1])):
        counter.add.remote().result()
        time.sleep(0.1)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "counted.py"
    path.write_text(PROGRAM)
    return path


def test_both_clocks_see_the_same_time(program: Path) -> None:
    row = measure_program(program, rounds=1, interval=0.2, arguments=["8"])
    assert row.name == "own_program_counted"
    assert row.measured_ratio() == pytest.approx(1.0, abs=0.05)
    assert "1 pairs of runs" in row.note


def test_the_programs_are_there() -> None:
    folder = Path(__file__).parents[1] / "adoption" / "programs"
    assert len(PROGRAMS) == 3 and all((folder / f"{name}.py").is_file() for name in PROGRAMS)
