"""Starting processes: what a child finds, how its end is told, who survives whom."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutline.errors import SpawnFailed
from cutline.participant.processes import process_alive, process_started, watch_exit
from cutline.participant.zygote import ChildExited, Zygote

SOON = 30.0
ENTRIES = "tests.participant.entries"
ROOT = str(Path(__file__).parents[2])


class Starter:
    def __init__(self, **options: Any) -> None:
        self.exits: queue.SimpleQueue[ChildExited] = queue.SimpleQueue()
        self.zygote = Zygote(self.exits.put, **options)

    def start(self, entry: str, spec: bytes = b"", **options: Any) -> int:
        return self.zygote.start(f"{ENTRIES}:{entry}", spec, path=[ROOT, *sys.path], **options)

    def end(self) -> ChildExited:
        return self.exits.get(timeout=SOON)


MakeStarter = Callable[..., Starter]


@pytest.fixture
def make_starter() -> Iterator[MakeStarter]:
    made: list[Starter] = []

    def make(**options: Any) -> Starter:
        made.append(Starter(**options))
        return made[-1]

    yield make
    for starter in made:
        starter.zygote.close()


def wait_for(file: Path) -> str:
    deadline = time.monotonic() + SOON
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return file.read_text()


@pytest.mark.parametrize("fork", [True, False])
def test_what_a_child_finds(make_starter: MakeStarter, tmp_path: Path, fork: bool) -> None:
    starter = make_starter(fork=fork, env={"PYTHONHASHSEED": "77", "CUTLINE_TEST_GONE": "zygote only"})
    reports = []
    for name in ("first", "second"):
        pid = starter.start(
            "report",
            str(tmp_path / name).encode(),
            env={"COLOUR": "grün \udcff"},
            name=name,
            argv=["script.py", "--flag"],
            cwd=str(tmp_path),
        )
        assert starter.end() == ChildExited(pid, 0, name)
        reports.append(json.loads(wait_for(tmp_path / name)))
        assert reports[-1]["pid"] == pid
    first, second = reports
    assert first["argv"] == ["script.py", "--flag"] and first["cwd"] == str(tmp_path)
    assert first["path"][0] == ROOT
    assert first["colour"] == "grün \udcff" and first["secret"] is None
    assert first["session"] == first["pid"]
    assert first["main"] == [] and first["input"] == ""
    assert first["signals"] == {"SIGTERM": True, "SIGCHLD": True}
    assert [number for number in first["descriptors"] if number > 3] == []  # 3 is the listing itself
    assert first["hash"] == second["hash"]
    assert not set(first["draws"]) & set(second["draws"])


def test_ends_are_told_with_their_status(make_starter: MakeStarter, tmp_path: Path) -> None:
    starter = make_starter()
    assert starter.zygote.pid is None
    starter.zygote.warm()
    assert starter.zygote.pid
    pid = starter.start("leave", b"7", name="leaver")
    assert starter.end() == ChildExited(pid, 7, "leaver")
    pid = starter.start("boom", b"printed by the child", name="bomb")
    assert starter.end() == ChildExited(pid, 1, "bomb")
    pid = starter.start("sleep", str(tmp_path / "pid").encode(), name="sleeper")
    wait_for(tmp_path / "pid")
    os.kill(pid, signal.SIGKILL)
    assert starter.end() == ChildExited(pid, -signal.SIGKILL, "sleeper")
    pid = starter.start("nothing_of_that_name")
    assert starter.end() == ChildExited(pid, 1, "")


def test_grpc_serves_in_forked_children(make_starter: MakeStarter) -> None:
    starter = make_starter()
    names = [f"p{number}" for number in range(8)]
    expected = {ChildExited(starter.start("grpc_pair", b"payload", name=name), 0, name) for name in names}
    assert {starter.end() for _ in names} == expected


def test_starts_from_many_threads(make_starter: MakeStarter) -> None:
    starter = make_starter()
    threads = [
        threading.Thread(target=starter.start, args=("leave", b"%d" % number), kwargs={"name": str(number)})
        for number in range(10)
    ]
    for thread in threads:
        thread.start()
    ends = [starter.end() for _ in threads]
    assert sorted(ends, key=lambda end: int(end.name)) == [
        ChildExited(end.pid, int(end.name), end.name) for end in sorted(ends, key=lambda end: int(end.name))
    ]
    for thread in threads:
        thread.join()


def test_what_cannot_be_imported_ahead_is_told(make_starter: MakeStarter) -> None:
    starter = make_starter(preload=("json", "no_such_module_anywhere"))
    starter.start("leave", b"0")
    assert starter.end().status == 0
    assert list(starter.zygote.skipped) == ["no_such_module_anywhere"]


def test_children_outlive_the_zygote_and_a_new_one_begins(make_starter: MakeStarter, tmp_path: Path) -> None:
    starter = make_starter()
    pid = starter.start("sleep", str(tmp_path / "pid").encode(), name="sleeper")
    wait_for(tmp_path / "pid")
    first = starter.zygote.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    while starter.zygote.pid == first:
        time.sleep(0.005)
    started = process_started(pid)
    again = starter.start("leave", b"3", name="again")
    assert starter.end() == ChildExited(again, 3, "again")
    assert process_alive(pid, started)
    os.kill(pid, signal.SIGKILL)
    assert starter.end() == ChildExited(pid, None, "sleeper")


def test_closed(make_starter: MakeStarter, tmp_path: Path) -> None:
    starter = make_starter()
    pid = starter.start("sleep", str(tmp_path / "pid").encode())
    wait_for(tmp_path / "pid")
    starter.zygote.close()
    starter.zygote.close()
    assert process_alive(pid, process_started(pid))
    with pytest.raises(SpawnFailed, match="closed"):
        starter.start("leave")
    os.kill(pid, signal.SIGKILL)


COORDINATOR = """
import sys, time
from cutline.participant.zygote import Zygote
zygote = Zygote(print)
zygote.start("tests.participant.entries:sleep", sys.argv[1].encode(), name="survivor")
print(zygote.pid, flush=True)
time.sleep(600)
"""


def test_sigkill_of_the_coordinator(tmp_path: Path) -> None:
    coordinator = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, str(tmp_path / "pid")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert coordinator.stdout is not None
    zygote = int(coordinator.stdout.readline())
    zygote_started = process_started(zygote)
    survivor = int(wait_for(tmp_path / "pid"))
    started = process_started(survivor)
    coordinator.kill()
    coordinator.wait()
    coordinator.stdout.close()
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    watch_exit(zygote, zygote_started, ends.put)
    assert ends.get(timeout=SOON) == zygote
    assert process_alive(survivor, started)
    watch_exit(survivor, started, ends.put)
    os.kill(survivor, signal.SIGTERM)
    assert ends.get(timeout=SOON) == survivor
    assert not process_alive(survivor, started)
