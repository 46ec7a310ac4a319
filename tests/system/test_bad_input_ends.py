"""Bad input that keeps a system from starting, or ends it: named, bounded, and nothing old is lost."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutline
from cutline.errors import (
    CheckpointAborted,
    NewerFormat,
    ParticipantFailed,
    PortInUse,
    StoreInUse,
    StoreNotWritable,
    SystemHalted,
)
from cutline.storage import open_store
from tests.system.actors import Bulky, Counter, Deadly, Faulty, Putter, Retrying
from tests.system.living import Program, again, kill, recoveries, small_disk, until


def newest(folder: Path) -> int:
    rows = open_store(str(folder), create=False).catalog.checkpoints("default")
    return rows[-1].checkpoint if rows else 0


# -- what keeps it from starting -----------------------------------------------------------------------


def test_a_folder_in_use_names_the_process(tmp_path: Path) -> None:
    with Program("held.py", STORE=str(tmp_path / "s")) as first:
        pid = first.read_until("up").split()[0]
        with Program("held.py", STORE=str(tmp_path / "s")) as second:
            assert second.end() == 1
            assert "StoreInUse" in second.text and pid in second.text
        with pytest.raises(StoreInUse, match=pid):
            cutline.start(tmp_path / "s", quiet=True)
        first.process.communicate(timeout=30)
        assert first.process.returncode == 0
    # It is free again, and holds what the first one did.
    with cutline.start(tmp_path / "s", interval=None, quiet=True) as system:
        assert system.spawn("counter", Counter).add.remote(1).result() == 2


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    with cutline.start(tmp_path / "s", interval=None, quiet=True):
        pass
    path = tmp_path / "s" / "cutline.json"
    doc = json.loads(path.read_text())
    number = next(key for key, value in doc.items() if value == 1)
    path.write_text(json.dumps({**doc, number: 99}))
    before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in (tmp_path / "s").iterdir())
    with pytest.raises(NewerFormat, match="99"):
        cutline.start(tmp_path / "s", quiet=True)
    assert before == sorted((entry.name, entry.stat().st_mtime_ns) for entry in (tmp_path / "s").iterdir())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(cutline.errors.StorageError, match=str(tmp_path / "file")):
        cutline.start(tmp_path / "file" / "store", quiet=True)


def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=8m,ro") as disk:
        with pytest.raises(StoreNotWritable, match="disk"):
            cutline.start(disk / "store", quiet=True)


def test_a_disk_that_is_full_costs_a_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=24m") as disk:
        with cutline.start(disk / "store", interval=None, quiet=True) as system:
            bulky = system.spawn("bulky", Bulky)
            sum_before = bulky.fill.remote(4_000_000, 1).result()
            kept = system.checkpoint()
            larger = bulky.fill.remote(40_000_000, 2).result()
            with pytest.raises(CheckpointAborted, match=r"bulky.*StoreFull|StoreFull.*bulky"):
                system.checkpoint()
            # It goes on, with its state, and what was committed is still there to come back to.
            assert bulky.checksum.remote().result() == larger
            kill(system, "bulky")
            assert again(lambda: bulky.fill.remote(3_000_000, 1).result()) > 0
            assert again(system.checkpoint) > kept
            assert sum_before > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; a read-only disk stands in above")
def test_a_folder_that_is_not_ours_to_write(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(StoreNotWritable, match="closed"):
        cutline.start(tmp_path / "closed" / "store", quiet=True)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=str(port)):
            cutline.start(tmp_path / "s", quiet=True, listen=f"127.0.0.1:{port}")
    with cutline.start(tmp_path / "s", interval=None, quiet=True, listen=f"127.0.0.1:{port}") as system:
        assert system.spawn("counter", Counter).add.remote(1).result() == 1


def test_a_class_that_is_missing_at_resume(tmp_path: Path) -> None:
    def run(name: str) -> tuple[int, str]:
        with Program("renamed.py", name, STORE=str(tmp_path)) as program:
            return program.end(), program.text

    assert run("Old") == (0, "sums 1 1")
    before = newest(tmp_path)
    status, text = run("New")
    assert status != 0
    # Both lack it; one is told of.
    last = text.strip().splitlines()[-1]
    assert last.startswith("cutline.errors.ClassMissing: participant '") and "__main__:Old" in last
    assert "'first'" in text or "'second'" in text
    assert "sums" not in text
    # What was there is intact, and the right program goes on from it.
    assert newest(tmp_path) == before
    assert run("Old") == (0, "sums 2 2")


# -- what ends it --------------------------------------------------------------------------------------


@pytest.fixture
def system(tmp_path: Path, mark: str) -> Iterator[cutline.System]:
    with cutline.start(tmp_path / "s", interval=None, quiet=True) as system:
        yield system


def halted(system: cutline.System) -> SystemHalted:
    """The error that everybody gets from now on."""

    def error() -> SystemHalted | None:
        try:
            again(system.status)
        except SystemHalted as fault:
            return fault
        return None

    found = until(error, "the system to halt", 60.0)
    assert found is not None
    return found


def test_a_told_handler_that_raises_halts(system: cutline.System, tmp_path: Path) -> None:
    faulty = system.spawn("faulty", Faulty)
    answer = faulty.add.remote(1)
    assert answer.result() == 2
    kept = system.checkpoint()
    faulty.explode.tell("boom")
    fault = halted(system)
    assert "faulty.explode raised RuntimeError: boom" in str(fault) and str(kept) in str(fault)
    assert "tests" in str(fault.__cause__.__cause__) if fault.__cause__ else False
    with pytest.raises(SystemHalted):
        faulty.add.remote(1)
    system.stop()
    # A halt leaves the checkpoints as they were; the input that raises is still in the log.
    assert newest(tmp_path / "s") == kept


def test_a_told_handler_that_raises_is_tried_again(system: cutline.System, tmp_path: Path) -> None:
    retrying = system.spawn("retrying", Retrying)
    retrying.fragile.tell(str(tmp_path / "tries"))
    assert until(lambda: again(lambda: retrying.count.remote().result()), "the third try") == 1
    assert len((tmp_path / "tries").read_text().split()) == 3
    retrying.explode.tell("for ever")
    assert "retrying.explode raised RuntimeError: for ever" in str(halted(system))


def test_a_told_handler_that_raises_leaves_a_dead_letter(system: cutline.System) -> None:
    putter = system.spawn("putter", Putter)
    for number in range(6):
        putter.put.tell(number)
    assert again(lambda: putter.all.remote().result()) == [0, 2, 4]
    assert again(system.checkpoint) > 0


def test_a_participant_that_exits_by_itself(system: cutline.System) -> None:
    leaver = system.spawn("leaver", Deadly)
    leaver.leave.tell(3)
    fault = halted(system)
    assert "'leaver'" in str(fault) and "exit status 3" in str(fault)
    assert isinstance(fault.__cause__, ParticipantFailed)


def test_a_message_that_kills_its_process_every_time(system: cutline.System) -> None:
    deadly = system.spawn("deadly", Deadly)
    kept = system.checkpoint()
    answer = deadly.die.remote()
    with pytest.raises(SystemHalted, match=r"message \d+ from 'driver' has ended the process of 'deadly'"):
        again(lambda: answer.result(timeout=60))
    assert len(recoveries(system)) == 4
    assert system.store.catalog.checkpoints("default")[-1].checkpoint == kept
