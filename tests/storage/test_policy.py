"""Retention by age and period; and collecting from outside, beside whoever runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.errors import BlobNotFound, RefusedOption, StoreInUse
from cutline.storage import CheckpointRow, open_store
from cutline.storage.blobs import encode_name
from cutline.storage.owners import IMPORTING, Owner
from cutline.storage.retention import Policy, expendable
from cutline.storage.tending import costs, gc, lease_beside, planned
from tests.storage.cast import SYSTEM, Scene
from tests.storage.test_retention import check_all_listed, line, row, state

DAY = 86400.0


def aged(checkpoint: int, when: float, label: str | None = None) -> CheckpointRow:
    return replace(row(checkpoint, label=label), decided_at=when)


def left(cuts: list[CheckpointRow], policy: Policy, now: float) -> list[int]:
    going = expendable([line()], cuts, policy, now=now)
    return [cut.checkpoint for cut in cuts if cut.place not in going]


def test_what_is_young_is_kept() -> None:
    cuts = [aged(n, DAY * n) for n in range(1, 11)]
    assert left(cuts, Policy(1, keep_for=3 * DAY), 10 * DAY) == [7, 8, 9, 10]
    assert left(cuts, Policy(5, keep_for=3 * DAY), 10 * DAY) == [6, 7, 8, 9, 10]
    assert left(cuts, Policy(1, keep_for=3 * DAY), 100 * DAY) == [10]


def test_early_ones_push_none_out_and_are_collected_themselves() -> None:
    cuts = [aged(n, float(n)) for n in range(1, 31)]
    early = [replace(row, summary={"early": True}) if row.checkpoint % 10 else row for row in cuts]
    assert left(early, Policy(2), 31.0) == [20, 28, 29, 30]
    # However young they are.
    assert left(early, Policy(2, keep_for=1e6), 31.0) == [10, 20, 28, 29, 30]
    # The newest one stays in any case.
    assert left(early[:25], Policy(2), 31.0) == [10, 20, 24, 25]


def test_one_of_each_period_is_kept() -> None:
    cuts = [aged(n, DAY / 4 * n) for n in range(41)]
    assert left(cuts, Policy(1, thin=((DAY, 3 * DAY),)), 10 * DAY) == [28, 32, 36, 40]
    assert left(cuts, Policy(2, thin=((DAY / 2, DAY), (5 * DAY, 10 * DAY))), 10 * DAY) == [
        0, 20, 36, 38, 39, 40
    ]  # fmt: skip


def test_a_clock_that_jumps_costs_none_of_the_newest() -> None:
    # 3 was decided under a clock that was a year ahead and was set back.
    cuts = [aged(1, 1.0), aged(2, 2.0), aged(3, 365 * DAY), aged(4, 4.0)]
    assert left(cuts, Policy(1, keep_for=DAY), 5.0) == [1, 2, 3, 4]
    assert left(cuts, Policy(2, keep_for=DAY), 100 * DAY) == [3, 4]
    # A clock that is far ahead now makes all look old; one that is far behind, young.
    assert left(cuts, Policy(2, keep_for=DAY, thin=((DAY, 9 * DAY),)), 5000 * DAY) == [3, 4]
    assert left(cuts, Policy(1, keep_for=DAY), -500 * DAY) == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", [{"keep_for": -1.0}, {"thin": ((0.0, 5.0),)}, {"thin": ((5.0, -1.0),)}])
def test_wrong_policies(wrong: dict[str, Any]) -> None:
    with pytest.raises(RefusedOption, match="positive"):
        Policy(3, **wrong)


POLICIES = st.builds(
    Policy,
    st.integers(1, 4),
    st.sampled_from([0.0, 5.0, 20.0]),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 60)), max_size=2).map(tuple),
)
TIMES = st.lists(st.integers(0, 9), min_size=1, max_size=30)


@given(TIMES, st.sets(st.integers(0, 30)), POLICIES)
def test_collecting_often_keeps_what_collecting_once_does(
    gaps: list[int], labelled: set[int], policy: Policy
) -> None:
    """Thinning that depended on when it is done would keep less and less, or nothing regular."""
    now = 0.0
    cuts: list[CheckpointRow] = []
    kept: list[CheckpointRow] = []
    for n, gap in enumerate(gaps):
        now += gap
        cut = aged(n, now, f"l{n}" if n in labelled else None)
        cuts.append(cut)
        kept = [row for row in [*kept, cut] if row.checkpoint in left([*kept, cut], policy, now)]
    assert [cut.checkpoint for cut in kept] == left(cuts, policy, now)
    # Doing it again changes nothing; every label stays; a rule more only adds.
    assert left(kept, policy, now) == [cut.checkpoint for cut in kept]
    assert {n for n in labelled if n < len(cuts)} <= {cut.checkpoint for cut in kept}
    more = replace(policy, keep=policy.keep + 1, keep_for=policy.keep_for + 3, thin=(*policy.thin, (7, 30)))
    assert set(left(cuts, policy, now)) <= set(left(cuts, more, now))


@pytest.mark.parametrize(
    ("gaps", "policy"),
    [([0, 2, 0], Policy(1, thin=((3, 1),))), ([0, 1, 4, 0], Policy(2, thin=((2, 4),)))],
)
def test_one_that_stayed_for_another_reason_is_not_the_oldest_of_its_period(
    gaps: list[int], policy: Policy
) -> None:
    test_collecting_often_keeps_what_collecting_once_does.hypothesis.inner_test(  # type: ignore[attr-defined]
        gaps, set(), policy
    )


def test_a_plan_is_what_a_sweep_does(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        for n in range(8):
            scene.cut(state(n), full=n % 3 == 0, label="l" if n == 2 else None)
        lost = scene.begin(False, None, ["a"])
        scene.write(lost, "a", state(9)["a"], False)
        store.catalog.abort(scene.lease, scene.lineage, lost, "x", 1.0)
        before = {key: store.blobs.size(key) for key in store.blobs.list()}
        plan = planned(store, SYSTEM, Policy(2), 0.0)
        assert {key: store.blobs.size(key) for key in store.blobs.list()} == before
        assert len(store.catalog.checkpoints(SYSTEM)) == 8
        swept = store.sweep(scene.lease, 0.0, policy=Policy(2))
        assert swept.given_up == [each.place for each in plan.given_up]
        assert sorted(swept.removed) == sorted(plan.removed)
        assert plan.removed == {key: before[key] for key in swept.removed}
        assert [each.place for each in plan.kept] == [
            each.place for each in store.catalog.checkpoints(SYSTEM)
        ]


def test_records_go_first_and_packs_last(tmp_path: Path) -> None:
    """So that a catalog made again in the middle of it takes nothing for damaged."""
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        for n in range(3):
            scene.cut(state(n), full=True)
        removed = store.sweep(scene.lease, 0.0, keep=1).removed
        kinds = ["record" if key.endswith(".commit") else "pack" if key.endswith(".pack") else "manifest"
                 for key in removed]  # fmt: skip
        assert kinds == ["record"] * 2 + ["manifest"] * 2 + ["pack"] * 6


# From outside


def test_gc_works_under_the_lease_of_who_lives(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        for n in range(5):
            scene.cut(state(n), full=True)
        # Its lease looks as if it had run out long ago; that may be the clock here.
        _, swept = gc(store, SYSTEM, Policy(2), 1e12)
        assert len(swept.given_up) == 3
        assert store.catalog.held_lease(SYSTEM) == scene.lease
        scene.cut(state(9))
        store.catalog.release_lease(scene.lease)
        _, swept = gc(store, SYSTEM, Policy(1), 0.0)
        assert len(swept.given_up) == 2 and store.catalog.held_lease(SYSTEM) is None
        check_all_listed(store)


def test_gc_takes_over_from_the_dead_and_lets_go(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        scene.cut(state(0))
        with lease_beside(store, SYSTEM, 1e9, "gc", dead=lambda owner: True) as lease:
            assert lease.token == scene.lease.token + 1
            assert lease.owner.driver_pid == 0 and "gc" in str(lease.owner)
        assert store.catalog.held_lease(SYSTEM) is None


def test_gc_waits_for_an_import_to_end(tmp_path: Path) -> None:
    """What an import has written is in no lineage before it is whole, and would pass for a dead one's."""
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        scene.cut(state(0))
        store.catalog.release_lease(scene.lease)
        lease = store.catalog.acquire_lease(SYSTEM, Owner.here(IMPORTING), 60.0, 0.0)
        key = f"{encode_name(SYSTEM)}/import-{store.catalog.generation()}-1/0/1/a-1.pack"
        store.blobs.create(key, [b"half of it"])
        with pytest.raises(StoreInUse, match="cutline import.*wait until"):
            gc(store, SYSTEM, Policy(1), 0.0)
        assert store.blobs.size(key) == 10
        store.catalog.release_lease(lease)
        gc(store, SYSTEM, Policy(1), 0.0)
        with pytest.raises(BlobNotFound):
            store.blobs.size(key)


