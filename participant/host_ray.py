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

from .host_process import serve
from .ray_refs import install

__all__ = ("RayHost", "RESOURCE_OPTIONS")

RESOURCE_OPTIONS = (
    "num_cpus",
    "num_gpus",
    "memory",
    "resources",
    "accelerator_type",
    "scheduling_strategy",
    "label_selector",
    "runtime_env",
)


class RayHost:
    """What `ray.remote` wraps; never subclassed by user code, never subclasses it."""

    def run(self, document: bytes) -> int:
        """The participant, from birth or restore to its end; see `host_process.serve`."""
        install()
        return serve(document)

    def watch(self) -> int:
        """Queued behind `run`: it never runs, and its call fails when the process dies."""
        return os.getpid()
