"""Rows of effects: what a claim is answered, which outcome counts, and that only the lease's owner writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cutline.barrier import Member
from cutline.coordinator.effect_rows import KEY_SECONDS, forgotten, open_attempt, resolved
from cutline.errors import BelowHorizon, CheckpointNotFound, Corrupt, Fenced, Misuse
from cutline.storage import MemoryBlobs, Store, memory_store
from cutline.storage.effects import BLOCK, LIVE, RULES, Claim, EffectRow, Ending, judge, takes
from tests.storage.cast import SYSTEM, Scene, owner

EXECUTOR = {"pid": 7, "started": 1.0, "machine": "here"}


def claim(**changes: Any) -> Claim:
    made = Claim("r:k", "ann", 1, 3, "m:pay", b"d", False, 1, 1, "old", EXECUTOR, 0)
    return made._replace(**changes)


def row(attempt: int = 1, state: Any = "", **changes: Any) -> EffectRow:
    fields: dict[str, Any] = {
        "lineage": "l", "key": "r:k", "attempt": attempt, "participant": "ann", "birth": 1, "number": 3,
        "function": "m:pay", "digest": b"d", "repeatable": False, "checkpoint": 1, "since": 1,
        "launch": "old", "executor": EXECUTOR, "epoch": 0, "token": 1,
        "claimed_at": 0.0, "deadline": None, "state": state,
    }  # fmt: skip
    return EffectRow(**{**fields, **changes})


def over(_row: EffectRow) -> bool:
    return True


def acts(_row: EffectRow) -> bool:
    return False


@pytest.mark.parametrize(
    ("rows", "said", "gone", "kind", "attempt", "fresh"),
    [
        pytest.param([], claim(), acts, "granted", 1, True, id="the first"),
        pytest.param([row()], claim(), acts, "granted", 1, False, id="its own, the answer was lost"),
        pytest.param([row()], claim(launch="new"), acts, "wait", 1, False, id="another one may still call"),
        pytest.param([row()], claim(launch="new"), over, "unknown", 1, False, id="another one is gone"),
        pytest.param([row()], claim(launch="n", after=1), over, "granted", 2, True, id="policy says so"),
        pytest.param([row()], claim(launch="new", after=1), acts, "wait", 0, False, id="it may call yet"),
        pytest.param([row()], claim(after=1), acts, "granted", 2, True, id="its own has taken too long"),
        pytest.param(
            [row(), row(2)], claim(launch="new", after=1), over, "unknown", 2, False, id="a newer one is open"
        ),
        pytest.param([row(1, "again")], claim(launch="new"), acts, "granted", 2, True, id="it has raised"),
        pytest.param([row(1, "skipped")], claim(launch="new"), acts, "granted", 2, True, id="not called"),
        pytest.param([row(1, "done")], claim(launch="new"), acts, "recorded", 1, False, id="it is done"),
        pytest.param([row(1, "error")], claim(after=1), over, "recorded", 1, False, id="it has failed"),
        pytest.param(
            [row(1, "done"), row(2)], claim(), acts, "recorded", 1, False, id="done late, beside another one"
        ),
        pytest.param([row(digest=b"e")], claim(), over, "other", 0, False, id="the key is another request's"),
        pytest.param(
            [row(repeatable=True)], claim(launch="new", repeatable=True), acts, "granted", 2, True,
            id="it may be done twice",
        ),
    ],
)  # fmt: skip
def test_what_a_claim_is_answered(
    rows: list[EffectRow], said: Claim, gone: Any, kind: str, attempt: int, fresh: bool
) -> None:
    verdict = judge(rows, said, gone)
    assert (verdict.kind, verdict.attempt, verdict.fresh) == (kind, attempt, fresh)


@pytest.mark.parametrize(
    ("rows", "ending", "taken"),
    [
        pytest.param([row()], Ending("r:k", 1, "old", "done"), 1, id="its own"),
        pytest.param([row()], Ending("r:k", 1, "new", "done"), 0, id="another process's"),
        pytest.param([row()], Ending("r:k", 1, "", "done", by="person"), 1, id="a person's word"),
        pytest.param([row(1, "done")], Ending("r:k", 1, "old", "error"), 0, id="a second one"),
        pytest.param([row(1, "unknown"), row(2)], Ending("r:k", 1, "old", "done"), 1, id="a late one"),
        pytest.param([row(1, "unknown"), row(2)], Ending("r:k", 1, "old", "again"), 0, id="late, it raised"),
        pytest.param([row(1, "unknown"), row(2, "done")], Ending("r:k", 1, "old", "done"), 0, id="too late"),
        pytest.param([row(1, "skipped")], Ending("r:k", 1, "old", "done"), 1, id="a person was wrong"),
        pytest.param([row(1, "skipped")], Ending("r:k", 1, "old", "again"), 0, id="a person, raised"),
        pytest.param([], Ending("r:k", 1, "old", "done"), 0, id="of no claim"),
    ],
)
def test_which_outcome_counts(rows: list[EffectRow], ending: Ending, taken: int) -> None:
    found = takes(rows, ending)
    assert (found.attempt if found is not None else 0) == taken


@pytest.fixture
def scene() -> Iterator[Scene]:
    with memory_store() as store:
        scene = Scene.new(store)
        scene.cut({"a": {"x": "1"}}, full=True)
        yield scene


def ask(scene: Scene, *claims: Claim, endings: list[Ending] | None = None, gone: Any = acts) -> Any:
    catalog = scene.store.catalog
    epoch = catalog.epoch(scene.lineage)
    current = [each._replace(epoch=epoch) for each in claims]
    return catalog.journal(scene.lease, scene.lineage, endings or [], current, gone, 5.0)


def test_a_claim_raises_the_horizon_and_an_outcome_is_kept(scene: Scene) -> None:
    catalog = scene.store.catalog
    assert catalog.effects(scene.lineage) == []
    ((), (granted,)) = ask(scene, claim(timeout=3.0))
    assert (granted.kind, granted.attempt) == ("granted", 1)
    assert catalog.horizon(scene.lineage) == 1
    (kept,) = catalog.effects(scene.lineage)
    assert (kept.claimed_at, kept.deadline, kept.state) == (5.0, 18.0, "")
    blob = ("system/effects/x", b"h", 9)
    ((final,), ()) = ask(scene, endings=[Ending("r:k", 1, "old", "done", None, blob)])
    assert final.state == "done" and catalog.effects(scene.lineage)[0].blob == blob
    # The answer to a claim whose outcome is there, whoever asks.
    ((), (recorded,)) = ask(scene, claim(launch="new"))
    assert recorded.kind == "recorded" and recorded.row == catalog.effects(scene.lineage)[0]


@pytest.mark.parametrize(("key", "kept"), [("u:order 7", True), ("r:k", False)])
def test_a_key_is_remembered_from_its_last_use_on(scene: Scene, key: str, kept: bool) -> None:
    """Who got the outcome at the edge of its time, and asks again after a loss, gets it once more."""
    catalog = scene.store.catalog
    ask(scene, claim(key=key))
    ask(scene, endings=[Ending(key, 1, "old", "done", b"\x91\x07")])
    epoch = catalog.epoch(scene.lineage)
    edge = 5.0 + KEY_SECONDS - 1.0
    other = claim(key=key, participant="bob", birth=2, number=9, epoch=epoch)
    (_, (verdict,)) = catalog.journal(scene.lease, scene.lineage, [], [other], acts, edge)
    assert verdict.kind == "recorded"
    # The first request is long done with; of the second one nothing is in any row.
    done = {Member("ann", 1): (9, 99, frozenset[int]())}
    for now, there in ((edge + 10.0, kept), (edge + KEY_SECONDS + 10.0, False)):
        _, gone = forgotten(catalog.effects(scene.lineage), done, [9], now)
        assert (not gone) == there
    (row,) = catalog.effects(scene.lineage)
    assert row.answer == b"\x91\x07" and row.claimed_at == 5.0


def test_a_repeatable_one_leaves_the_horizon_where_it_is(scene: Scene) -> None:
    ask(scene, claim(repeatable=True, checkpoint=0))
    assert scene.store.catalog.horizon(scene.lineage) == 0


def test_claims_of_an_older_epoch_or_of_no_committed_cut_are_stale(scene: Scene) -> None:
    catalog = scene.store.catalog
    old = claim(epoch=catalog.epoch(scene.lineage))
    catalog.bump_epoch(scene.lease, scene.lineage)
    for said in (old, claim(checkpoint=2, epoch=catalog.epoch(scene.lineage))):
        _, (verdict,) = catalog.journal(scene.lease, scene.lineage, [], [said], acts, 5.0)
        assert verdict.kind == "stale"
    assert catalog.effects(scene.lineage) == [] and catalog.horizon(scene.lineage) == 0


def test_who_lost_the_lease_grants_and_records_nothing(scene: Scene) -> None:
    catalog = scene.store.catalog
    ask(scene, claim())
    newer = catalog.acquire_lease(SYSTEM, owner(2), 10.0, 1e9)
    for endings, claims in (([Ending("r:k", 1, "old", "done")], []), ([], [claim(key="r:other")])):
        with pytest.raises(Fenced):
            ask(scene, *claims, endings=endings)
    with pytest.raises(Fenced):
        catalog.rule_effects(scene.lease, scene.lineage, BLOCK)
    with pytest.raises(Fenced):
        catalog.effects_done(scene.lease, scene.lineage, [], ["r:k"])
    assert [each.state for each in catalog.effects(scene.lineage)] == [""]
    assert newer.token > scene.lease.token


def test_a_fork_is_blocked_until_somebody_says_otherwise(scene: Scene) -> None:
    catalog = scene.store.catalog
    assert catalog.effects_rule(scene.lineage) == LIVE
    fork = catalog.create_lineage(scene.lease, (scene.lineage, 1))
    assert catalog.effects_rule(fork) == BLOCK and catalog.said_of_effects(fork) is None
    for rule in RULES:
        catalog.rule_effects(scene.lease, fork, rule)
        assert catalog.effects_rule(fork) == catalog.said_of_effects(fork) == rule
    assert catalog.effects(fork) == []


def test_below_the_horizon_the_effects_that_would_be_done_again_are_named(scene: Scene) -> None:
    scene.cut({"a": {"x": "2"}}, full=True)
    newest = scene.cut({"a": {"x": "3"}}, full=True)
    ask(scene, claim(checkpoint=newest.checkpoint))
    assert isinstance(scene.store.blobs, MemoryBlobs)
    scene.store.blobs.delete(next(key for key in newest.blobs if f"/{newest.checkpoint}/" in key))
    with pytest.raises(BelowHorizon, match=r"does not know of ann#3 m:pay \(attempt 1\)"):
        scene.store.recovery_cut(SYSTEM, scene.lineage, deep=False, damage=[])


def test_a_catalog_without_the_table_gets_it_with_the_first_claim(scene: Scene) -> None:
    database: Any = scene.store.catalog
    with database.database.writing() as connection:
        connection.execute("DROP TABLE effects")
    assert database.effects(scene.lineage) == [] and database.said_of_effects(scene.lineage) is None
    database.effects_done(scene.lease, scene.lineage, [], ["r:k"])
    ask(scene, claim())
    assert len(database.effects(scene.lineage)) == 1


def test_a_row_that_was_changed_is_found_out(scene: Scene) -> None:
    ask(scene, claim())
    database: Any = scene.store.catalog
    with database.database.writing() as connection:
        connection.execute("UPDATE effects SET attempt = 2")
    with pytest.raises(Corrupt, match="effect r:k"):
        database.effects(scene.lineage)


def test_a_catalog_made_again_runs_no_effects(scene: Scene) -> None:
    catalog = scene.store.catalog
    with memory_store() as other:
        lines, rows = catalog.lineages(SYSTEM), catalog.checkpoints(SYSTEM)
        other.catalog.refill(SYSTEM, lines, rows, token=9)
        assert other.catalog.effects_rule(scene.lineage) == BLOCK


# -- people, and what nobody needs any more --------------------------------------------------------


def say(store: Store, scene: Scene, **doc: Any) -> dict[str, Any]:
    return resolved(store.catalog, scene.lease, scene.lineage, {"done": None, "failed": None, **doc}, 9.0)


@pytest.mark.parametrize(
    ("said", "state"),
    [({"done": '{"id": 4}'}, "done"), ({"failed": "refused"}, "error"), ({}, "skipped")],
)
def test_a_person_says_what_became_of_it(scene: Scene, said: dict[str, Any], state: str) -> None:
    ask(scene, claim())
    assert say(scene.store, scene, effect="ann#3", **said)["state"] == state
    (kept,) = scene.store.catalog.effects(scene.lineage)
    assert (kept.state, kept.by) == (state, "person")
    with pytest.raises(CheckpointNotFound, match="there are: none"):
        say(scene.store, scene, effect="ann#3", **said)


def test_a_result_that_is_no_json_is_refused(scene: Scene) -> None:
    ask(scene, claim())
    with pytest.raises(Misuse, match="JSON"):
        say(scene.store, scene, effect="k", done="{")
    assert open_attempt(scene.store.catalog.effects(scene.lineage), "k").number == 3


def test_rows_go_when_no_cut_can_ask_for_them() -> None:
    ann = Member("ann", 1)
    done = row(1, "done", since=2, decided_at=1.0)
    pending = {ann: (5, 4, frozenset({3}))}
    assert forgotten([done], pending, [2, 5], 9.0) == ([], [])
    told = {ann: (5, 4, frozenset[int]())}
    # Checkpoint 2 has it pending yet.
    assert forgotten([done], told, [2, 5], 9.0) == ([("r:k", 5)], [])
    assert forgotten([done], told, [5, 6], 9.0) == ([], [done])
    # The checkpoint that had it is lost, and the request is pending again in a newer one.
    again = {ann: (6, 4, frozenset({3}))}
    assert forgotten([row(1, "done", since=2, done=5)], again, [6], 9.0) == ([], [])
    own = row(1, "done", key="u:k", since=2, decided_at=1.0, done=5)
    assert forgotten([own], {}, [6], 9.0) == ([], [])
    assert forgotten([own], {}, [6], KEY_SECONDS + 9.0) == ([], [own])
    # All attempts go together.
    first = row(1, "unknown", key="u:k", since=2, done=5)
    late = row(2, "done", key="u:k", since=2, decided_at=KEY_SECONDS, done=5)
    assert forgotten([first, late], {}, [6], KEY_SECONDS + 9.0) == ([], [])
