"""In a container that forbids userfaultfd everything works, by hashes, and `cutline doctor` says why.

A whole system there: tests/system/test_tracked.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forbidding import POSSIBLE, run_forbidden

ROOT = Path(__file__).parents[2]
REASONS = {
    "EPERM": "userfaultfd is forbidden here",
    "ENOSYS": "the kernel, or its sandbox, has no userfaultfd",
}

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="the filter is written for Linux on x86_64 and aarch64")
answers = pytest.mark.parametrize("answer", REASONS)


def test_captures_and_restores() -> None:
    shown = run_forbidden(
        *("pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", "not InARow and not ByHash"),
        *("tests/participant/test_capture.py", "tests/participant/test_standing.py"),
        "tests/participant/test_page_tracker.py",
    )
    assert "passed" in shown and "userfaultfd is forbidden here" in shown


def test_awkward_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zoo, random changes to it, and what is known of tracking; no more runs than `make test` has."""
    monkeypatch.delenv("CUTLINE_TEST_ZOO", raising=False)
    shown = run_forbidden(
        *("pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/participant/test_tracking.py"),
        *("tests/participant/test_zoo_in_a_row.py", "tests/participant/test_state_zoo.py"),
    )
    assert "passed" in shown and REASONS["EPERM"] in shown


@answers
def test_doctor_says_so(answer: str) -> None:
    tracking = json.loads(run_forbidden("cutline", "doctor", "--json", answer=answer))["tracking"]
    assert tracking["way"] == "hash" and tracking["chosen"] == "auto"
    assert tracking["reason"].startswith(REASONS[answer])
    assert REASONS[answer] in " ".join(run_forbidden("cutline", "doctor", answer=answer).split())


@answers
def test_who_insists_is_told(answer: str) -> None:
    shown = run_forbidden("tests.programs.insisting", answer=answer)
    assert REASONS[answer] in shown and "RefusedOption" in shown


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
