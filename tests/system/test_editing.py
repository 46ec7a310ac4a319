"""A checkpoint with changed states: a fork that resumes like any other; the one it came from stays."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import CannotCapture, CheckpointNotFound, ForeignStore, Misuse, RefusedOption, StoreInUse
from cutline.storage import Owner, open_store
from cutline.storage.repair import rebuild_catalog
from cutline.storage.retention import Policy
from cutline.storage.tending import gc
from tests.coordinator.test_cli_store import asked, run
from tests.system.dying import dying_before_adoption
from tests.system.estate import Estate, Trader, make_estate

NAME = "estate"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Estate:
    return make_estate(tmp_path_factory.mktemp("editing") / "store", tells=3)


@pytest.fixture
def estate(made: Estate, tmp_path: Path) -> Estate:
    return Estate(Path(shutil.copytree(made.folder, tmp_path / "store")), made.tells)


def load(estate: Estate, point: str = "early", **options: Any) -> cutline.Cut:
    return cutline.load(point, estate.folder, name=NAME, **options)


def everything(estate: Estate) -> Any:
    """All that an edit could change: blobs, lineages, rows."""
    with open_store(estate.folder, create=False) as store:
        return estate.hashes(), store.catalog.lineages(NAME), store.catalog.checkpoints(NAME)


def rich(trader: Trader) -> None:
    """For --function."""
    trader.prices[7] = -1.0
    trader.log.append("edited")  # type: ignore[arg-type]


def poor(cut: cutline.Cut) -> None:
    """For --function without --participant."""
    for name in ("t0", "t1"):
        cut[name].cash = -1


def told(trader: Trader) -> int:
    """For --function: returns what it should not."""
    return trader.cash


def test_a_fork_resumes_and_its_origin_stays(estate: Estate) -> None:
    before, lines, rows = everything(estate)
    cut = load(estate)
    cut["t0"].cash, cut["t0"].prices[3] = 1000, -5.0
    forked = cut.fork("what-if")
    assert forked.changed == ("t0",)
    after, lines_after, rows_after = everything(estate)
    assert {key: after[key] for key in before} == before
    # A pack, a manifest, a record.
    assert len(after) == len(before) + 3 and lines_after[:-1] == lines and rows_after[:-1] == rows
    assert lines_after[-1].origin == (cut.lineage, cut.checkpoint) and rows_after[-1].label == "what-if"
    assert load(estate, forked.point)["t0"].prices[3] == -5.0 and load(estate)["t0"].cash == 0
    assert asked("verify", "-s", estate.folder)[NAME]["faults"] == []
    # Opened as the newest; what was in flight is delivered, from s's suspended calls to t0's earnings.
    with cutline.start(estate.folder, name=NAME, interval=None, quiet=True) as system:
        t0, t1 = (system.spawn(name, Trader, 0) for name in ("t0", "t1"))
        assert cutline.get([t0.cash_now.remote(), t1.cash_now.remote()]) == [1000, 100]
        assert cutline.get(t0.earn.remote(1)) == 1001
    assert load(estate, "newest")["t0"].cash == 1001 and load(estate, "newest")["t0"].prices[3] == -5.0
    with cutline.start(estate.folder, name=NAME, interval=None, quiet=True, restore="early") as system:
        assert cutline.get(system.spawn("t0", Trader, 0).cash_now.remote()) == 0


def test_an_edit_of_an_edit(estate: Estate) -> None:
    cut = load(estate)
    for number in range(3):
        cut["t1"].cash = number
        cut = load(estate, cut.fork(f"edit {number}").point)
        cut["t1"].book.orders["o0"] = number
    assert [load(estate, f"edit {number}")["t1"].cash for number in range(3)] == [0, 1, 2]
    assert load(estate, "edit 2")["t1"].book.orders["o0"] == 1
    assert load(estate)["t1"].cash == 100


def test_a_map_is_edited(estate: Estate) -> None:
    cut = load(estate)
    cut["t0"].ledger[7] = "edited"
    del cut["t0"].ledger[8]
    forked = cut.fork()
    assert forked.changed == ("t0",)
    ledger = load(estate, forked.point)["t0"].ledger
    assert ledger[7] == "edited" and 8 not in ledger and len(ledger) == 499 and ledger[9] == "row 9"
    assert load(estate)["t0"].ledger[7] == "row 7"


def test_nothing_is_written_when_an_edit_fails(estate: Estate) -> None:
    before = everything(estate)
    cut = load(estate)
    with pytest.raises(Misuse, match="nothing of checkpoint 2 'early'.*was changed.*restore=2"):
        cut.fork()
    cut["t0"].cash = 1
    cut["t1"].book.orders["o1"] = threading.Lock()
    with pytest.raises(CannotCapture, match=r"'t1' cannot save self\.book\.orders\['o1'\]"):
        cut.fork()
    cut["t1"].book.orders["o1"] = 1
    with pytest.raises(RefusedOption, match="label"):
        cut.fork("12")
    assert everything(estate) == before


def test_a_running_system_is_not_edited(estate: Estate) -> None:
    cut = load(estate)
    cut["t0"].cash = 1
    with open_store(estate.folder, create=False) as store:
        owner = Owner.here("coordinator", os.getpid())
        lease = store.catalog.acquire_lease(NAME, owner, 60.0, time.time())
        before = everything(estate)
        with pytest.raises(StoreInUse):
            cut.fork()
        assert everything(estate) == before
        store.catalog.release_lease(lease)
    assert cut.fork().changed == ("t0",)


def test_an_edit_needs_the_key_and_the_checkpoint(
    estate: Estate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = load(estate, "newest")
    cut["t0"].cash = 1
    with monkeypatch.context() as patched:
        patched.setenv("CUTLINE_HOME", str(tmp_path / "nobody's"))
        with pytest.raises(ForeignStore):
            cut.fork()
    early = load(estate)
    early["t0"].cash = 1
    with open_store(estate.folder, create=False) as store:
        row = store.catalog.find(NAME, "early")
        lease = store.catalog.acquire_lease(NAME, Owner.here("test"), 60.0, time.time())
        store.catalog.unpin(lease, row.lineage, row.checkpoint, "early")
        store.catalog.release_lease(lease)
        gc(store, NAME, Policy(1), time.time())
    with pytest.raises(CheckpointNotFound):
        early.fork()


def test_retention_and_a_lost_catalog(estate: Estate) -> None:
    cut = load(estate, "newest")
    cut["t0"].cash = -7
    forked = cut.fork("kept")
    # The origin goes; what the fork needs of it stays.
    with open_store(estate.folder, create=False) as store:
        gc(store, NAME, Policy(1), time.time())
        assert store.verify(NAME).faults == []
    assert load(estate, forked.point)["t0"].cash == -7
    rebuild_catalog(str(estate.folder), force=True)
    found = load(estate, "kept")
    assert (found["t0"].cash, found["t1"].cash) == (-7, 100)
    with open_store(estate.folder, create=False) as store:
        assert store.catalog.lineages(NAME)[-1].origin == (cut.lineage, cut.checkpoint)


def test_what_an_edit_leaves_that_died_is_collected(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(estate)
    cut = load(estate)
    cut["t0"].cash = 1
    with dying_before_adoption(estate.folder, monkeypatch):
        cut.fork()
    left = estate.hashes().keys() - before[0].keys()
    assert len(left) == 2 and all("/edit-" in key for key in left)
    with open_store(estate.folder, create=False) as store:
        gc(store, NAME, Policy(10), time.time())
    assert everything(estate) == before


def test_edit_on_the_command_line(estate: Estate) -> None:
    place = ("-s", estate.folder, "-n", NAME)
    doc = asked("edit", "early", *place, "-p", "t0", "--set", "cash=77", "--set", 'book.orders["o1"]=5')
    assert doc["changed"] == ["t0"] and doc["label"] is None
    t0 = load(estate, doc["checkpoint"])["t0"]
    assert (t0.cash, t0.same.orders["o1"]) == (77, 5)
    module = "tests.system.test_editing"
    text = run("edit", "early", *place, "-p", "t1", "--function", f"{module}:rich", "--label", "rich")
    assert "changed: t1" in text.replace("\n", " ")
    assert load(estate, "rich")["t1"].prices[7] == -1.0 and load(estate, "rich")["t1"].log[-1] == "edited"
    doc = asked("edit", "rich", *place, "--function", f"{module}:poor")
    assert doc["changed"] == ["t0", "t1"] and load(estate, doc["checkpoint"])["t1"].cash == -1
    assert json.loads(run("show", doc["checkpoint"], *place, "--json"))["edited"]["participants"] == [
        "t0",
        "t1",
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["late", "-p", "t0", "--set", "cash=1"], 1, "no checkpoint 'late'"),
        (["early", "-p", "t9", "--set", "cash=1"], 1, "did you mean 't"),
        (["early", "-p", "t0", "--set", "csh=1"], 1, "did you mean 'cash'"),
        (["early", "-p", "t0", "--set", "cash=0"], 1, "nothing of checkpoint 2"),
        (["early", "-p", "t0", "--function", "tests.system.test_editing:nobody"], 1, "write MODULE:FUNCTION"),
        (["early", "-p", "t0", "--function", "tests.system.test_editing:told"], 1, "returned 0"),
        (["early", "-p", "t0"], 2, "--set"),
        (["early", "--set", "cash=1"], 2, "--participant"),
    ],
)
def test_edit_refuses(estate: Estate, arguments: list[str], status: int, said: str) -> None:
    before = everything(estate)
    assert said in run("edit", *arguments, "-s", estate.folder, "-n", NAME, status=status)
    assert everything(estate) == before
