"""Two machines that share a storage folder and nothing else, in a process and with a Ray of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.machines import cannot_unshare

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(240)
def test_a_ring_over_two_machines_survives_the_loss_of_one() -> None:
    reason = cannot_unshare()
    if reason:
        pytest.skip(f"this machine cannot be made into two: {reason}")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cluster.two_machines", "--messages", "4000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=230,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    doc = json.loads(ran.stdout.splitlines()[-1])
    assert doc["applied"] == 4000 and doc["faults"] == [] and doc["coordinator"].startswith("tls:")
