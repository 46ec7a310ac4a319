"""In a container that forbids userfaultfd everything works, by hashes, and `cutline doctor` says why."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the filter is written for Linux on x86_64 and aarch64",
)


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.forbidding", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_captures_and_restores() -> None:
    shown = run(
        *("pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", "not InARow and not ByHash"),
        *("tests/participant/test_capture.py", "tests/participant/test_standing.py"),
        "tests/participant/test_page_tracker.py",
    )
    assert "passed" in shown and "userfaultfd is forbidden here" in shown


def test_doctor_says_so() -> None:
    tracking = json.loads(run("cutline", "doctor", "--json"))["tracking"]
    assert tracking["way"] == "hash" and tracking["chosen"] == "auto"
    assert tracking["reason"].startswith("userfaultfd is forbidden here")
    assert "userfaultfd is forbidden here" in " ".join(run("cutline", "doctor").split())


def test_who_insists_is_told() -> None:
    shown = run("tests.programs.insisting")
    assert "userfaultfd is forbidden here" in shown and "RefusedOption" in shown


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLINE_TRACKING", "hash")
    done = subprocess.run(
        [sys.executable, "-m", "cutline", "doctor", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    tracking = json.loads(done.stdout)["tracking"]
    assert tracking["way"] == tracking["chosen"] == "hash"
