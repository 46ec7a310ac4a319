"""Effects of running systems: results and errors, what nobody knows, forks, kills at some of the steps."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator.cli import app
from cutline.errors import EffectUnknown, Misuse, RemoteError, ResultNotStored, SystemHalted
from cutline.participant.effect_calls import RESULT_IN_ROW
from cutline.storage import open_store
from tests.effects.matrix import play, table
from tests.system import outside
from tests.system.living import again, comes_to, kill, pid_of, until
from tests.system.outside import Payer


def started(folder: Path, **options: Any) -> cutline.System:
    return cutline.start(folder / "store", interval=None, quiet=True, **options)


def rows(folder: Path) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["effects", "--json", "-s", str(folder / "store")])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.output)
    return found


def test_what_an_effect_returns_and_raises(tmp_path: Path, world: Path) -> None:
    with started(tmp_path) as system:
        payer = system.spawn("payer", Payer)
        assert payer.wait_for.remote("pay", 1).result(timeout=60) == 1
        assert payer.wait_for.remote("pay_slowly", 2).result(timeout=60) == 2
        assert len(payer.wait_for.remote("much", RESULT_IN_ROW).result(timeout=60)) == RESULT_IN_ROW
        assert payer.wait_for.remote("own", 3).result(timeout=60) == 3
        with pytest.raises(ValueError, match="refused"):
            payer.wait_for.remote("refuse", 4).result(timeout=60)
        with pytest.raises(ResultNotStored, match="has happened, and its result cannot be stored"):
            payer.wait_for.remote("unkeepable", 5).result(timeout=60)
        with pytest.raises(RemoteError, match="SystemExit"):
            payer.wait_for.remote("leave", 6).result(timeout=60)
        # Raises twice, then not: the same key each time.
        assert payer.wait_for.remote("stumble", 7).result(timeout=60) == 7
        payer.then.tell(8)
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [8], "the answer of a sync one")
        # The function sees no participant: only handlers send.
        with pytest.raises(Misuse, match="no handler runs here"):
            payer.wait_for.remote("ask_more", 9).result(timeout=60)
        # One that takes too long is unknown, and tried again under the same key.
        assert payer.wait_for.remote("slow_once", 1).result(timeout=60) == 1
        # Requests under one key, of whomever, are one.
        payers = [payer, system.spawn("other", Payer)]
        refs = [payer.together.remote("one order") for payer in payers for _ in range(4)]
        assert [ref.result(timeout=90) for ref in refs] == ["one order"] * 8
        with pytest.raises(Misuse, match="under which another function"):
            payers[0].together.remote("another order").result(timeout=60)
    lines = outside.lines(world)
    times = {
        word: [line for line in lines if line.startswith(f"{word} ")] for word in ("stumble", "slow_once")
    }
    assert {word: (len(found), len(set(found))) for word, found in times.items()} == {
        "stumble": (3, 1), "slow_once": (2, 1)
    }  # fmt: skip
    assert lines.count("order one order") == 1
    docs = rows(tmp_path)
    assert not any(doc["pending"] for doc in docs)
    assert {doc["state"] for doc in docs} == {"done", "error", "again", "unknown"}
    # Early checkpoints are not the ones that are kept.
    with open_store(tmp_path / "store", create=False) as store:
        kept = store.catalog.checkpoints("default")
    assert sum(bool(row.summary.get("early")) for row in kept) <= 2
    assert kept[0].checkpoint == 1 and not kept[-1].summary.get("early")


def test_a_lost_process_is_asked_about_and_a_recorded_result_is_used(tmp_path: Path, world: Path) -> None:
    with started(tmp_path) as system:
        payer = system.spawn("payer", Payer)
        # Recorded, delivered, and undone by the loss: delivered once more, not done again.
        payer.then.tell(1)
        until(lambda: outside.lines(world), "the first payment")
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [1], "its answer")
        kill(system, "payer")
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [1], "its answer once more")
        assert len(outside.lines(world)) == 1
        # Lost in the middle of the call, after the world has heard of it.
        payer.then_hanging.tell(2)
        until(lambda: len(outside.lines(world)) == 2, "the second payment")
        kill(system, "payer")
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [1, 2], "both answers")
        # Repeatable: asked for, answered, undone, and asked for again when the logged input comes again.
        system.checkpoint()
        payer.note.tell(3)
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [1, 2, 3], "the answer")
        kill(system, "payer")
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [1, 2, 3], "the recorded answer")
    assert len(outside.lines(world)) == 3
    assert [(doc["state"], doc["by"]) for doc in rows(tmp_path)] == [
        ("done", None), ("done", "reconcile"), ("done", None)
    ]  # fmt: skip


def halts(payer_of: Callable[[], cutline.Handle]) -> None:
    """It does so at any moment: perhaps before the program has named its participant once more."""
    with pytest.raises(SystemHalted, match=r"payer#1 \S+:hang \(attempt 1\)") as caught:
        payer = payer_of()
        while True:
            again(lambda: payer.all_got.remote().result(timeout=60))
            time.sleep(0.05)
    assert isinstance(caught.value.__cause__, EffectUnknown)


def test_what_nobody_can_find_out_halts_the_system_and_a_person_decides(tmp_path: Path, world: Path) -> None:
    with started(tmp_path) as system:
        payer = system.spawn("payer", Payer)
        payer.unsure.tell(1)
        until(lambda: outside.lines(world), "the call")
        os.kill(pid_of(system, "payer"), signal.SIGKILL)
        halts(lambda: payer)
    # Nobody has said anything yet.
    with started(tmp_path) as system:
        halts(lambda: system.spawn("payer", Payer))
    (doc,) = rows(tmp_path)
    assert (doc["state"], doc["pending"]) == ("claimed", True)
    told = CliRunner().invoke(
        app, ["effects", "-s", str(tmp_path / "store"), "--resolve", "payer#1", "--done", "41"]
    )
    assert told.exit_code == 0, told.output
    with started(tmp_path) as system:
        payer = system.spawn("payer", Payer)
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [41], "the person's word")
    assert len(outside.lines(world)) == 1


def test_a_forks_effects_wait_until_they_are_allowed(tmp_path: Path, world: Path) -> None:
    with started(tmp_path) as system:
        payer = system.spawn("payer", Payer)
        system.savepoint("before")
        payer.then.tell(1)
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [1], "the answer")
    with started(tmp_path, restore="before") as system:
        payer = system.spawn("payer", Payer)
        payer.then.tell(1)
        blocked = until(
            lambda: [each for each in list(system.notices) if each["what"] == "effects_blocked"], "a notice"
        )
        assert blocked[0]["participant"] == "payer"
        # A repeatable one is let through.
        assert payer.repeat.remote(5).result(timeout=60) == 5
        assert len([line for line in outside.lines(world) if line.startswith("pay ")]) == 1
        told = CliRunner().invoke(app, ["effects", "-s", str(tmp_path / "store"), "--allow"])
        assert told.exit_code == 0, told.output
        comes_to(lambda: again(lambda: payer.all_got.remote().result()), [1], "the fork's answer")
    paid = [line for line in outside.lines(world) if line.startswith("pay ")]
    assert len(paid) == 2 and len(set(paid)) == 2


def test_kills_at_some_of_the_steps(tmp_path: Path) -> None:
    found = play(tmp_path / "plan", 1, wanted=1, limit=240.0, batch=2)
    assert found.is_good, table(found)
    assert found.kills
