"""Participants as Ray actors: starting, watching and ending them.

They are detached, because children of an actor that is killed die with it, even detached ones' plain
children, and the coordinator may be killed; so whoever stops the system ends them. Their names are
``name#launch`` in the namespace ``cutline/<system>``: a name just freed cannot be taken again at once.

One thread watches the references of their `run` calls; a reference that fails is an end.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from cutline.errors import Misuse, SpawnFailed
from cutline.participant.host_ray import RayHost, cluster_name
from cutline.participant.ray_options import decode_options, passed_options

from .launch import Draining, Ended, launch_document
from .ray_nodes import NODE_LABEL, alive_nodes, draining_nodes
from .roster import Seat

__all__ = ("RayLauncher", "namespace_of", "host_options", "unmet", "wanted_resources")

_POLL = 0.2
_LOOK_AT_NODES = 1.0


def namespace_of(system: str) -> str:
    """Where Ray keeps this system's names; children would else get the job's namespace."""
    return f"cutline/{system}"


def host_options(
    options: Mapping[str, Any],
    *,
    name: str,
    system: str,
    env: Mapping[str, str],
    cluster: str,
    left: Sequence[str] = (),
) -> dict[str, Any]:
    """The options of the Ray actor that hosts a participant.

    Placement is passed on as the user gave it, but for the nodes that were left. Names, life time, restarts
    and concurrency are ours.
    """
    passed = passed_options(decode_options(options, cluster))
    environment = dict(passed.pop("runtime_env", {}))
    given = dict(environment.get("env_vars", {}))
    if "PYTHONPATH" in given:
        env = {**env, "PYTHONPATH": os.pathsep.join((env["PYTHONPATH"], given["PYTHONPATH"]))}
    environment["env_vars"] = {**given, **env}
    if left:
        labels = passed.get("label_selector") or {}
        passed["label_selector"] = {NODE_LABEL: f"!in({','.join(left)})", **labels}
    return {
        "num_cpus": 0,
        **passed,
        "runtime_env": environment,
        "name": name,
        "namespace": namespace_of(system),
        "lifetime": "detached",
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": 1,
    }


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


class RayLauncher:
    """`cutline.coordinator.launch.Launcher` on Ray. Ray must be connected in this process."""

    def __init__(
        self,
        post: Callable[[Ended | Draining], None],
        common: Mapping[str, Any],
        *,
        folder: Path,
        hash_seed: int,
    ) -> None:
        self.program: dict[str, Any] = dict(common["program"])
        self.folder = folder
        self._common = dict(common)
        self._post = post
        self._env = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(self.program["path"])}
        self._left: dict[str, None] = {}
        self._draining: dict[str, None] = {}
        self._actors: dict[str, Any] = {}
        self._refs: dict[Any, str] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="cutline-ray-watch", daemon=True).start()

    def start(self, seat: Seat, mode: str, now: float, **details: Any) -> None:
        """See `Launcher.start`."""
        seat.launch = secrets.token_hex(6)
        seat.flight = str(self.folder / f"{seat.launch}.flight")
        listen = f"unix:{self.folder / seat.launch}.sock"
        document = launch_document(
            {**self._common, "program": self.program, "listen": listen}, seat, mode, details
        )
        options = host_options(
            seat.options,
            name=self._name(seat),
            system=self._common["system"],
            env=self._env,
            cluster=cluster_name(),
            left=list(self._left),
        )
        try:
            actor: Any = ray.remote(RayHost).options(**options).remote()
            reference = actor.run.remote(document)
        except (RayError, ValueError, TypeError) as error:
            raise SpawnFailed(f"participant {seat.member.name!r}: Ray refused it: {error}") from error
        with self._lock:
            self._actors[seat.launch] = actor
            self._refs[reference] = seat.launch
        seat.pid, seat.started, seat.overdue = 0, 0.0, ""
        seat.phase, seat.launched_at, seat.link, seat.address = "starting", now, None, ""

    @staticmethod
    def _name(seat: Seat) -> str:
        return f"{seat.member.name}#{seat.launch}"

    def adopt(self, seat: Seat) -> None:
        """See `Launcher.adopt`."""
        try:
            actor: Any = ray.get_actor(self._name(seat), namespace=namespace_of(self._common["system"]))
            reference: Any = actor.watch.remote()
        except (ValueError, RayError):
            self._post(Ended(seat.launch, "its actor is gone"))
            return
        with self._lock:
            self._actors[seat.launch] = actor
            self._refs[reference] = seat.launch

    def alive(self, seat: Seat) -> bool:
        """See `Launcher.alive`."""
        with self._lock:
            return bool(seat.launch) and seat.launch in self._refs.values()

    def why_waiting(self, seat: Seat) -> str:
        """See `Launcher.why_waiting`: which resource the cluster has too little of."""
        wanted = wanted_resources(decode_options(seat.options, cluster_name()))
        total: Any = ray.cluster_resources  # without annotations in Ray
        free: Any = ray.available_resources
        return unmet(wanted, total(), free())

    def leave(self, node: str, seats: Sequence[Seat]) -> None:
        """See `Launcher.leave`."""
        nodes = alive_nodes()
        if node not in nodes:
            raise Misuse(f"there is no node {node!r} in the cluster; there are {', '.join(sorted(nodes))}")
        left = {*self._left, *draining_nodes(), node}
        others = [resources for other, resources in nodes.items() if other not in left]
        for seat in seats:
            options = decode_options(seat.options, cluster_name())
            if _pinned(options, node):
                raise Misuse(f"{seat.member.name!r} is pinned to node {node} by its options; it cannot move")
            wanted = wanted_resources(options)
            if not any(unmet(wanted, total, total) == "" for total in others):
                raise Misuse(
                    f"{seat.member.name!r} cannot leave node {node}: no other node has all that its options "
                    f"ask for ({wanted or 'there is no other node'})",
                    participant=seat.member.name,
                )
        self._left[node] = None

    def end(self, seat: Seat) -> None:
        """See `Launcher.end`."""
        with self._lock:
            actor = self._actors.get(seat.launch)
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """See `Launcher.close`."""
        self._closed.set()

    def _watch(self) -> None:
        look_at = 0.0
        while not self._closed.wait(0.0):
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_AT_NODES
                self._look_at_nodes()
            with self._lock:
                references = list(self._refs)
            if not references:
                self._closed.wait(_POLL)
                continue
            done, _ = ray.wait(references, num_returns=1, timeout=_POLL)
            for reference in done:
                with self._lock:
                    launch = self._refs.pop(reference)
                    actor = self._actors.pop(launch, None)
                how = _how(reference)
                if actor is not None:
                    # One whose `run` has raised would stay, detached as it is.
                    ray.kill(actor)
                self._post(Ended(launch, how))

    def _look_at_nodes(self) -> None:
        for node in draining_nodes():
            if node not in self._draining:
                self._draining[node] = None
                self._post(Draining(node))


def _pinned(options: Mapping[str, Any], node: str) -> bool:
    strategy = options.get("scheduling_strategy")
    return getattr(strategy, "node_id", None) == node and not getattr(strategy, "soft", False)


def _how(reference: Any) -> str:
    try:
        ray.get(reference)
    except ActorUnavailableError:
        return "its process or node does not answer Ray any more"
    except RayActorError as error:
        text = str(error)
        if "exit_actor" in text:
            return "exit status 0"
        return "exit status unknown to Ray" if not text else text.splitlines()[0][:200]
    except RayTaskError as error:
        cause = error.cause
        return f"{type(cause).__name__}: {cause}"
    except RayError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return "exit status 0"
