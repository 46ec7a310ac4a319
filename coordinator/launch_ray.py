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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from cutline.errors import SpawnFailed
from cutline.participant.host_ray import RayHost, cluster_name
from cutline.participant.ray_options import decode_options, passed_options

from .launch import Ended, launch_document
from .roster import Seat

__all__ = ("RayLauncher", "namespace_of", "host_options", "unmet", "wanted_resources")

_POLL = 0.2


def namespace_of(system: str) -> str:
    """Where Ray keeps this system's names; children would else get the job's namespace."""
    return f"cutline/{system}"


def host_options(
    options: Mapping[str, Any], *, name: str, system: str, env: Mapping[str, str], cluster: str
) -> dict[str, Any]:
    """The options of the Ray actor that hosts a participant.

    Placement is passed on as the user gave it. Names, life time, restarts and concurrency are ours.
    """
    passed = passed_options(decode_options(options, cluster))
    environment = dict(passed.pop("runtime_env", {}))
    given = dict(environment.get("env_vars", {}))
    if "PYTHONPATH" in given:
        env = {**env, "PYTHONPATH": os.pathsep.join((env["PYTHONPATH"], given["PYTHONPATH"]))}
    environment["env_vars"] = {**given, **env}
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
        self, post: Callable[[Ended], None], common: Mapping[str, Any], *, folder: Path, hash_seed: int
    ) -> None:
        self.program: dict[str, Any] = dict(common["program"])
        self.folder = folder
        self._common = dict(common)
        self._post = post
        self._env = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(self.program["path"])}
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
        while not self._closed.wait(0.0):
            with self._lock:
                references = list(self._refs)
            if not references:
                self._closed.wait(_POLL)
                continue
            done, _ = ray.wait(references, num_returns=1, timeout=_POLL)
            for reference in done:
                with self._lock:
                    launch = self._refs.pop(reference)
                    self._actors.pop(launch, None)
                self._post(Ended(launch, _how(reference)))


def _how(reference: Any) -> str:
    try:
        ray.get(reference)
    except RayActorError as error:
        text = str(error)
        return "exit status unknown to Ray" if not text else text.splitlines()[0][:200]
    except RayError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return "exit status 0"
