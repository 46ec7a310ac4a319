"""Who is alive: ids that are used again, zombies, watches with and without the kernel's help."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cutline.participant import processes
from cutline.participant.processes import process_alive, process_started, watch_exit

SOON = 20.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@pytest.fixture(params=["kernel", "polling", "ps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with what the system offers and with the fallbacks."""
    if request.param != "kernel":
        monkeypatch.setattr(processes, "_open_descriptor", lambda pid: -1)
    if request.param == "ps":
        monkeypatch.setattr(processes, "_PROC", False)
        monkeypatch.setattr(processes, "_SAME", 1.5)
        try:
            process_started(os.getpid())
        except (ProcessLookupError, FileNotFoundError):
            pytest.skip("no ps on this machine")


def test_alive_zombie_gone(way: None, sleeper: subprocess.Popen[bytes]) -> None:
    started = process_started(sleeper.pid)
    assert process_alive(sleeper.pid, started)
    assert not process_alive(sleeper.pid, started - 100.0)  # somebody else had that id before
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not process_alive(sleeper.pid, started)  # a zombie
    sleeper.wait()
    assert not process_alive(sleeper.pid, started)
    with pytest.raises(ProcessLookupError, match=str(sleeper.pid)):
        process_started(sleeper.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 5])
def test_ids_that_name_nobody(pid: int) -> None:
    assert not process_alive(pid, 0.0)


def test_watch(way: None, sleeper: subprocess.Popen[bytes]) -> None:
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    started = process_started(sleeper.pid)
    watch_exit(sleeper.pid, started, ends.put)
    assert ends.empty()
    sleeper.kill()
    assert ends.get(timeout=SOON) == sleeper.pid


def test_watch_of_one_that_ended_before(way: None, sleeper: subprocess.Popen[bytes]) -> None:
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    watch = watch_exit(sleeper.pid, process_started(sleeper.pid) - 100.0, ends.put)
    assert ends.get(timeout=SOON) == sleeper.pid
    watch.cancel()


def test_cancelled_watch_says_nothing_and_leaves_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    watch = watch_exit(sleeper.pid, process_started(sleeper.pid), ends.put)
    watch.cancel()
    watch.cancel()
    watch.join(SOON)
    sleeper.kill()
    sleeper.wait()
    assert ends.empty()
