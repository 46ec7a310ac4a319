"""The ring under the outside killer, shorter than in the full run (see docs in tests/killer.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.system.living import ROOT


def test_each_message_is_applied_once_under_an_outside_killer() -> None:
    command = [sys.executable, "-m", "tests.killer", "--kills", "6", "--seed", "5", "--"]
    command += ["tests/programs/ring.py", "--messages", "15000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    doc = json.loads(next(line for line in lines if line.startswith("{")))
    assert doc["wrong"] == [] and doc["applied"] == 15_000
    assert doc["handlers_executed"] - doc["driver_calls"] <= 15_000 + doc["handlers_rerun"]
    assert "killer: 6 of 6 kills" in lines[-1]
