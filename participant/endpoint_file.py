"""Where a running system is reached: a small file in the storage folder.

``endpoint-<system>.json``, readable by its owner only, holds the coordinator's address and the token of
the run. The coordinator writes it (temp file, rename), participants and the command line read it, and a
clean stop removes it. It is a pointer, not a claim: who owns the system is decided by the lease.

It has a MAC by the store's key. Who knows the token of the run compares that; who learns it here, and will
unpickle what the coordinator answers, must not be led to somebody else's by whoever can write the folder.
"""

from __future__ import annotations

import hmac
import json
import os
from pathlib import Path
from typing import NamedTuple

from cutline.storage.authentic import StoreKey, foreign, forged
from cutline.storage.blobs import encode_name
from cutline.storage.codec import canonical
from cutline.storage.keys import find_key

__all__ = (
    "Endpoint",
    "authentic_endpoint",
    "endpoint_path",
    "read_endpoint",
    "write_endpoint",
    "remove_endpoint",
)


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
    return _read(folder, system)[0]


def _read(folder: Path, system: str) -> tuple[Endpoint | None, str, str]:
    """The endpoint, the id of the key that the file names, its MAC."""
    try:
        doc = json.loads(endpoint_path(folder, system).read_text())
        found = Endpoint(str(doc["address"]), str(doc["token"]), int(doc["pid"]))
        return found, str(doc.get("key")), str(doc.get("mac"))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None, "", ""


def authentic_endpoint(folder: Path, system: str) -> Endpoint | None:
    """The same, for who does not know the token.

    Raises:
        ForeignStore: the key of the store is not here.
        NotAuthentic: the file was not written by a coordinator of a store with that key.
    """
    endpoint, key_id, mac = _read(folder, system)
    if endpoint is None:
        return None
    path = endpoint_path(folder, system)
    key = find_key(key_id)
    if key is None:
        raise foreign(f"the store that {path} is of", key_id, "so it may lead anywhere")
    if not hmac.compare_digest(_mac(key, system, endpoint).encode(), mac.encode()):
        raise forged(str(path), path=str(path))
    return endpoint


def _mac(key: StoreKey, system: str, endpoint: Endpoint) -> str:
    return key.mac("endpoint", canonical([system, *endpoint])).hex()


def write_endpoint(folder: Path, system: str, endpoint: Endpoint, key: StoreKey) -> None:
    """Replaces the file in one step; mode 0600."""
    path = endpoint_path(folder, system)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        sealed = {"key": key.id, "mac": _mac(key, system, endpoint)}
        json.dump({**endpoint._asdict(), **sealed}, file)
    os.replace(temporary, path)


def remove_endpoint(folder: Path, system: str, pid: int) -> None:
    """Removes the file if it still is the one that `pid` wrote."""
    endpoint = read_endpoint(folder, system)
    if endpoint is not None and endpoint.pid == pid:
        endpoint_path(folder, system).unlink(missing_ok=True)
