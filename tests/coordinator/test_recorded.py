"""Forks that get their origin's outcomes: which one is meant, each once, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator import effect_rows
from cutline.coordinator import effects as module
from cutline.coordinator.effect_rows import forgotten
from cutline.coordinator.recorded import match, refusal
from cutline.errors import EffectsBlocked
from cutline.participant.effect_calls import read_answer
from cutline.participant.messages import unpack_error
from cutline.storage import Store
from cutline.storage.effects import BLOCK, ORIGIN, RECORDED, EffectRow
from tests.storage.test_effects import claim as storage_claim
from tests.storage.test_effects import row

from .city import City
from .test_effects import claim, ending, states
from .test_recover import confirm

POINT = 5


def done(number: int, key: str, **changes: Any) -> EffectRow:
    return row(1, "done", number=number, key=key, since=POINT + 1, **changes)


@pytest.mark.parametrize(
    ("wanted", "outcomes", "own", "found"),
    [
        pytest.param({}, [], [], None, id="nothing was done"),
        pytest.param({}, [done(3, "a"), done(4, "b")], [], "a", id="the number tells"),
        pytest.param({}, [done(2, "a"), done(4, "b")], [], "b", id="in another order"),
        pytest.param({}, [done(2, "a")], [], "a", id="earlier than there"),
        pytest.param({}, [done(3, "a", digest=b"x")], [], None, id="other arguments"),
        pytest.param({}, [done(3, "a", participant="bob")], [], None, id="of somebody else"),
        pytest.param({"birth": 9}, [done(3, "a")], [], "a", id="spawned again in the fork"),
        pytest.param({}, [dataclasses.replace(done(3, "a"), since=2)], [], "a", id="pending at the point"),
        pytest.param({}, [dataclasses.replace(done(2, "a"), since=2)], [], None, id="told at the point"),
        pytest.param({}, [dataclasses.replace(done(2, "a"), since=0)], [], "a", id="in no cut"),
        pytest.param({"key": "u:k"}, [done(9, "u:k")], [], "u:k", id="by the user's key"),
        pytest.param({"key": "u:k"}, [done(3, "u:other")], [], None, id="under another key"),
    ],
)
def test_which_outcome_is_meant(wanted: Any, outcomes: Any, own: Any, found: str | None) -> None:
    got = match(storage_claim(**wanted), outcomes, own, POINT)
    assert (None if got is None else got.key) == found


def test_each_outcome_is_given_once() -> None:
    outcomes = [done(3, "a"), done(5, "b")]
    given = done(2, "n", by=ORIGIN, executor={"origin": "a"})
    # Another one asked for the same before.
    got = match(storage_claim(), outcomes, [given], POINT)
    assert got is not None and got.key == "b"
    assert match(storage_claim(), outcomes[:1], [given], POINT) is None
    # What was given to a later number was given in a history that is undone.
    undone = dataclasses.replace(given, number=3)
    got = match(storage_claim(), outcomes, [undone], POINT)
    assert got is not None and got.key == "a"


def test_what_is_refused_says_what_to_do() -> None:
    error = unpack_error(read_answer(None, refusal(storage_claim()), None), participant="ann", live={})  # type: ignore[arg-type]
    assert isinstance(error, EffectsBlocked) and error.facts["function"] == "m:pay"
    assert "`cutline effects --allow`" in str(error)


def fork_of(city: City, folder: Path) -> City:
    """The same participants in a fork that gets the outcomes of its origin."""
    fork = city.store.catalog.create_lineage(city.lease, (city.lineage, city.c.committed))
    city.store.catalog.rule_effects(city.lease, fork, RECORDED)
    city.store.catalog.release_lease(city.lease)
    made = City(city.store, folder, fork)
    made.c.recoverer.resume_newest()
    made.hello("driver", "born")
    made.hello("a", "restored", made.c.epoch)
    confirm(made, "driver")
    return made


def test_the_origins_outcome_is_taken_over_and_nothing_is_granted(store: Store, tmp_path: Path) -> None:
    city = City(store, tmp_path)
    city.open_for_business("a")
    claim(city, since=city.c.committed + 1)
    ending(city)
    claim(city, key="r:open", number=2, digest=b"e")
    there = fork_of(city, tmp_path)
    claim(there, key="r:fork")
    said = there.lines["a"].last("effect_verdict")
    assert (said["verdict"], said["ok"], said["answer"]) == ("recorded", True, b"\x91\x07")
    (own,) = there.store.catalog.effects(there.lineage)
    assert (own.key, own.by, own.state, own.executor["origin"]) == ("r:fork", ORIGIN, "done", "r:k")
    # Asked again, it is told the same; the same once more was not done, nor was what has no outcome.
    claim(there, key="r:fork")
    assert there.lines["a"].last("effect_verdict")["answer"] == b"\x91\x07"
    for number, more in ((3, {}), (4, {"digest": b"e"}), (5, {"digest": b"r", "repeatable": True})):
        claim(there, key=f"r:{number}", number=number, **more)
        said = there.lines["a"].last("effect_verdict")
        assert (said["verdict"], said["ok"], said["key"]) == ("recorded", False, f"r:{number}")
    assert states(there) == ["done"]
    # That it was given out is not forgotten.
    for _ in range(2):
        last = there.cut("driver", "a")
        there.say("a", "effect_done", checkpoint=last, below=9, pending=[])
        there.step(module.TIDY)
    assert states(there) == ["done"]
    there.call_on("person", "allow_effects")
    claim(there, key="r:6", number=6, digest=b"f")
    assert there.lines["a"].last("effect_verdict")["verdict"] == "granted"


def test_rows_of_what_the_origins_cut_has_pending_go(store: Store, tmp_path: Path) -> None:
    city = City(store, tmp_path)
    city.open_for_business("a")
    there = fork_of(city, tmp_path)
    origin = there.c.origin
    assert origin is not None
    there.call_on("person", "allow_effects")
    claim(there, since=origin[1], checkpoint=origin[1])
    ending(there)
    assert there.store.catalog.horizon(there.lineage) == 0
    last = there.cut("driver", "a")
    there.say("a", "effect_done", checkpoint=last, below=9, pending=[])
    # First it is noted that a cut has the outcome; then that nobody goes back before it.
    there.step(module.TIDY)
    assert states(there) == ["done"]
    there.step(module.TIDY)
    assert there.store.catalog.horizon(there.lineage) == last
    assert states(there) == []


def test_outcomes_that_only_a_fork_could_ask_for_are_kept_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields: dict[str, Any] = {"answer": b"x" * 10}
    rows = [
        row(1, "done", key=f"r:{n}", number=n, since=10 + n, done=11 + n, decided_at=float(n), **fields)
        for n in range(6)
    ]
    assert forgotten(rows, {}, [3], 100.0) == ([], [])
    # Behind the newest cut nobody can ask for any.
    assert forgotten(rows, {}, [30], 100.0) == ([], rows)
    monkeypatch.setattr(effect_rows, "FOR_FORKS", 4)
    assert forgotten(rows, {}, [3], 100.0)[1] == rows[:2]
    monkeypatch.setattr(effect_rows, "FOR_FORKS_BYTES", 25)
    assert forgotten(rows, {}, [3], 100.0)[1] == rows[:4]


def test_a_fork_of_which_nothing_was_said_is_blocked(store: Store, tmp_path: Path) -> None:
    city = City(store, tmp_path)
    city.open_for_business("a")
    fork = city.store.catalog.create_lineage(city.lease, (city.lineage, city.c.committed))
    city.store.catalog.release_lease(city.lease)
    assert City(city.store, tmp_path, fork).c.effects.rule == BLOCK
