"""Where somebody can be reached, seen from this machine and from others.

An address may have two ends: one that only serves its own machine (a Unix socket), and one for the network.
It is written ``MACHINE|NEAR|FAR``; whoever dials takes NEAR if it is on MACHINE too. Two processes are on one
machine if they run on one kernel and in one mount namespace: a Unix socket is a name in a file system, and
a container, or another host of a shared folder, has another view of it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import uuid
from pathlib import Path

from cutline.errors import RefusedOption

__all__ = ("both", "far_end", "machine_id", "nearest")

_BETWEEN = "|"


@functools.lru_cache(maxsize=1)
def machine_id() -> str:
    """Tells this machine, or this container of it, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        view = os.stat("/proc/self/ns/mnt").st_ino
    except OSError:
        # Not Linux: there are no containers that share a kernel.
        boot, view = f"{platform.node()} {uuid.getnode()}", 0
    return hashlib.sha256(f"{boot} {view}".encode()).hexdigest()[:16]


def both(near: str, far: str) -> str:
    """One address with two ends; just `near` if there is no `far` one."""
    return f"{machine_id()}{_BETWEEN}{near}{_BETWEEN}{far}" if far else near


def far_end(address: str) -> str:
    """The end for other machines; empty if there is none."""
    return address.rpartition(_BETWEEN)[2] if _BETWEEN in address else ""


def nearest(address: str) -> str:
    """The end to dial from here.

    Raises:
        RefusedOption: it is neither one address nor two ends.
    """
    if _BETWEEN not in address:
        return address
    parts = address.split(_BETWEEN)
    if len(parts) != 3:
        raise RefusedOption(f"address {address!r} is not of the form MACHINE|NEAR|FAR", address=address)
    machine, near, far = parts
    return near if machine == machine_id() and near else far
