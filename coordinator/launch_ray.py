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
from cutline.participant.host_ray import RESOURCE_OPTIONS, RayHost

from .launch import Ended, launch_document
from .roster import Seat

__all__ = ("RayLauncher", "namespace_of", "host_options")

_POLL = 0.2


def namespace_of(system: str) -> str:
    """Where Ray keeps this system's names; children would else get the job's namespace."""
    return f"cutline/{system}"


def host_options(
    options: Mapping[str, Any], *, name: str, system: str, env: Mapping[str, str]
) -> dict[str, Any]:
    """The options of the Ray actor that hosts a participant.

    Placement is passed on as the user gave it. Names, life time, restarts and concurrency are ours.
    """
    passed = {key: value for key, value in options.items() if key in RESOURCE_OPTIONS}
    environment = dict(passed.pop("runtime_env", {}))
    environment["env_vars"] = {**environment.get("env_vars", {}), **env}
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
            seat.options, name=self._name(seat), system=self._common["system"], env=self._env
        )
        try:
            actor: Any = ray.remote(RayHost).options(**options).remote()
            reference = actor.run.remote(document)
        except (RayError, ValueError) as error:
            raise SpawnFailed(f"participant {seat.member.name!r}: Ray refused it: {error}") from error
        with self._lock:
            self._actors[seat.launch] = actor
            self._refs[reference] = seat.launch
        seat.pid, seat.started = 0, 0.0
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
