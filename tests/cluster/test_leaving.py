"""What goes wrong while a system has no program, or its program is killed; on a cluster of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutline.participant.endpoint_file import read_endpoint
from tests.ray.sessions import Session, ask, back_at_work, outlasting_cluster, participants
from tests.system.living import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The cluster."""
    with outlasting_cluster() as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The storage folder; what still runs from it at the end is stopped."""
    yield tmp_path
    if participants(tmp_path):
        ask(tmp_path, "stop")


def leave(address: str, folder: Path, *lines: str, **how: object) -> None:
    """A first program with two participants, which does this and leaves."""
    options = "".join(f", {name}={value!r}" for name, value in how.items())
    with Session(address) as first:
        first.do(f"s.start({str(folder)!r}{options})")
        first.run("[s.system.spawn(name, Note) for name in ('one', 'two')]")
        first.do("s.one.keep.remote('first').result()")
        for line in lines:
            first.run(line)
        first.do("s.system.detach()")
        first.end_in_order()


def kill_coordinator(folder: Path) -> None:
    """Ends the process of the coordinator's actor."""
    endpoint = read_endpoint(folder, "session")
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)


def test_a_coordinator_that_is_lost_while_nobody_is_there(address: str, folder: Path) -> None:
    leave(address, folder, interval=0.3)
    kill_coordinator(folder)
    with Session(address) as second:

        def refused() -> bool:
            text = second.fails("s.connect()")
            assert text.startswith("NotRunning") and "cutline.start(" in text, text
            return "coordinator is gone" in text

        until(refused, "an error that says what happened")
        assert second.do(f"s.start({str(folder)!r})") > 0
        assert second.do("s.one.all.remote().result()") == ["first"]
        second.run("s.system.stop()")


def test_a_killed_visitor_is_done_without(address: str, folder: Path) -> None:
    leave(address, folder)
    with Session(address) as second:
        second.do("s.connect()")
        second.do("s.system.checkpoint()")
        # In the log, and in no checkpoint: it happens when the next program comes.
        assert second.do("s.one.keep.remote('second').result()") == 2
        second.run("s.system.spawn('three', Note)")
        second.run("s.three.keep.remote('third').result()")
        second.send(signal.SIGKILL)
        second.process.wait(10)
    phases = {"driver": "parked", "one": "running", "two": "running"}
    until(
        lambda: {name: seat["phase"] for name, seat in participants(folder).items()} == phases,
        "the system to go on without it",
        timeout=60.0,
    )
    ask(folder, "checkpoint")
    pid = participants(folder)["one"]["pid"]
    os.kill(pid, signal.SIGKILL)
    back_at_work(folder, "one", pid)
    with Session(address) as third:
        third.do("s.connect()")
        assert third.do("s.one.all.remote().result()") == ["first", "second"]
        assert third.do("s.three.all.remote().result()") == ["third"]
        third.run("s.system.stop()")


def test_a_program_that_is_killed_without_having_left(address: str, folder: Path) -> None:
    with Session(address) as first:
        first.do(f"s.start({str(folder)!r}, driver_grace=1.0)")
        first.run("s.system.spawn('one', Note)")
        first.do("s.one.keep.remote('first').result()")
        first.send(signal.SIGKILL)
        first.process.wait(10)
    until(lambda: read_endpoint(folder, "session") is None, "the end of the grace", timeout=60.0)
    with Session(address) as second:
        second.run("__import__('ray').init(log_to_driver=False)")
        assert "NotRunning no system 'session' is known" in second.fails("s.connect()")
        text = second.fails(f"s.connect(storage={str(folder)!r})")
        assert "cutline.start(" in text
        assert second.do(f"s.start({str(folder)!r})") > 0
        assert second.do("s.one.all.remote().result()") == ["first"]
        second.run("s.system.stop()")


def test_a_system_that_halts_while_nobody_is_there(address: str, folder: Path) -> None:
    leave(address, folder, "s.one.fail_later.tell(1.0)")
    until(lambda: ask(folder, "status")["halted"], "the halt", timeout=60.0)
    with Session(address) as second:
        text = second.fails("s.connect()")
        assert text.startswith("SystemHalted") and "nothing to be done" in text and "cutline.start" in text
        # Its program, run again, takes over what stands still.
        assert second.do(f"s.start({str(folder)!r})") > 0
        second.run("s.system.stop(checkpoint=False)")


def test_a_visitor_whose_coordinator_is_lost(address: str, folder: Path) -> None:
    leave(address, folder)
    with Session(address) as second:
        second.do("s.connect()")
        kill_coordinator(folder)
        assert second.do("s.one.keep.remote('second').result()") == 2
        until(lambda: len(participants(folder)) == 3, "another coordinator", timeout=60.0)
        assert second.do("len(s.system.coordinator_deaths)") == 1
        assert second.do("s.system.detach()") > 0
        second.end_in_order()
    # The new one's process is nobody's child, and goes on like the first.
    assert ask(folder, "checkpoint")["checkpoint"] > 0
    with Session(address) as third:
        third.do("s.connect()")
        assert third.do("s.one.all.remote().result()") == ["first", "second"]
        third.run("s.system.stop()")


def test_what_cannot_be_left_yet(address: str, folder: Path) -> None:
    with Session(address) as first:
        first.do(f"s.start({str(folder)!r})")
        first.run("s.system.spawn('one', Note)")
        # It takes nothing while it sleeps: the second message is on its way.
        first.run("[s.one.sleep.tell(4.0), __import__('time').sleep(1.0), s.one.keep.tell('x')]")
        text = first.fails("s.system.detach(timeout=0.5)")
        assert text.startswith("TimeoutError") and "one has not taken all that was sent to it" in text
        loop = "s.system.loop('l', 1, lambda step: s.system.detach())"
        assert "Misuse" in first.fails(loop) and "loop" in first.fails(loop)
        assert first.do("s.one.all.remote().result()") == ["x"]
        assert first.do("s.system.detach()") > 0
        assert "SystemStopped" in first.fails("s.system.detach()")
        first.run("s.system.stop()")
    assert set(participants(folder)) == {"driver", "one"}
