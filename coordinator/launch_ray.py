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
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from cutline.errors import Misuse, SpawnFailed
from cutline.participant.host_ray import RayHost, cluster_name
from cutline.participant.ray_options import decode_options, passed_options
from cutline.participant.standing_by import LAUNCH_BYTES

from .launch import Draining, Ended, launch_document
from .ray_nodes import NODE_LABEL, alive_nodes, draining_nodes, silent_nodes, unmet, wanted_resources
from .roster import Seat
from .spares import SPARE, Spares

__all__ = ("RayLauncher", "namespace_of", "host_options")

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


class RayLauncher:
    """`cutline.coordinator.launch.Launcher` on Ray. Ray must be connected in this process."""

    def __init__(
        self,
        post: Callable[[Ended | Draining], None],
        common: Mapping[str, Any],
        *,
        folder: Path,
        hash_seed: int,
        spares: int | None = 0,
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
        # Nodes that have taken participants with them, and that Ray has not given up yet.
        self._silent: list[str] = []
        self._silence = threading.Lock()
        self.spares = Spares(
            spares, folder, partial(self._host_options, {}), self._start_spare, self._end_launch
        )
        threading.Thread(target=self._watch, name="cutline-ray-watch", daemon=True).start()

    def start(self, seat: Seat, mode: str, now: float, **details: Any) -> None:
        """See `Launcher.start`."""
        document = partial(self._document, seat, mode, details)
        if seat.node:
            self._avoid_the_silent(seat.node)
        options = self._host_options(seat.options)
        fits = self.spares.expect(options)
        # Nobody waits for a newborn as everybody does for one who was lost.
        if mode != "restore" or not self.spares.take(options, document):
            self._start(seat, options, document(secrets.token_hex(LAUNCH_BYTES // 2)))
        if fits:
            self.spares.serve(seat.launch)
        seat.pid, seat.started, seat.overdue = 0, 0.0, ""
        seat.phase, seat.launched_at, seat.link, seat.address = "starting", now, None, ""

    def _document(self, seat: Seat, mode: str, details: Mapping[str, Any], launch: str) -> bytes:
        """What the process of a launch is told; the seat has that launch from now on."""
        seat.launch = launch
        seat.flight = str(self.folder / f"{launch}.flight")
        return launch_document({**self._common, "program": self.program}, seat, mode, details)

    def _host_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Of a host without a name yet."""
        return host_options(
            options,
            name="",
            system=self._common["system"],
            env=self._env,
            cluster=cluster_name(),
            left=[*self._left, *(node for node in self._silent if node not in self._left)],
        )

    def _avoid_the_silent(self, *lost: str) -> None:
        """Ray takes a node that was lost for alive until its health check has failed several times, and would
        place participants there; they would be lost a second time, a quarter of a minute later."""
        with self._silence:
            self._silent = silent_nodes({*self._silent, *lost})

    def _start(self, seat: Seat, options: Mapping[str, Any], document: bytes) -> None:
        try:
            actor = _actor(options, f"{seat.member.name}#{seat.launch}")
            reference = actor.run.remote(document)
        except (RayError, ValueError, TypeError) as error:
            raise SpawnFailed(f"participant {seat.member.name!r}: Ray refused it: {error}") from error
        self._started(seat.launch, actor, reference)

    def _start_spare(self, options: Mapping[str, Any], launch: str, path: str) -> None:
        try:
            actor = _actor(options, f"{SPARE}#{launch}")
            reference = actor.stand_by.remote(path, launch)
        except (RayError, ValueError, TypeError) as error:
            raise SpawnFailed(f"Ray refused a spare: {error}") from error
        self._started(launch, actor, reference)

    def _started(self, launch: str, actor: Any, reference: Any) -> None:
        with self._lock:
            self._actors[launch] = actor
            self._refs[reference] = launch

    def adopt(self, seat: Seat) -> None:
        """See `Launcher.adopt`."""
        if self.spares.expect(self._host_options(seat.options)):
            self.spares.serve(seat.launch)
        # Actors keep the name that they were started under.
        for name in (seat.member.name, SPARE):
            try:
                actor = ray.get_actor(f"{name}#{seat.launch}", namespace=namespace_of(self._common["system"]))
                self._started(seat.launch, actor, actor.watch.remote())
                return
            except (ValueError, RayError):
                continue
        self._post(Ended(seat.launch, "its actor is gone"))

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
        self._end_launch(seat.launch)

    def _end_launch(self, launch: str) -> None:
        with self._lock:
            actor = self._actors.get(launch)
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """See `Launcher.close`."""
        self._closed.set()
        self.spares.close()

    def _watch(self) -> None:
        look_at = 0.0
        while not self._closed.wait(0.0):
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_AT_NODES
                self._look_at_nodes()
                if self._silent:
                    self._avoid_the_silent()
            self.spares.tend()
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
                if not self.spares.lost(launch):
                    self._post(Ended(launch, _how(reference)))
                if actor is not None:
                    # One whose `run` has raised would stay, detached as it is.
                    ray.kill(actor)

    def _look_at_nodes(self) -> None:
        for node in draining_nodes():
            if node not in self._draining:
                self._draining[node] = None
                self._post(Draining(node))


def _actor(options: Mapping[str, Any], name: str) -> Any:
    kind: Any = ray.remote(RayHost)
    return kind.options(**{**options, "name": name}).remote()


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
