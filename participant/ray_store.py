"""Ray's object store as a `cutline.participant.parcels.ParcelStore`.

References travel outside of Ray's calls. Ray's own way to pickle an ObjectRef outside of a call pins the
object for as long as the sender lives; here the sender keeps the object by its own reference until the frame
is released, and the receiver has taken hold of the buffers before that, so the two calls beneath that way are
used alone. They are private to Ray: where one is missing, or the trial does not work, `ray_store` answers
None and large arguments travel as bytes.
"""

from __future__ import annotations

import logging
from typing import Any

import msgpack
import numpy as np
import ray

from .parcels import ParcelStore, Parts

__all__ = ("RayStore", "ray_store")

_log = logging.getLogger("cutline")
# Seconds within which a reference must lead to its object; another node may have to send it.
_PATIENCE = 60.0


class RayStore:
    """See the module's head."""

    def __init__(self) -> None:
        worker: Any = ray._private.worker.global_worker
        self._core = worker.core_worker

    def put(self, parts: Parts) -> Any | None:
        """See `ParcelStore.put`. Arrays are what Ray copies once, and shows without a copy."""
        buffers = [part if type(part) is bytes else np.frombuffer(part, np.uint8) for part in parts]
        try:
            return ray.put(buffers)
        except ray.exceptions.ObjectStoreFullError:
            return None

    def share(self, reference: Any) -> bytes:
        """See `ParcelStore.share`."""
        found = self._core.serialize_object_ref(reference)
        packed: bytes = msgpack.packb([found[0].binary(), found[1], found[2]])
        return packed

    def fetch(self, shared: bytes) -> Parts:
        """See `ParcelStore.fetch`: the arrays hold on to Ray's memory."""
        binary, owner, status = msgpack.unpackb(shared)
        reference: Any = ray.ObjectRef(binary)
        self._core.deserialize_and_register_object_ref(binary, ray.ObjectRef.nil(), owner, status)
        parts: Parts = ray.get(reference, timeout=_PATIENCE)
        return parts

    def read(self, reference: Any) -> Parts:
        """See `ParcelStore.read`."""
        parts: Parts = ray.get(reference)
        return parts


def ray_store() -> ParcelStore | None:
    """The store of the cluster that this process is connected to, if this Ray lets us use it."""
    try:
        store = RayStore()
        reference = store.put([b"trial", bytearray(8)])
        if bytes(store.fetch(store.share(reference))[0]) == b"trial":
            return store
        reason = "it returned something else"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    _log.info("Ray's object store is not used for large arguments (%s)", reason)
    return None
