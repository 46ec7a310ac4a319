"""A Ray cluster of several nodes on this machine: each node is a raylet with workers of its own.

What this cannot show: nodes that share no file system and no sockets. What it does show is all that Ray
decides: placement, nodes that die, nodes that are drained. A node that sees another storage folder is made
with a mount namespace of its own (`blind_node`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from tests.programs.ring import again

__all__ = ("SEAT", "blind_node", "cannot_unshare", "cluster", "end_process", "node_of")

# What participants ask for, so that Ray spreads them over nodes that have it.
SEAT = "seat"
_STORE = 80 * 1024 * 1024


@contextmanager
def cluster(*, nodes: int, seats: int = 4) -> Iterator[Any]:
    """A cluster with a head and further nodes, `nodes` in all; this process is connected to it."""
    made: Any = Cluster(shutdown_at_exit=True)
    try:
        for _ in range(nodes):
            made.add_node(
                num_cpus=2,
                resources={SEAT: seats},
                object_store_memory=_STORE,
                include_dashboard=False,
            )
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, and makes it."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def node_of(system: Any, name: str) -> str:
    """Where a participant is."""
    return str(again(system.status)["participants"][name]["node"])


def cannot_unshare() -> str:
    """Why this machine cannot give a node a file system view of its own; empty if it can."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "there is no unshare here"
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True
    )
    return tried.stderr.strip()


@contextmanager
def blind_node(address: str, folder: Path, resources: str) -> Iterator[None]:
    """One more node, for whose processes `folder` is another, empty one."""
    script = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--address={address}"]
    start += [f"--resources={resources}", "--num-cpus=1", f"--object-store-memory={_STORE}"]
    start += ["--disable-usage-stats"]
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "blind", str(folder), *start],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RAY_DISABLE_DOCKER_CPU_WARNING": "1"},
    )
    try:
        yield
    finally:
        end_process(process)
