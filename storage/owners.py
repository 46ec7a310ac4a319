"""Who holds a lease, and whether that process still lives.

A process is known by host, number and start: numbers are used again. The host's text includes the boot and
the process namespace where the system tells them, so that two containers of one name are not taken for one
machine. Starts are counted from boot: a wall clock may be set back. When in doubt the owner lives, and its
lease runs out in time.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = (
    "EDITING",
    "FORKING",
    "IMPORTING",
    "MAKING",
    "NOBODY",
    "Owner",
    "host_name",
    "is_dead",
    "process_start",
)

# What an owner does that writes folders of no lineage: nobody may collect under its lease.
IMPORTING = "cutline import"
EDITING = "cutline edit"
FORKING = "cutline fork"
MAKING = (IMPORTING, EDITING, FORKING)
_SLACK = 1.0


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds a lease.

    ``started``: `process_start` of ``pid``, or any later moment on a wall clock. ``what`` says what it
    does, for people. ``driver_pid``: the user's process it works for.
    """

    host: str
    pid: int
    started: float
    driver_pid: int
    what: str

    @classmethod
    def here(cls, what: str, driver_pid: int | None = None) -> Owner:
        """The calling process."""
        pid = os.getpid()
        started = process_start(pid)
        return cls(
            host_name(), pid, time.time() if started is None else started, driver_pid or os.getppid(), what
        )

    def to_doc(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "pid": self.pid,
            "started": self.started,
            "driver_pid": self.driver_pid,
            "what": self.what,
        }

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> Owner:
        return cls(**doc)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]} ({self.what})"


# Who held a lease that was given up before anybody had it.
NOBODY = Owner("nowhere", 0, 0.0, 0, "nobody")


def host_name() -> str:
    """This machine, boot and process namespace."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
    with contextlib.suppress(OSError):
        parts.append(re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")))
    return "/".join(parts)


def process_start(pid: int) -> float | None:
    """When process ``pid`` of this machine started; None if there is none, or it is dead and not yet buried.

    Seconds since boot on Linux, since 1970 elsewhere.
    """
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The name in brackets may hold anything, brackets too.
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return _start_by_ps(pid)


def _start_by_ps(pid: int) -> float | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    state, _, started = done.stdout.strip().partition(" ")
    if not started or state.startswith("Z"):
        return None
    return time.mktime(time.strptime(started.strip(), "%a %b %d %H:%M:%S %Y"))


def is_dead(owner: Owner) -> bool:
    """Whether that process surely runs no more. False for one on another machine: nobody here can tell."""
    if owner.host not in (host_name(), socket.gethostname()):
        return False
    started = process_start(owner.pid)
    return started is None or started > owner.started + _SLACK
