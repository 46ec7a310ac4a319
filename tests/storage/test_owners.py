"""Who is dead: only what surely is."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutline.errors import StoreInUse
from cutline.storage import Owner, SqliteCatalog
from cutline.storage.owners import host_name, is_dead, process_start
from tests.storage.cast import KEY


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def owner_of(pid: int) -> Owner:
    started = process_start(pid)
    assert started is not None
    return Owner(host_name(), pid, started, os.getpid(), "sleeps")


def test_this_process_lives() -> None:
    me = Owner.here("tests")
    assert (me.pid, me.host) == (os.getpid(), host_name())
    assert not is_dead(me)
    assert Owner.from_doc(me.to_doc()) == me
    assert str(os.getpid()) in str(me) and "tests" in str(me)


def test_a_killed_process_is_dead_before_it_is_buried(sleeper: subprocess.Popen[bytes]) -> None:
    owner = owner_of(sleeper.pid)
    assert not is_dead(owner)
    sleeper.kill()
    # Until the kernel has ended it, and without waiting for it, which would bury it.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(sleeper.pid) is None
    assert is_dead(owner)
    end(sleeper)
    assert is_dead(owner)


def test_a_number_used_again_is_somebody_else(sleeper: subprocess.Popen[bytes]) -> None:
    owner = owner_of(sleeper.pid)
    assert is_dead(dataclasses.replace(owner, started=owner.started - 10))
    end(sleeper)


def test_a_start_by_the_wall_clock_is_never_taken_for_dead(sleeper: subprocess.Popen[bytes]) -> None:
    owner = dataclasses.replace(owner_of(sleeper.pid), started=time.time())
    assert not is_dead(owner)
    end(sleeper)
    assert is_dead(owner)


def test_a_plain_host_name_counts_as_this_machine(sleeper: subprocess.Popen[bytes]) -> None:
    owner = dataclasses.replace(owner_of(sleeper.pid), host=socket.gethostname())
    end(sleeper)
    assert is_dead(owner)


def test_another_machine_cannot_be_judged(sleeper: subprocess.Popen[bytes]) -> None:
    owner = dataclasses.replace(owner_of(sleeper.pid), host=f"{socket.gethostname()}/another boot")
    end(sleeper)
    assert not is_dead(owner)


def test_the_lease_of_the_dead_is_free_at_once(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    catalog = SqliteCatalog.create(tmp_path / "c.sqlite", "id", KEY)
    first = catalog.acquire_lease("s", owner_of(sleeper.pid), 1e9, 0.0)
    with pytest.raises(StoreInUse, match=f"process {sleeper.pid} on .*sleeps"):
        catalog.acquire_lease("s", Owner.here("heir"), 1e9, 0.0)
    end(sleeper)
    assert catalog.acquire_lease("s", Owner.here("heir"), 1e9, 0.0).token == first.token + 1
    catalog.close()


def test_a_name_with_brackets_is_read_right(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    script = tmp_path / "a) Z 1 (b"
    script.write_text("#!/bin/sh\nread x\n")
    script.chmod(0o755)
    process = subprocess.Popen([str(script)], stdin=subprocess.PIPE)
    started, mine = process_start(process.pid), process_start(os.getpid())
    assert started is not None and mine is not None and started >= mine
    end(process)