def test_gc_reads_before_it_gives_up_the_last_whole_one(tmp_path: Path) -> None:
    """All newer cuts look whole from their sizes; only one of the old ones is."""
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        cuts = [scene.cut(state(n), full=True) for n in range(5)]
        for cut in cuts[2:]:
            path = tmp_path / "blobs" / next(key for key in cut.blobs if "/a-" in key)
            content = bytearray(path.read_bytes())
            content[20] ^= 1
            path.write_bytes(content)
    with open_store(tmp_path, create=True) as store:
        plan, swept = gc(store, SYSTEM, Policy(1), 0.0)
        assert cuts[1].place not in swept.given_up and cuts[0].place in swept.given_up
        assert cuts[1].place in [each.place for each in plan.kept]
        assert store.newest_whole(SYSTEM).place == cuts[1].place


def test_what_cuts_cost(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        full, delta = scene.cut(state(0), full=True), scene.cut(state(1))
        other = scene.cut(state(2), full=True)
        lost = scene.begin(True, None, ["a"])
        stray = scene.write(lost, "a", state(3)["a"], True)
        found, unlisted = costs(store, SYSTEM)
        sizes = {key: store.blobs.size(key) for key in store.blobs.list()}
        assert unlisted == stray.size == sizes[stray.key]
        packs = sum(sizes[key] for key in full.blobs if key.endswith(".pack"))
        assert [cost.shared for cost in found] == [packs, packs, 0]
        assert found[0].alone == sizes[full.manifest_key or ""] + sizes[f"{full.manifest_key}.commit"]
        assert sum(cost.alone for cost in found) + packs + unlisted == sum(sizes.values())
        assert (
            found[2].alone == sum(sizes[key] for key in other.blobs) + sizes[f"{other.manifest_key}.commit"]
        )
        # Alone is what giving it up brings.
        store.catalog.abort(scene.lease, scene.lineage, lost, "x", 1.0)
        store.sweep(scene.lease, 0.0)
        before = sum(map(store.blobs.size, store.blobs.list()))
        store.delete_cut(scene.lease, *delta.place)
        store.sweep(scene.lease, 0.0)
        assert before - sum(map(store.blobs.size, store.blobs.list())) == found[1].alone
