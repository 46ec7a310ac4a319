"""The nodes of a Ray cluster, as far as they matter to a system: what they have, which go, what they see.

A participant can only run where the storage folder is the driver's, and so far only where the driver's
sockets are. A node that lacks either is found before anything is started there: the driver leaves a file
with a nonce in both folders, and a task on each other node looks for it.
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

from cutline.errors import RefusedOption, SpawnFailed, StoreNotShared, StoreNotWritable

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


def _look(paths: list[str], nonce: str) -> list[bool]:
    """Runs on a node: which of the files are there with this nonce in them."""
    return [os.path.isfile(path) and Path(path).read_text() == nonce for path in paths]


def check_nodes(folder: Path, run_folder: Path, env: Mapping[str, str]) -> None:
    """Whether every node sees the storage folder and the folder of sockets.

    Costs a task per node; nothing if the cluster is this node alone.

    Raises:
        StoreNotShared: names the nodes that see another storage folder, or none.
        RefusedOption: nodes on other machines, which links cannot reach so far.
        SpawnFailed: a node did not answer.
    """
    others = sorted(set(alive_nodes()) - {own_node()})
    if not others:
        return
    nonce = secrets.token_hex(8)
    files = [folder / f"reach-{nonce}", run_folder / f"reach-{nonce}"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            file.write_text(nonce)
    except OSError as error:
        raise StoreNotWritable(f"{error.filename}: {error.strerror}", path=str(folder)) from error
    try:
        seen = _ask(others, [str(file) for file in files], nonce, env)
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    blind = [node for node, (store, _) in seen.items() if not store]
    if blind:
        raise StoreNotShared(
            f"the storage folder {folder} is another one, or not there, on node {', '.join(blind)}: what a "
            "participant saves there could not be found again. Mount it on every node of the cluster",
            path=str(folder),
            nodes=blind,
        )
    apart = [node for node, (_, run) in seen.items() if not run]
    if apart:
        raise RefusedOption(
            f"node {', '.join(apart)} is another machine than the driver's: links between participants do "
            "not leave the machine in this version. Use a cluster whose nodes share one machine",
            nodes=apart,
        )


def _ask(nodes: list[str], paths: list[str], nonce: str, env: Mapping[str, str]) -> dict[str, list[bool]]:
    look: Any = ray.remote(_look)
    references = {
        node: look.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=pinned_to(node, soft=False),
            runtime_env={"env_vars": dict(env)},
        ).remote(paths, nonce)
        for node in nodes
    }
    seen: dict[str, list[bool]] = {}
    for node, reference in references.items():
        try:
            seen[node] = ray.get(reference, timeout=_PATIENCE)
        except GetTimeoutError as error:
            raise SpawnFailed(f"node {node} did not answer in {_PATIENCE:.0f} s", node=node) from error
        except RayError as error:
            raise SpawnFailed(f"nothing can be run on node {node}: {error}", node=node) from error
    return seen
