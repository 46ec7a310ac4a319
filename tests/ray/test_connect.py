"""A program leaves its system, which goes on; another one takes it up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutline.storage import open_store
from tests.ray.sessions import Session, back_at_work, outlasting_cluster, participants
from tests.system.living import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that outlives programs."""
    with outlasting_cluster() as one:
        yield one


def committed(folder: Path) -> int:
    """The newest checkpoint."""
    with open_store(str(folder), create=False) as store:
        return max(row.checkpoint for row in store.catalog.checkpoints("session"))


def test_a_second_program_finds_what_the_first_left(address: str, tmp_path: Path) -> None:
    with Session(address) as first:
        first.do(f"s.start({str(tmp_path)!r}, interval=0.3)")
        first.run("[s.system.spawn(name, Note) for name in ('one', 'two')]")
        assert first.do("[s.one.keep.remote(k).result() for k in range(3)]") == [1, 2, 3]
        first.run("s.one.keep.tell('told')")
        # Answers that are still to come wait for whoever is the next driver.
        first.run("s.two.keep.remote(s.one.keep_later.remote(1.0, 'later')).result()")
        left = first.do("s.system.detach()")
        assert "SystemStopped this program has left system 'session'" in first.fails("s.one.all.remote()")
        first.end_in_order()
    until(lambda: committed(tmp_path) >= left + 3, "checkpoints without a program")
    pids = {name: seat["pid"] for name, seat in participants(tmp_path).items()}
    assert participants(tmp_path)["driver"]["phase"] == "parked"
    os.kill(pids["one"], signal.SIGKILL)
    pids["one"] = back_at_work(tmp_path, "one", pids["one"])
    now = committed(tmp_path)
    until(lambda: committed(tmp_path) > now, "a checkpoint after a loss without a program")
    with Session(address) as second:
        second.do("s.connect()")
        assert participants(tmp_path)["driver"]["pid"] == second.process.pid
        assert second.do("s.one.all.remote().result()")[:4] == [0, 1, 2, "told"]
        # The first program's question is answered to the second one, which has its Ref out of a state.
        assert second.do("s.two.all.remote().result()[0].result()") == 5
        assert second.do("s.one.all.remote().result()") == [0, 1, 2, "told", "later"]
        assert second.do("s.two.keep.remote('by the second').result()") == 2
        assert second.do("s.system.savepoint('visited')") == committed(tmp_path)
        second.run("s.system.spawn('three', Note)")
        second.end_in_order()
    # A visit ends with the program, the system does not.
    until(lambda: participants(tmp_path)["driver"]["phase"] == "parked", "the end of the visit")
    assert set(participants(tmp_path)) == {"driver", "one", "two", "three"}
    with Session(address) as third:
        third.do("s.connect()")
        assert third.do("s.two.all.remote().result()[1]") == "by the second"
        third.run("s.system.stop()")
        assert "NotRunning no system 'session' is known to this Ray cluster" in third.fails("s.connect()")
    assert participants(tmp_path) == {}


def test_a_killed_program_is_replaced_by_one_that_connects(address: str, tmp_path: Path) -> None:
    with Session(address) as first:
        first.do(f"s.start({str(tmp_path)!r}, driver_grace=300.0)")
        first.run("s.system.spawn('one', Note)")
        first.run("s.system.checkpoint()")
        # These are in the log and in no checkpoint.
        assert first.do("[s.one.keep.remote(k).result() for k in range(3)]") == [1, 2, 3]
        with Session(address) as second:
            refused = second.fails("s.connect()")
            assert refused.startswith("DriverConnected") and f"process {first.process.pid}" in refused
            first.send(signal.SIGSTOP)
            # Its connection stands as long as it lives: it is the driver, however still it is.
            assert f"process {first.process.pid}" in second.fails("s.connect()")
            first.send(signal.SIGCONT)
            first.send(signal.SIGKILL)
            first.process.wait(10)
            second.run("s.connect()")
            assert second.do("s.one.all.remote().result()") == [0, 1, 2]
            assert second.do("s.one.keep.remote(3).result()") == 4
            second.run("s.system.stop()")


def test_where_nobody_can_connect_or_leave(address: str, tmp_path: Path) -> None:
    with Session(address) as one:
        one.run("__import__('ray').init(log_to_driver=False)")
        assert "NotRunning no system 'nobody' is known" in one.fails("s.connect('nobody')")
        text = one.fails(f"s.connect('nobody', storage={str(tmp_path)!r})")
        assert "cutline.start(" in text and str(tmp_path) in text
    with Session("") as alone:
        assert "NotRunning this program is connected to no Ray cluster" in alone.fails("s.connect()")
        alone.do(f"s.start({str(tmp_path)!r})")
        assert "Misuse system 'session' cannot go on without this program: this program has started" in (
            alone.fails("s.system.detach()")
        )
        # It is the driver as before.
        alone.run("s.system.spawn('one', Note)")
        assert alone.do("s.one.keep.remote(1).result()") == 1
