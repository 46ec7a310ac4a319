"""The demo on Ray, as a person runs it, with few files: killed on the way and identical at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_demo_is_identical_on_ray(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cutline", "demo", "--runtime", "ray", "--files", "40", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["identical"] and document["differences"] == []
    assert all(kill["recovered_ms"] is not None for kill in document["kills"])
