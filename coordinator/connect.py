"""`cutline.connect`: another program takes up a system that runs on a Ray cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cutline.errors import NotRunning
from cutline.participant.endpoint_file import read_endpoint
from cutline.participant.program import new_program
from cutline.storage import store_home

from .client import Client
from .environment import told_by_environment
from .system import System
from .telling import tell_people

__all__ = ("connect",)


def connect(
    name: str = "default",
    storage: str | os.PathLike[str] | None = None,
    *,
    timeout: float = 120.0,
    quiet: bool = False,
) -> System:
    """Becomes the driver of a system that goes on without a program, or whose program was killed.

    The system must run on a Ray cluster that outlives programs; this one connects to the cluster that
    RAY_ADDRESS names, unless it is connected already. Everybody goes back to a checkpoint that is taken for
    this, and what an earlier program has told after it is delivered again. At its end this program leaves the
    system, which goes on, unless it calls `stop`.

    Args:
        name: the system's name.
        storage: its storage folder or URL; not needed on the cluster that it was started on.
        timeout: seconds until the system has to be there.
        quiet: no lines about losses and recoveries on standard error.

    Raises:
        NotRunning: no such system runs; the message says how to start it.
        DriverConnected: another program is the driver, or about to be; the message names its process.
        SystemHalted: the system handles nothing any more.
        Misuse: the system belongs to the program that started it.
    """
    tell_people(quiet)
    # Ray is an extra: nothing of it is imported by who runs plain processes.
    from .ray_actor import join_ray

    join_ray()
    folder = store_home(storage) if storage is not None else _recorded(name)
    if read_endpoint(folder, name) is None:
        raise NotRunning(
            f"no system {name!r} runs in {folder}: it was stopped, or was never started there. "
            f"cutline.start({str(folder)!r}, name={name!r}) starts it, or resumes its newest checkpoint",
            system=name,
            path=str(folder),
        )
    client = _client(folder, name)
    try:
        program = new_program()
        about = {name: program[name] for name in ("id", "path", "renamed")}
        doc = client.request("connect", timeout, pid=os.getpid(), **about)
        # The request's connection is what keeps others out until the driver's stands.
        told = told_by_environment(folder, doc["spec"]["settings"]["interval"])
        return System(doc["spec"], folder, quiet, told, running=doc, patience=timeout)
    finally:
        client.close()


def _recorded(name: str) -> Path:
    from .ray_directory import look_up, systems

    entry = look_up(name)
    if entry is None:
        known = ", ".join(systems()) or "none"
        raise NotRunning(
            f"no system {name!r} is known to this Ray cluster (known: {known}). cutline.start(FOLDER, "
            f"name={name!r}) starts it, or resumes it from its newest checkpoint",
            system=name,
        )
    return Path(entry.store)


def _client(folder: Path, name: str) -> Any:
    try:
        return Client(folder, name)
    except NotRunning as error:
        raise NotRunning(
            f"{error}. Its coordinator is gone, and nobody watched it: its participants end by themselves. "
            f"cutline.start({str(folder)!r}, name={name!r}) resumes it from its newest checkpoint",
            system=name,
            path=str(folder),
        ) from error
