"""`cutline bench` with a small program, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent.parent / "programs" / "counting.py"


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cutline", "bench", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_program_is_measured_as_it_stands(tmp_path: Path) -> None:
    done = bench(tmp_path, str(PROGRAM), "--rounds", "1", "--interval", "0.1", "--json", "--", "300", "none")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["arguments"] == ["300", "none"]
    assert document["interval"] == 0.1
    assert len(document["seconds"]["with"]) == len(document["seconds"]["without"]) == 1
    assert document["checkpoints"]["count"][0] >= 1
    assert document["checkpoints"]["participants"] == 3
    assert document["suggested"]["interval"] >= document["checkpoints"]["duration_ms"]["median"] / 1000
    assert list(tmp_path.iterdir()) == [], "the runs leave nothing behind"


def test_a_program_that_fails_is_shown(tmp_path: Path) -> None:
    done = bench(tmp_path, str(PROGRAM), "--rounds", "1", "--", "twelve", "none")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "ended with status 1" in said and "invalid literal" in said
    assert list(tmp_path.iterdir()) == []


def test_a_program_without_a_system_is_told(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text("print('nothing of Cutline here')\n")
    done = bench(tmp_path, str(program), "--rounds", "1")
    assert done.returncode == 1
    assert "stopped no system" in " ".join(done.stderr.split())
