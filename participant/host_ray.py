"""A participant in a Ray actor: Ray places, starts and watches it, and nothing else.

The actor *contains* the user's instance. It declares no concurrency groups and no async method, so that its
methods run on the worker's main thread, and it has one that never returns: `run`, the runner's loop. Its
reference is what the coordinator watches: when the process dies, Ray fails the call within milliseconds.
Messages, markers and images do not go through Ray; the transport is that of every other host.

Ray's own restarts and retries are off: a restarted actor would run its constructor again and look alive
with an empty state. The coordinator starts a new one from the newest cut.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import ray
import ray.actor

from cutline.errors import Misuse, SpawnFailed

from .host_process import serve
from .liaison import ORPHAN_AFTER
from .persist import Persister
from .ray_refs import install
from .ray_runner import RayRunner
from .ray_store import ray_store
from .standing_by import await_document
from .transport import Transport

__all__ = ("RayHost", "check_versions", "cluster_name", "own_host", "refuse_exit")


def check_versions(here: str, there: str, where: str) -> None:
    """Ray's own protocol is of one version.

    Raises:
        SpawnFailed: the two differ.
    """
    if here != there:
        raise SpawnFailed(
            f"{where} runs Ray {there}, the driver Ray {here}: install one version on all nodes and "
            "in the driver"
        )


def cluster_name() -> str:
    """What tells this cluster from others, and from itself after a restart."""
    node = ray._private.worker._global_node
    name = getattr(node, "session_name", None)
    return str(name or ray.get_runtime_context().gcs_address)


def own_host() -> str:
    """The address of this node, as the cluster knows it."""
    ask: Any = ray.util.get_node_ip_address  # without annotations in Ray
    return str(ask())


def refuse_exit() -> None:
    """Stands in for `ray.actor.exit_actor` in a participant's process."""
    raise Misuse(
        "exit_actor() in a participant: it would be gone while others still count on it, and what is under "
        "way would be lost. Call cutline.leave() and return from the handler instead."
    )


class _Hosted(RayRunner):
    """A runner in a worker of Ray: its large arguments travel through Ray's object store."""

    def attach(self, transport: Transport, persister: Persister) -> None:
        super().attach(transport, persister)
        if self.setup.by_reference:
            self.parcels.store = ray_store()

    def _new_desk(self, instance: object) -> None:
        super()._new_desk(instance)
        # Options of what handlers spawn may name places of this cluster.
        self.desk.cluster = cluster_name()


class RayHost:
    """What `ray.remote` wraps; never subclassed by user code, never subclasses it."""

    def __init__(self) -> None:
        # Detached as it is, it would stay for ever if whoever asked for it were lost before it calls.
        self.unwanted = threading.Timer(ORPHAN_AFTER, os._exit, (0,))
        self.unwanted.daemon = True
        self.unwanted.start()

    def run(self, document: bytes) -> int:
        """The participant, from birth or restore to its end; see `host_process.serve`."""
        self.unwanted.cancel()
        install()
        leave: Callable[[], None] = ray.actor.exit_actor
        ray.actor.exit_actor = refuse_exit
        status = serve(document, _Hosted, ray.get_runtime_context().get_node_id(), own_host())
        # A detached actor outlives its last call; this one has nothing left to do.
        leave()
        return status

    def stand_by(self, path: str, launch: str) -> int:
        """A spare: waits at the coordinator's socket until it is told whom to host, and then does that.

        Ends when the coordinator has let go of it, or is gone itself.
        """
        self.unwanted.cancel()
        document = await_document(path, launch)
        if not document:
            leave: Callable[[], None] = ray.actor.exit_actor
            leave()
        return self.run(document)

    def watch(self) -> int:
        """Queued behind `run`: it never runs, and its call fails when the process dies."""
        return os.getpid()
