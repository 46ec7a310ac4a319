"""A recovery does not go below what something irreversible has left from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cutline.errors import BelowHorizon, StorageError
from cutline.storage import CheckpointRow, MemoryBlobs, memory_store
from tests.storage.cast import SYSTEM, Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    with memory_store() as store:
        yield Scene.new(store)


def lose(scene: Scene, *rows: CheckpointRow) -> None:
    assert isinstance(scene.store.blobs, MemoryBlobs)
    for row in rows:
        scene.store.blobs.delete(next(key for key in row.blobs if f"/{row.checkpoint}/" in key))


def recovered(scene: Scene, lineage: str) -> CheckpointRow:
    return scene.store.recovery_cut(SYSTEM, lineage, deep=False, damage=[])


def cuts(scene: Scene, number: int) -> list[CheckpointRow]:
    return [scene.cut({"a": {"x": str(n)}}, full=True) for n in range(number)]


@pytest.mark.parametrize("horizon", [0, 1, 2])
def test_above_the_horizon_it_falls_back(scene: Scene, horizon: int) -> None:
    made = cuts(scene, 3)
    if horizon:
        scene.store.catalog.raise_horizon(scene.lease, scene.lineage, horizon)
    lose(scene, made[2])
    assert recovered(scene, scene.lineage) == made[1]


def test_below_the_horizon_it_stops_and_names_the_damage(scene: Scene) -> None:
    made = cuts(scene, 3)
    scene.store.catalog.raise_horizon(scene.lease, scene.lineage, 2)
    lose(scene, *made[1:])
    damage: list[StorageError] = []
    with pytest.raises(BelowHorizon, match=r"whole cut is checkpoint 1 .*left from checkpoint 2 ") as caught:
        scene.store.recovery_cut(SYSTEM, scene.lineage, deep=False, damage=damage)
    assert {fault.facts["checkpoint"] for fault in damage} == {2, 3}
    assert caught.value.facts["damage"] == [str(fault) for fault in damage]
    assert caught.value.facts["horizon"] == 2


def test_a_fork_is_bound_up_to_where_it_forked_off(scene: Scene) -> None:
    made = cuts(scene, 4)
    scene.store.catalog.raise_horizon(scene.lease, scene.lineage, 4)
    fork = scene.fork(made[2])
    # What left the origin behind that point is not the fork's; what left before it is.
    assert recovered(scene, fork.lineage) == made[2]
    lose(scene, made[2])
    with pytest.raises(BelowHorizon, match="left from checkpoint 3 of"):
        recovered(scene, fork.lineage)


def test_a_fork_with_a_horizon_of_its_own_does_not_leave_itself(scene: Scene) -> None:
    made = cuts(scene, 1)
    fork = scene.fork(made[0])
    own = fork.cut({"a": {"x": "own"}}, full=True)
    lose(scene, own)
    assert recovered(scene, fork.lineage) == made[0]
    scene.store.catalog.raise_horizon(scene.lease, fork.lineage, own.checkpoint)
    with pytest.raises(BelowHorizon):
        recovered(scene, fork.lineage)
