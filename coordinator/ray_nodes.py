"""The nodes of a Ray cluster, as far as they matter to a system: what they have, which go, what they see.

A participant can only run where the storage folder is the driver's. A node that lacks it is found before
anything is started there: the driver leaves a file with a nonce in the folder, and a task on each other node
looks for it, and says which machine that is, since Unix sockets do not leave theirs.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ray
from ray._private import state as ray_state
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cutline.errors import SpawnFailed, StoreNotShared, StoreNotWritable
from cutline.participant.places import machine_id

__all__ = (
    "NODE_LABEL",
    "alive_nodes",
    "check_nodes",
    "draining_nodes",
    "own_node",
    "pinned_to",
    "silent_nodes",
    "unmet",
    "wanted_resources",
)

NODE_LABEL = "ray.io/node-id"
_PATIENCE = 60.0
# Seconds that a raylet has to take a connection. A machine that is gone does not even refuse.
_KNOCK = 0.5


def alive_nodes() -> dict[str, dict[str, float]]:
    """The resources of each node that is up, by its id."""
    nodes: Any = ray.nodes  # without annotations in Ray
    return {node["NodeID"]: dict(node["Resources"]) for node in nodes() if node["Alive"]}


def own_node() -> str:
    """The node that this process belongs to."""
    return str(ray.get_runtime_context().get_node_id())


def draining_nodes() -> list[str]:
    """Nodes that Ray was told to drain; none where this Ray does not tell."""
    ask = getattr(ray_state.state, "get_draining_nodes", None)
    return [] if ask is None else list(ask())


def silent_nodes(suspects: Collection[str]) -> list[str]:
    """Which of these nodes Ray takes for alive although their raylets take no connection."""
    if not suspects:
        return []
    nodes: Any = ray.nodes  # without annotations in Ray
    return [
        node["NodeID"]
        for node in nodes()
        if node["NodeID"] in suspects
        and node["Alive"]
        and not _listens(node["NodeManagerAddress"], node["NodeManagerPort"])
    ]


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_KNOCK):
            return True
    except OSError:
        return False


def wanted_resources(options: Mapping[str, Any]) -> dict[str, float]:
    """What the options ask for, under Ray's names of resources."""
    named = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    wanted = {there: float(options[here]) for here, there in named.items() if options.get(here)}
    wanted.update({name: float(count) for name, count in (options.get("resources") or {}).items()})
    if options.get("accelerator_type"):
        wanted[f"accelerator_type:{options['accelerator_type']}"] = 0.001
    return wanted


def unmet(wanted: Mapping[str, float], total: Mapping[str, float], free: Mapping[str, float]) -> str:
    """Which resources there are too few of, for people; empty if it is not for want of any."""
    lacking = [
        f"{count:g} {name} (the cluster has {total.get(name, 0.0):g}, {free.get(name, 0.0):g} of it free)"
        for name, count in wanted.items()
        if count > free.get(name, 0.0)
    ]
    return "it waits for " + " and ".join(lacking) if lacking else ""


def pinned_to(node: str, *, soft: bool) -> NodeAffinitySchedulingStrategy:
    """On that node; if soft, elsewhere when it is gone."""
    return NodeAffinitySchedulingStrategy(node, soft=soft)


def _look(path: str, nonce: str) -> tuple[bool, str]:
    """Runs on a node: whether the file is there with this nonce in it, and which machine this is."""
    return os.path.isfile(path) and Path(path).read_text() == nonce, machine_id()


def check_nodes(folder: Path, env: Mapping[str, str]) -> list[str]:
    """Whether every node sees the storage folder; returns the nodes that are on other machines.

    Costs a task per node; nothing if the cluster is this node alone.

    Raises:
        StoreNotShared: names the nodes that see another storage folder, or none.
        SpawnFailed: a node did not answer.
    """
    others = sorted(set(alive_nodes()) - {own_node()})
    if not others:
        return []
    nonce = secrets.token_hex(8)
    file = folder / f"reach-{nonce}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(nonce)
    except OSError as error:
        raise StoreNotWritable(f"{error.filename}: {error.strerror}", path=str(folder)) from error
    try:
        seen = _ask(others, str(file), nonce, env)
    finally:
        file.unlink(missing_ok=True)
    blind = [node for node, (store, _) in seen.items() if not store]
    if blind:
        raise StoreNotShared(
            f"the storage folder {folder} is another one, or not there, on node {', '.join(blind)}: what a "
            "participant saves there could not be found again. Mount it on every node of the cluster",
            path=str(folder),
            nodes=blind,
        )
    return [node for node, (_, machine) in seen.items() if machine != machine_id()]


def _ask(nodes: list[str], path: str, nonce: str, env: Mapping[str, str]) -> dict[str, tuple[bool, str]]:
    look: Any = ray.remote(_look)
    references = {
        node: look.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=pinned_to(node, soft=False),
            runtime_env={"env_vars": dict(env)},
        ).remote(path, nonce)
        for node in nodes
    }
    seen: dict[str, tuple[bool, str]] = {}
    for node, reference in references.items():
        try:
            seen[node] = ray.get(reference, timeout=_PATIENCE)
        except GetTimeoutError as error:
            raise SpawnFailed(f"node {node} did not answer in {_PATIENCE:.0f} s", node=node) from error
        except RayError as error:
            raise SpawnFailed(f"nothing can be run on node {node}: {error}", node=node) from error
    return seen
