"""The coordinator as a Ray actor, and the driver's hold on it.

`RayCoordinator` runs the same coordinator as the process does (`begin`), on its main thread, with
participants launched by Ray. `RaySupervisor` is to it what `Supervisor` is to a process: starts it, notices
its death by the reference of its `run` call, starts another one that takes over.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from cutline.errors import CutlineError, NotRunning, SystemStopped
from cutline.participant.addresses import TLS
from cutline.participant.host_ray import check_versions, cluster_name, own_host
from cutline.participant.messages import pack_error, unpack_error
from cutline.participant.ray_refs import install
from cutline.participant.ray_store import ray_store

from .begin import begin, coordinate
from .launch_ray import RayLauncher, namespace_of
from .ray_directory import Entry, enter, strike
from .ray_nodes import check_nodes, draining_nodes, own_node, pinned_to
from .ray_noise import OWN_PIDS, quiet_own_deaths
from .settings import Settings

__all__ = ("RayCoordinator", "RaySupervisor", "connect_ray", "join_ray")

_TRIES = 5
# Seconds that an actor without work stays for whoever wants its last answer.
_LINGER = 5.0
# Seconds within which the driver must tell a coordinator that has begun to run.
_UNWANTED = 60.0


def connect_ray() -> list[str]:
    """Connects to the cluster that the program uses, or RAY_ADDRESS names, or a local one made now.

    Returns lines for people.
    """
    install()
    quiet_own_deaths()
    if ray.is_initialized():
        return []
    if os.environ.get("RAY_ADDRESS"):
        return join_ray()
    # Named, because Ray would else join any cluster that somebody runs on this machine.
    ray.init("local", include_dashboard=False, log_to_driver=False)
    return ["a local Ray was started; it and the system end with this program"]


def join_ray() -> list[str]:
    """Connects to the cluster that the program uses, or RAY_ADDRESS names; makes none.

    Returns lines for people.

    Raises:
        NotRunning: there is no such cluster.
    """
    install()
    quiet_own_deaths()
    if ray.is_initialized():
        return []
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        raise NotRunning(
            "this program is connected to no Ray cluster: set RAY_ADDRESS, or call ray.init(address=...) "
            "first. A system on plain processes, or on a Ray of its program's own, cannot be connected to"
        )
    ray.init(address=address, log_to_driver=False)
    return [f"connected to the Ray cluster at {address}"]


def _own_ray() -> bool:
    """Whether this program has started the Ray that it uses, which then ends with it."""
    node: Any = ray._private.worker._global_node
    return node is not None and bool(node.is_head())


class RayCoordinator:
    """The actor; its methods run one after the other on the main thread."""

    def start(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What the coordinator's process says in its first line: the lineage, or an error."""
        try:
            check_versions(spec["ray"], ray.__version__, "the cluster")
            # Who stands by waits at a Unix socket, and Ray might place it on a machine without it.
            apart = spec["listen"].startswith(TLS)
            launcher = partial(RayLauncher, spares=0 if apart else Settings(**spec["settings"]).spares)
            self.coordinator, self.store = begin(spec, launcher, own_host())
            self.unwanted = _exit_after(_UNWANTED)
            enter(spec["settings"]["system"], Entry(spec["home"], spec["actor"]))
        except Exception as error:
            return {"error": pack_error(error, participant="coordinator")}
        return {
            "lineage": self.coordinator.lineage,
            "resumed": self.coordinator.resumed,
            "damaged": self.coordinator.damage,
            "pid": os.getpid(),
        }

    def run(self, spec: dict[str, Any]) -> str:
        """Coordinates until the end; returns why it ended."""
        self.unwanted.cancel()
        self.reason = coordinate(self.coordinator, self.store, spec)
        strike(spec["settings"]["system"], spec["actor"])
        # Detached as it is, it would stay; the driver that ends it may be gone.
        _exit_after(_LINGER)
        return self.reason

    def watch(self) -> str:
        """Queued behind `run`, for a driver that has not called that: why it ended."""
        return self.reason


def _exit_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
    return timer


