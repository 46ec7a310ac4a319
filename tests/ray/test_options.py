"""Ray's options on Ray: those that are passed arrive at the actor, those that are interpreted act."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import cutline
from cutline.coordinator.launch_ray import host_options
from cutline.errors import RefusedOption, RolledBack, SpawnFailed, SystemHalted
from cutline.participant.ray_options import (
    ACTOR_OPTIONS,
    METHOD_OPTIONS,
    decode_options,
    encode_options,
)

ray = pytest.importorskip("ray")
from ray.util.placement_group import placement_group  # noqa: E402
from ray.util.scheduling_strategies import (  # noqa: E402
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from tests.ray.cast import Cell  # noqa: E402

pytestmark = pytest.mark.usefixtures("local_ray")

SHIPPED: dict[str, Any] = {
    "num_cpus": 0.25,
    "num_gpus": 0,
    "memory": 1024 * 1024,
    "object_store_memory": 80 * 1024 * 1024,
    "resources": {"lamp": 0.5},
    "accelerator_type": "A100",
    "label_selector": {"region": "here"},
    "fallback_strategy": [{"label_selector": {"region": "there"}}],
    "scheduling_strategy": "SPREAD",
    "placement_group": "default",
    "placement_group_bundle_index": 0,
    "placement_group_capture_child_tasks": True,
    "enable_task_events": False,
    "_labels": {"color": "red"},
}


def cell(name: str, **options: Any) -> Any:
    return Cell.options(name=name, **options).remote()  # type: ignore[attr-defined]


def test_the_table_knows_the_options_of_this_ray() -> None:
    # Ray has moved the module once.
    places = ("ray._common.ray_option_utils", "ray._private.ray_option_utils")
    found = next(place for place in places if importlib.util.find_spec(place) is not None)
    assert set(importlib.import_module(found).actor_options) <= set(ACTOR_OPTIONS)
    marks = {"num_returns", "concurrency_group", "max_task_retries", "retry_exceptions", "enable_task_events"}
    assert marks <= set(METHOD_OPTIONS)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_passed_option_arrives_at_the_host(name: str) -> None:
    shipped = encode_options({name: SHIPPED[name]}, "here")
    made = host_options(shipped, name="x#1", system="s", env={"PYTHONPATH": "/p"}, cluster="here")
    assert made[name] == SHIPPED[name]


def test_every_passed_option_is_tried() -> None:
    passed = {name for name, rule in ACTOR_OPTIONS.items() if rule.verdict == "passed"}
    assert passed == set(SHIPPED) | {"runtime_env"}


def test_a_place_of_another_cluster_is_forgotten() -> None:
    shipped = encode_options({"scheduling_strategy": "SPREAD", "num_cpus": 1}, "here")
    assert decode_options(shipped, "there") == {"num_cpus": 1}


@pytest.fixture(scope="module")
def system(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cutline.System]:
    folder = tmp_path_factory.mktemp("options") / "checkpoints"
    with cutline.start(str(folder), name="options", interval=None, quiet=True) as started:
        yield started


def test_resources_and_environment(system: cutline.System) -> None:
    made = cell("rich", num_cpus=0.5, resources={"lamp": 0.25}, runtime_env={"env_vars": {"LAMP": "lit"}})
    resources, lamp, seed = ray.get(made.resources.remote())
    assert (resources["CPU"], resources["lamp"], lamp) == (0.5, 0.25, "lit")
    assert seed == str(int(system.lineage[:7], 16))


def test_a_name_is_the_participants_and_rays_has_the_launch(system: cutline.System) -> None:
    made = cell("named", namespace="mine", lifetime="detached")
    assert ray.get(made.actor_name.remote()).startswith("named#")
    with pytest.raises(ValueError, match="Failed to look up"):
        ray.get_actor("named", namespace="mine")


def test_scheduling_strategies(system: cutline.System) -> None:
    node = ray.get_runtime_context().get_node_id()
    near = cell("near", scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    group = placement_group([{"CPU": 1}])
    ray.get(group.ready())
    inside = cell("inside", scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    assert ray.get([near.keep.remote(1), inside.keep.remote(1)]) == [1, 1]


def test_a_resource_that_is_not_there_is_named(local_ray: None, folder: str) -> None:
    with cutline.start(folder, name="poor", interval=None, quiet=True, spawn_timeout=2.0) as system:
        made = cell("huge", num_cpus=640, resources={"sun": 1})
        with pytest.raises(SpawnFailed, match=r"2 s it waits for 640 CPU .*has 16.* 1 sun") as raised:
            system.ready(made)
        assert "huge" in str(raised.value)
        with pytest.raises(SpawnFailed, match="GPU"):
            ray.get(cell("shiny", num_gpus=1).pid.remote())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrency", 2),
        ("concurrency_groups", {"io": 2}),
        ("allow_out_of_order_execution", True),
        ("max_pending_calls", 10),
        ("enable_tensor_transport", True),
        ("_actor_generator_backpressure_num_objects", 4),
        ("max_restarts", -2),
        ("num_cpus", -1),
        ("num_cpu", 1),
    ],
)
def test_refused_actor_options(name: str, value: Any) -> None:
    with pytest.raises(RefusedOption, match=name):
        cutline.actor(**{name: value})
    with pytest.raises(RefusedOption, match=name):
        Cell.options(**{name: value})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_returns", 2),
        ("concurrency_group", "io"),
        ("retry_exceptions", True),
        ("tensor_transport", "nccl"),
        ("_generator_backpressure_num_objects", 4),
        ("_num_objects_per_yield", 2),
        ("nmae", "x"),
    ],
)
def test_refused_method_options(system: cutline.System, name: str, value: Any) -> None:
    with pytest.raises(RefusedOption, match=name):
        system.handle("named").keep.options(**{name: value})


def test_accepted_method_options(system: cutline.System) -> None:
    made = cell("methods")
    options: dict[str, Any] = {"num_returns": 1, "name": "k", "max_task_retries": 3}
    assert ray.get(made.keep.options(**options).remote(1)) == 1


def test_max_restarts_is_our_budget(local_ray: None, folder: str) -> None:
    with cutline.start(folder, name="budget", interval=None, quiet=True) as budget:
        made = cell("frail", max_restarts=1)
        _lose(budget, made)
        with pytest.raises(SystemHalted, match="max_restarts=1"):
            _lose(budget, made)


def test_max_task_retries_is_how_often_a_killer_is_delivered_again(local_ray: None, folder: str) -> None:
    with cutline.start(folder, name="killer", interval=None, quiet=True) as system:
        made = cell("doomed", max_task_retries=1)
        system.ready(made)
        with pytest.raises(SystemHalted, match="2 times"):
            ray.get(made.leave_by_exit.remote())


def _lose(system: cutline.System, handle: Any) -> None:
    """Ends the participant's process and waits until it answers again."""
    before = ray.get(handle.pid.options(durable=False).remote())
    os.kill(before, signal.SIGKILL)
    while True:
        try:
            if ray.get(handle.pid.options(durable=False).remote()) != before:
                return
        except RolledBack:
            continue
