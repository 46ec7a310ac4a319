"""The driver is interrupted or killed at every stage: a soon end, nothing left over, and a resume."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from cutline.participant.endpoint_file import read_endpoint
from tests.system.living import Program, marked, until

STAGES = ("start", "spawn", "get", "loop", "stop")
WHOLE = "result [66, 66, 66] True"


def run_to_the_end(folder: Path, **environment: str) -> None:
    with Program("journey.py", "none", STORE=str(folder), **environment) as program:
        assert program.end() == 0, program.text
        assert WHOLE in program.text, program.text


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c(stage: str, tmp_path: Path, mark: str) -> None:
    with Program("journey.py", stage, STORE=str(tmp_path / "s")) as program:
        program.read_until(f"at {stage}")
        if stage == "start":
            # In the middle of it: the coordinator's process has just been started.
            until(lambda: len(marked(mark)) > 1, "the coordinator's process")
        began = time.monotonic()
        program.send(signal.SIGINT)
        program.end(timeout=30)
        assert time.monotonic() - began < 15.0
        if stage != "stop":
            assert program.process.returncode != 0
            assert "KeyboardInterrupt" in program.text
        until(lambda: not marked(mark), "the end of everything", 12.0)
    (tmp_path / "s.slow").unlink(missing_ok=True)
    run_to_the_end(tmp_path / "s")


@pytest.mark.parametrize("stage", STAGES)
def test_the_driver_is_killed(stage: str, tmp_path: Path, mark: str) -> None:
    # Paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="cutline-t-") as room:
        with Program("journey.py", stage, STORE=str(tmp_path / "s"), TMPDIR=room) as program:
            program.read_until(f"at {stage}")
            if stage == "start":
                until(lambda: len(marked(mark)) > 1, "the coordinator's process")
            program.send(signal.SIGKILL)
            program.end()
            until(lambda: not marked(mark), "the system to stop by itself", 12.0)
            assert read_endpoint(tmp_path / "s", "default") is None
        (tmp_path / "s.slow").unlink(missing_ok=True)
        run_to_the_end(tmp_path / "s", TMPDIR=room)
        # What the killed one could not remove has gone too.
        assert os.listdir(room) == []


def test_a_run_again_while_the_old_one_ends(tmp_path: Path, mark: str) -> None:
    with Program("journey.py", "loop", STORE=str(tmp_path / "s")) as program:
        program.read_until("at loop")
        program.send(signal.SIGKILL)
        program.process.wait()
    # At once: the coordinator of the dead driver is still on its way out.
    run_to_the_end(tmp_path / "s")
    until(lambda: not marked(mark), "the end of everything", 12.0)
