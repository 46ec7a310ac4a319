"""A checkpoint is read without its system: instances, calls, messages; `cutline show` of a state."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutline
from cutline.errors import (
    CheckpointNotFound,
    ClassNotAllowed,
    Corrupt,
    ForeignStore,
    Misuse,
    NewerFormat,
    NotAStore,
    OutsideHandler,
    UnknownParticipant,
)
from cutline.participant.allowing import is_restricted
from cutline.storage import open_store
from tests.coordinator.test_cli_store import asked, flip, own_pack, run
from tests.system.estate import Book, Estate, Mood, Sleeper, Trader, make_estate

NAME = "estate"


@pytest.fixture(scope="module")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Estate:
    return make_estate(tmp_path_factory.mktemp("reading") / "store")


@pytest.fixture
def copied(estate: Estate, tmp_path: Path) -> Path:
    return Path(shutil.copytree(estate.folder, tmp_path / "store"))


def load(estate: Estate, point: str | int = "early", **options: Any) -> cutline.Cut:
    return cutline.load(point, estate.folder, name=NAME, **options)


def test_states_are_plain_instances(estate: Estate) -> None:
    cut = load(estate)
    assert list(cut) == ["other", "s", "t0", "t1"] and len(cut) == 4 and "driver" not in cut
    t0, t1 = cut["t0"], cut["t1"]
    assert isinstance(t0, Trader) and (t0.cash, t1.cash) == (0, 100) and t0.mood is Mood.CALM
    assert t0.same is t0.book and t0.book.owner is t0 and np.shares_memory(t0.tail, t0.prices)
    assert t0.prices[-1] == 99_999 and t0.seen == {"a", "b"}
    # It works, as in a unit test; what belongs to a process is made when it is used.
    assert t0.earn(5) == 5 and t0.lock.acquire(blocking=False)
    assert load(estate)["t0"].cash == 0
    assert cut.driver is not None and cut.driver.class_name.endswith(":DriverState")
    assert (cut.system, cut.label, cut.checkpoint) == (NAME, "early", 2)


def test_a_point_has_many_spellings(estate: Estate) -> None:
    cut = load(estate)
    for point in (2, "2", f"{cut.lineage}/2", cut.hash, cut.hash[:8]):
        assert load(estate, point, only=[]).hash == cut.hash
    assert load(estate, "newest", only=[]).checkpoint > 2
    assert "checkpoint 2 'early'" in repr(cut)
    assert asked("show", cut.hash[:12], "-s", estate.folder, "-n", NAME)["id"] == 2
    with pytest.raises(CheckpointNotFound, match="no checkpoint 'late'.*'early'"):
        load(estate, "late")
    with pytest.raises(NotAStore):
        cutline.load("early", estate.folder / "elsewhere")


def test_some_participants_alone(estate: Estate) -> None:
    cut = load(estate, only=["t1"])
    assert list(cut) == ["t1"] and cut.driver is None
    with pytest.raises(UnknownParticipant, match="was not loaded: name it in only"):
        cut["t0"]
    with pytest.raises(UnknownParticipant, match="no participant 'to'.*did you mean 't[01]'"):
        load(estate)["to"]
    with pytest.raises(UnknownParticipant, match="did you mean 'other'"):
        load(estate, only=["t0", "othr"])
    with pytest.raises(Misuse, match=r"only=\['t0'\]"):
        load(estate, only="t0")
    assert load(estate).get("nobody") is None


def test_messages_in_flight_are_values(estate: Estate) -> None:
    for point in ("early", "newest"):
        cut = load(estate, point)
        facts = asked("show", point, "-s", estate.folder, "-n", NAME)
        everybody = [*cut.participants.values(), *([cut.driver] if cut.driver else [])]
        assert sum(len(each.pending) for each in everybody) == facts["in_flight_messages"]
        assert {each.name: each.handled for each in everybody} == facts["handled"]
        told = [message for message in cut.participants["t0"].pending if message.method == "earn"]
        # Whoever had handled how many: none is lost, none is counted twice.
        earned = cut["t0"].cash
        assert [message.arguments()[0][1].orders["n"] for message in told] == [
            *range(earned, earned + len(told))
        ]
        assert all(isinstance(message.arguments()[0][1], Book) for message in told)
        assert point == "early" or earned + len(told) == estate.tells
        alone = load(estate, point, only=["t0"]).participants["t0"]
        assert [str(each) for each in alone.pending] == [str(each) for each in cut.participants["t0"].pending]


def test_calls_are_values(estate: Estate) -> None:
    cut = load(estate, "newest")
    asleep = cut.participants["s"]
    waiting = {call.method: call for call in asleep.suspended}
    begun = [message.method for message in asleep.pending]
    assert sorted([*(call.method for call in asleep.suspended), *begun]) == ["rest", "rest", "wait_for"]
    if call := waiting.get("wait_for"):
        (other,), named = call.arguments()
        assert other == cutline.Handle("other") and not named
        (number,) = call.waits_for
        assert [each.target for each in asleep.questions if each.number == number] == ["other"]
    assert [each.target for each in cut.participants["t0"].questions] == ["s"]
    assert isinstance(cut["s"], Sleeper) and cut["s"].slept == 0


def test_nobody_can_be_called(estate: Estate) -> None:
    t0 = load(estate)["t0"]
    assert t0.peers[1] == cutline.Handle("t0")
    calls: list[Callable[[], Any]] = [
        lambda: t0.peers[0].rest.remote(1),
        lambda: t0.peers[0].rest.tell(1),
        lambda: t0.peers[0].no_such_method.remote(),
        lambda: t0.asked.result(),
        lambda: t0.asked.then(t0.earn),
    ]
    for call in calls:
        with pytest.raises(OutsideHandler, match="'t0' was loaded from checkpoint 2 'early'.*cutline.start"):
            call()


def test_nothing_is_written_and_no_lease_taken(estate: Estate) -> None:
    with open_store(estate.folder, create=False) as store:
        before = store.catalog.lease_holder(NAME), store.catalog.generation(), estate.hashes()
    load(estate)
    run("show", "early", "-s", estate.folder, "-n", NAME, "-p", "t0")
    with open_store(estate.folder, create=False) as store:
        assert (store.catalog.lease_holder(NAME), store.catalog.generation(), estate.hashes()) == before


def test_only_what_is_allowed(estate: Estate) -> None:
    with pytest.raises(ClassNotAllowed, match="tests.system.estate:Trader"):
        load(estate, only=["t0"], allow=["numpy"])
    allowed = load(estate, "newest", allow=["numpy", "tests.system.estate", "cutline"])
    assert allowed["t1"].cash == 100 and not is_restricted()
    for message in allowed.participants["t0"].pending:
        message.arguments()


def test_a_store_whose_key_is_not_here(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLINE_HOME", str(tmp_path / "nobody's"))
    with pytest.raises(ForeignStore, match="nothing of it is unpickled.*trust=True"):
        cutline.load("early", copied, name=NAME)
    assert "--trust" in run("show", "early", "-s", copied, "-n", NAME, "-p", "t0", status=1)
    assert cutline.load("early", copied, name=NAME, trust=True)["t1"].cash == 100
    found = run("show", "early", "-s", copied, "-n", NAME, "-p", "t0", "--trust")
    assert "tests.system.estate:Trader" in found


def test_damage_is_named(copied: Path) -> None:
    with open_store(copied, create=False) as store:
        row = store.catalog.find(NAME, "early")
    pack = own_pack(copied, row, "t1")
    flip(pack)
    with pytest.raises(Corrupt, match=pack.name):
        cutline.load("early", copied, name=NAME)
    assert cutline.load("early", copied, name=NAME, only=["t0"])["t0"].cash == 0
    assert pack.name in run("show", "early", "-s", copied, "-n", NAME, "-p", "t1", status=1)
    marker = copied / "cutline.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": 99}))
    with pytest.raises(NewerFormat, match="format 99"):
        cutline.load("early", copied, name=NAME)


def test_a_state_is_shown_where_its_module_is_not(estate: Estate, tmp_path: Path) -> None:
    def shown(*preparing: str) -> Any:
        program = "; ".join((*preparing, "from cutline.coordinator.cli import main", "main()"))
        arguments = ["show", "early", "-s", str(estate.folder), "-n", NAME, "-p", "t0", "--json"]
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    doc = shown()
    assert (doc["class"], doc["participant"], doc["label"]) == ("tests.system.estate:Trader", "t0", "early")
    state = doc["state"]["attributes"]
    calm = {"type": "str", "value": "CALM"}
    assert state["mood"] == {"type": "tests.system.estate:Mood", "arguments": [calm]}
    assert state["log"]["more"] == 1980 and state["same"]["same_as"] == state["book"]["id"]
    assert state["prices"] == {
        "type": "numpy:ndarray",
        "shape": [100000],
        "dtype": "float64",
        "bytes": 800000,
    }
    assert doc["attribute_bytes"]["log"] > 5000 and doc["array_bytes"] >= 1_100_000
    # Where the module is, it makes no difference.
    root = str(Path(__file__).parents[2])
    assert shown("import sys", f"sys.path.insert(0, {root!r})", "import tests.system.estate") == doc


def test_a_tree_for_people(estate: Estate) -> None:
    text = run("show", "early", "-s", estate.folder, "-n", NAME, "-p", "t0", "--width", "14")
    assert "… 1,986 more" in text and "float64" in text and "<Handle s>" in text and "= *" in text
    text = run("show", "newest", "-s", estate.folder, "-n", NAME, "-p", "s")
    assert "slept" in text and "wait_for" in text
    assert "did you mean 't1'" in run("show", "early", "-s", estate.folder, "-n", NAME, "-p", "t1_", status=1)


def test_the_manifest_as_json(estate: Estate) -> None:
    doc = json.loads(run("manifest", "early", "-s", estate.folder, "-n", NAME))
    with open_store(estate.folder, create=False) as store:
        found = store.read_manifest(store.catalog.find(NAME, "early"))
    assert doc["digest"] == found.id.hex() == load(estate, only=[]).hash
    assert set(doc["images"]) == {"driver", "other", "s", "t0", "t1"}
    image = found.images["t0"]
    assert doc["images"]["t0"] == {
        "birth": image.birth,
        "image": {**image.ref.to_doc(), "digest": image.ref.digest.hex()},
    }
    assert (doc["label"], doc["checkpoint"], doc["format"]) == ("early", 2, 1)