class RaySupervisor:
    """Owns the coordinator's actor for as long as the driver lives.

    Args:
        running: what a coordinator that another driver has started says to one that connects.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        failed: Callable[[CutlineError], None],
        running: dict[str, Any] | None = None,
    ) -> None:
        self.spec = spec
        self.failed = failed
        self.back: Callable[[dict[str, Any]], None] = lambda _doc: None
        self.stopping = False
        self.deaths: list[dict[str, Any]] = []
        self._disconnected = False
        self.cluster = cluster_name()
        self.parcel_store = ray_store() if spec["settings"]["by_reference"] else None
        self._env = {"PYTHONPATH": os.pathsep.join(spec["program"]["path"])}
        if running is not None:
            self.first = self._adopt(running)
        else:
            if check_nodes(Path(spec["home"]), self._env) and spec["listen"] == "unix:":
                # A part of the cluster is on other machines.
                spec["listen"] = TLS
            self.first = self._start(take_over=False)
        self.host = own_host() if spec["listen"].startswith(TLS) else ""
        self._thread = threading.Thread(target=self._watch, name="cutline-supervisor", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process id of the coordinator's worker."""
        return int(self._doc["pid"])

    @property
    def bound(self) -> str:
        """Why the system cannot outlive this program, for people; empty if it can."""
        return "this program has started the Ray that the system runs on" if _own_ray() else ""

    def _adopt(self, running: dict[str, Any]) -> dict[str, Any]:
        name, system = self.spec["actor"], self.spec["settings"]["system"]
        try:
            self._actor: Any = ray.get_actor(name, namespace=namespace_of(system))
        except ValueError as error:
            raise NotRunning(
                f"the coordinator of system {system!r} is an actor of another Ray cluster than this program "
                "is connected to",
                system=system,
            ) from error
        damaged: list[str] = list(running["damaged"])
        self._doc = {"lineage": running["lineage"], "resumed": 0, "damaged": damaged, "pid": running["pid"]}
        OWN_PIDS.add(int(running["pid"]))
        self._run: Any = self._actor.watch.remote()
        return self._doc

    def _start(self, take_over: bool) -> dict[str, Any]:
        system = self.spec["settings"]["system"]
        actor = f"@coordinator#{secrets.token_hex(4)}"
        options: dict[str, Any] = {
            "num_cpus": 0,
            "name": actor,
            "namespace": namespace_of(system),
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": {"env_vars": self._env},
            # On the driver's node: lost with the driver, or not at all.
            "scheduling_strategy": pinned_to(own_node(), soft=own_node() in draining_nodes()),
        }
        lineage = self.first["lineage"] if take_over else ""
        made = {"take_over": take_over, "lineage": lineage, "ray": ray.__version__, "actor": actor}
        spec = {**self.spec, **made}
        kind: Any = ray.remote(RayCoordinator)
        self._actor = kind.options(**options).remote()
        doc: dict[str, Any] = ray.get(self._actor.start.remote(spec))
        if "error" in doc:
            ray.kill(self._actor)
            raise unpack_error(doc["error"], participant="coordinator", live={})
        self._doc = doc
        OWN_PIDS.add(int(doc["pid"]))
        self._run = self._actor.run.remote(spec)
        return doc

    def _watch(self) -> None:
        recent: list[float] = []
        while True:
            reason = self._outcome()
            if self.stopping:
                return
            if self._disconnected or not ray.is_initialized():
                # Nothing of Ray's may be called now: it would start another cluster.
                self.failed(
                    SystemStopped(
                        "this program has disconnected from Ray (ray.shutdown), and its system with it; "
                        "connect and run it again to resume from the newest checkpoint"
                    )
                )
                return
            died, pid = time.monotonic(), self.pid
            recent = [at for at in recent if died - at < 30.0] + [died]
            if reason is not None or len(recent) > _TRIES:
                self.failed(
                    SystemStopped(
                        f"the coordinator has ended ({reason or 'lost'}); run the program again to resume "
                        "from the newest checkpoint"
                    )
                )
                return
            try:
                self._start(take_over=True)
            except Exception as error:
                self.failed(SystemStopped(f"no new coordinator could be started: {error}"))
                return
            doc = {"role": "coordinator", "pid": pid, "recovered_ms": (time.monotonic() - died) * 1000}
            self.deaths.append(doc)
            self.back(doc)

    def _outcome(self) -> str | None:
        """Why `run` returned; None if its process was lost."""
        try:
            reason: str = ray.get(self._run)
        except RayError:
            return None
        except SystemExit:
            # So Ray tells a thread that waits when the program calls ray.shutdown.
            self._disconnected = True
            return None
        return reason

    def leave(self) -> None:
        """Lets go of a coordinator that goes on without this program."""
        self.stopping = True

    def stop(self, patience: float = 10.0) -> None:
        """Lets the coordinator end; after `patience` seconds its actor is ended."""
        self.stopping = True
        if not ray.is_initialized():
            return
        try:
            ray.wait([self._run], timeout=patience)
            # With its answer there, or without.
            ray.kill(self._actor)
        except RayError as error:
            # Ray itself is gone, and all that it ran.
            self._doc["error_at_stop"] = str(error)
        self._thread.join(timeout=patience)
