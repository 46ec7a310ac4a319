"""Where a running system is reached: a small file in the storage folder.

``endpoint-<system>.json``, readable by its owner only, holds the coordinator's address and the token of
the run. The coordinator writes it (temp file, rename), participants and the command line read it, and a
clean stop removes it. It is a pointer, not a claim: who owns the system is decided by the lease.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from cutline.storage.blobs import encode_name

__all__ = ("Endpoint", "endpoint_path", "read_endpoint", "write_endpoint", "remove_endpoint")


class Endpoint(NamedTuple):
    """How to reach a coordinator."""

    address: str
    token: str
    pid: int


def endpoint_path(folder: Path, system: str) -> Path:
    """The file of one system; its name is made plain as in keys, so that it stays in the folder and fits."""
    return folder / f"endpoint-{encode_name(system)}.json"


def read_endpoint(folder: Path, system: str) -> Endpoint | None:
    """What the file says; None if there is none, or none that can be read whole."""
    try:
        doc = json.loads(endpoint_path(folder, system).read_text())
        return Endpoint(str(doc["address"]), str(doc["token"]), int(doc["pid"]))
    except (FileNotFoundError, ValueError, KeyError):
        return None


def write_endpoint(folder: Path, system: str, endpoint: Endpoint) -> None:
    """Replaces the file in one step; mode 0600."""
    path = endpoint_path(folder, system)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(endpoint._asdict(), file)
    os.replace(temporary, path)


def remove_endpoint(folder: Path, system: str, pid: int) -> None:
    """Removes the file if it still is the one that `pid` wrote."""
    endpoint = read_endpoint(folder, system)
    if endpoint is not None and endpoint.pid == pid:
        endpoint_path(folder, system).unlink(missing_ok=True)
