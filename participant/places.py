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

from .addresses import TLS

__all__ = ("both", "far_end", "machine_id", "nearest", "network_address")

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


def network_address(listen: str, host: str) -> str | None:
    """Where a process with the address `host` listens for other machines; None if it need not.

    Args:
        listen: what the system was started with: ``tls:`` (each process at its own address),
            ``tls:HOST:PORT`` (the coordinator's), or anything else, which is for one machine.
    """
    if not listen.startswith(TLS):
        return None
    if listen != TLS:
        return listen
    if not host:
        raise RefusedOption(
            "listen='tls:' is for Ray, which knows each machine's address; on plain processes give the "
            "address of this one: 'tls:HOST:PORT'",
            address=listen,
        )
    return f"{TLS}[{host}]:0" if ":" in host else f"{TLS}{host}:0"


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
