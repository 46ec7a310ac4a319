"""The servers that the tests start end with the tests, and are missed where they must be there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage import servers
from tests.system.living import until

ROOT = Path(__file__).parents[2]
CHILD = """
import sys, time
from pathlib import Path
from tests.storage.servers import _running
with _running([sys.executable, "-c", "import time; time.sleep(600)"], Path(sys.argv[1])) as process:
    print(process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_server_ends_with_tests_that_are_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as tests:
        assert tests.stdout is not None
        server = int(tests.stdout.readline())
        os.kill(server, 0)
        tests.send_signal(signal.SIGKILL)
        tests.wait()
    until(lambda: _is_gone(server), "the end of the server")


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLINE_TEST_REAL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no server"):
        servers._cannot("no server")
    monkeypatch.setenv("CUTLINE_TEST_REAL", "1")
    with pytest.raises(pytest.fail.Exception, match="no server: `make test-real` needs it"):
        servers._cannot("no server")
