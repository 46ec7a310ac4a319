"""Requests that write, for a checkpoint in a bucket, against one for each pack, the manifest and the record.

The server is a real S3 server (SeaweedFS) of this machine, its requests counted by a proxy in front of it.
Each of 16 participants writes an image of 100 kB; then the cut is committed and retention runs, which
writes the commit record. The catalog is in memory: it is no part of the bucket.
"""

from __future__ import annotations

import os
from unittest.mock import patch

from bench.row import Row
from cutline.storage import (
    Manifest,
    MemberImage,
    Owner,
    Piece,
    SqliteCatalog,
    Store,
    pack_key,
    write_image,
)
from cutline.storage.codec import digest_of
from cutline.storage.location import locate
from cutline.storage.opening import blob_places
from tests.storage.proxy import Cut, Proxy
from tests.storage.servers import an_s3

__all__ = ("measure",)

SYSTEM = "bench"
_WRITES = (b"PUT ", b"POST ")


class _Counting(Proxy):
    """Counts requests that write."""

    writes = 0

    def found(self, data: bytes) -> Cut | None:
        with self._lock:
            self.writes += data.startswith(_WRITES)
        return super().found(data)


def _checkpoint(store: Store, names: list[str], lineage: str, token: Owner) -> None:
    """One checkpoint, retention included."""
    lease = store.catalog.held_lease(SYSTEM)
    assert lease is not None and lease.owner == token
    number = store.catalog.begin(lease, lineage, kind="full", label=None, roster=names, now=1.0)
    images = {}
    for name in names:
        content = os.urandom(100_000)
        images[name] = MemberImage(
            1,
            write_image(
                store.blobs,
                pack_key(SYSTEM, lineage, 1, number, name, 1),
                header={},
                sections={},
                pieces=[Piece("state", digest_of(content), content)],
                regions=[],
                parent=None,
            ),
        )
    manifest = Manifest(SYSTEM, lineage, number, 1, "full", None, None, 1.0, images)
    store.commit_cut(lease, manifest, {}, 2.0, record=False)
    store.sweep(lease, 3.0)


def measure(*, rounds: int = 5, participants: int = 16) -> Row:
    """The row; see the module's head."""
    names = [f"participant-{number:02}" for number in range(participants)]
    counts = []
    with an_s3() as server:
        proxy = _Counting(server.port)
        with patch.dict(os.environ, server.environment()):
            _, blobs = blob_places(locate(server.url("bench", port=proxy.port)))
            store = Store("bench", blobs, SqliteCatalog(":memory:"), None)
            owner = Owner.here("bench", 0)
            lease = store.catalog.acquire_lease(SYSTEM, owner, 1e9, 0.0)
            lineage = store.catalog.create_lineage(lease, None)
            for _ in range(rounds):
                before = proxy.writes
                _checkpoint(store, names, lineage, owner)
                counts.append(float(proxy.writes - before))
        proxy.close()
        store.close()
    return Row(
        name="puts_per_commit",
        unit="requests",
        samples_ours=counts,
        samples_baseline=[float(participants + 2)] * rounds,
        at_most=1.0,
        note=f"{participants} participants; counted by a proxy in front of SeaweedFS",
    )
