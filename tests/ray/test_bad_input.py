"""What goes wrong on Ray and must say so: exits from inside, Ray gone, versions that differ."""

from __future__ import annotations

from typing import Any

import pytest

import cutline
from cutline.errors import Misuse, SpawnFailed, SystemHalted, SystemStopped

ray = pytest.importorskip("ray")
from cutline.coordinator.ray_nodes import unmet, wanted_resources  # noqa: E402
from cutline.participant.host_ray import check_versions  # noqa: E402
from tests.ray.cast import Cell  # noqa: E402

pytestmark = pytest.mark.usefixtures("local_ray")


def cell(name: str, **options: Any) -> Any:
    return Cell.options(name=name, **options).remote()  # type: ignore[attr-defined]


def test_another_version_of_ray() -> None:
    check_versions("2.60.0", "2.60.0", "the cluster")
    with pytest.raises(SpawnFailed, match="Ray 2.59.1, the driver Ray 2.60.0"):
        check_versions("2.60.0", "2.59.1", "the cluster")


def test_unmet_resources_are_named() -> None:
    wanted = wanted_resources({"num_gpus": 2, "accelerator_type": "A100", "resources": {"lamp": 1}})
    assert wanted == {"GPU": 2.0, "lamp": 1.0, "accelerator_type:A100": 0.001}
    assert unmet({"GPU": 2.0, "lamp": 1.0}, {"lamp": 1.0}, {"lamp": 1.0}) == (
        "it waits for 2 GPU (the cluster has 0, 0 of it free)"
    )
    assert unmet({"lamp": 1.0}, {"lamp": 1.0}, {"lamp": 1.0}) == ""


def test_exit_actor_is_refused_and_the_participant_lives(folder: str) -> None:
    with cutline.start(folder, name="leaving", interval=None, quiet=True):
        made = cell("stays")
        with pytest.raises(Misuse, match="exit_actor"):
            ray.get(made.leave.remote())
        assert ray.get(made.keep.remote(1)) == 1


def test_sys_exit_is_a_loss_that_is_not_repeated_for_ever(folder: str) -> None:
    with cutline.start(folder, name="exiting", interval=None, quiet=True) as system:
        made = cell("exits", max_task_retries=0)
        system.ready(made)
        with pytest.raises(SystemHalted, match="has ended the process of 'exits' 1 times"):
            ray.get(made.leave_by_exit.remote())


def test_ray_shut_down_under_a_running_system(folder: str) -> None:
    system = cutline.start(folder, name="gone", interval=None, quiet=True)
    made = cell("left-behind")
    assert ray.get(made.keep.remote(1)) == 1
    ray.shutdown()
    try:
        with pytest.raises(SystemStopped, match="disconnected from Ray"):
            made.keep.remote(2).result(30)
        assert not ray.is_initialized()
    finally:
        system.stop()
    assert not ray.is_initialized()
