"""By which way the changes in arrays were found, and why: checkpoints say so, and so does `cutline show`."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cutline
from tests.forbidding import POSSIBLE, run_forbidden
from tests.participant.images import needs_kernel
from tests.programs.surviving import NUMBERS, Keeper

SIZE = 1 << 20


class Odd:
    """Arrays that the kernel's account is not for."""

    def __init__(self) -> None:
        self.rewritten = np.zeros(4 * SIZE, np.uint8)
        self.moved = np.zeros(2 * SIZE, np.uint8)
        # Memory that other processes could write to.
        self.lent = np.frombuffer(mmap.mmap(-1, 3 * SIZE), np.uint8)

    def turn(self, number: int) -> None:
        """Each changes in its way."""
        self.rewritten[:] = number
        self.moved = self.moved.copy()
        self.lent[number] = number


def shown(folder: Path, name: str) -> str:
    """What the verb prints of the newest checkpoint, in lines as long as they come."""
    done = subprocess.run(
        [sys.executable, "-m", "cutline", "show", "newest", "-s", str(folder), "-n", name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are not broken."""
    monkeypatch.setenv("COLUMNS", "250")


@pytest.mark.skipif(not POSSIBLE, reason="the filter is written for Linux on x86_64 and aarch64")
def test_where_the_kernel_gives_no_account(tmp_path: Path) -> None:
    """What a loss takes comes back, by hashes, as in a container without userfaultfd."""
    found = json.loads(run_forbidden("tests.programs.surviving", str(tmp_path)).splitlines()[-1])
    before, after = found["before"], found["after"]
    assert before["array"] == after["array"] == [[0, 1.0], [NUMBERS // 2, 3.0], [NUMBERS - 1, 2.0]]
    assert before["pid"] != after["pid"]
    first, second = found["rows"][-2:]
    for each in (first, second):
        assert each["tracked"] == {"keeper": {"hash": 8 * NUMBERS}}
        assert each["why"] == {"keeper": {"hash": ["account"]}}
    assert second["changed_bytes"] < 100_000 < first["changed_bytes"]
    assert "hash 2.0 MiB (the kernel gives no account here)" in shown(tmp_path, "surviving")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("hash", "hash 2.0 MiB (as chosen)"),
        pytest.param("kernel", "kernel 2.0 MiB ", marks=needs_kernel),
    ],
)
def test_the_environment_chooses(
    way: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTLINE_TRACKING", way)
    with cutline.start(tmp_path, name="told", interval=None, quiet=True) as system:
        keeper = system.spawn("keeper", Keeper)
        for number in (1, 2):
            keeper.put.remote(number, 1.0).result()
            system.checkpoint()
        summary = system.checkpoints()[-1].summary
    assert summary["tracked"] == {"keeper": {way: 8 * NUMBERS}}
    assert summary.get("why", {}) == ({} if way == "kernel" else {"keeper": {"hash": ["chosen"]}})
    assert words in shown(tmp_path, "told")


@needs_kernel
def test_arrays_that_the_account_is_not_for(tmp_path: Path) -> None:
    with cutline.start(tmp_path, name="odd", interval=None, quiet=True) as system:
        odd = system.spawn("odd", Odd)
        for number in range(1, 7):
            odd.turn.remote(number).result()
            system.checkpoint()
        summary, text = system.checkpoints()[-1].summary, shown(tmp_path, "odd")
    assert summary["tracked"] == {"odd": {"hash": 5 * SIZE, "whole": 4 * SIZE}}
    assert summary["why"] == {"odd": {"hash": ["memory", "moves"], "whole": ["changes"]}}
    wanted = "hash 5.0 MiB (no account of this memory, moves each time), whole 4.0 MiB (nearly all changes)"
    assert wanted in text
