"""What the catalog's verbs take with 100,000 cuts against what they take with 100.

Two rows. `catalog_flat`: a checkpoint in the catalog, begun and committed, durable. `catalog_flat_list`: a
cut of a list of all of them. The catalogs are SQLite files; each cut has 16 participants, and a summary. The
cuts are put in as `rebuild-catalog` does.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.row import Row, interleave
from cutline.storage import CheckpointRow, LineageRow, Owner, manifest_key, pack_key
from cutline.storage.authentic import StoreKey
from cutline.storage.sqlite import SqliteCatalog

__all__ = ("measure",)

SYSTEM, LINEAGE = "bench", "0123456789abcdef"
PARTICIPANTS = tuple(f"participant-{number:02}" for number in range(16))


def _row(checkpoint: int) -> CheckpointRow:
    blobs = [pack_key(SYSTEM, LINEAGE, 1, checkpoint, name, 1) for name in PARTICIPANTS]
    manifest = manifest_key(SYSTEM, LINEAGE, 1, checkpoint)
    parent = (LINEAGE, checkpoint - 1) if checkpoint > 1 else None
    return CheckpointRow(
        SYSTEM, LINEAGE, checkpoint, "delta", None, "committed", 1.0, 2.0, 1, parent, manifest,
        os.urandom(32), (*blobs, manifest), PARTICIPANTS, None,
        {"written_bytes": 65_536, "handled": dict.fromkeys(PARTICIPANTS, checkpoint)}, checkpoint + 1,
    )  # fmt: skip


class _Catalog:
    """A catalog of so many cuts."""

    def __init__(self, path: Path, cuts: int) -> None:
        self.path = path
        self.catalog = SqliteCatalog.create(path, "0" * 32, StoreKey.new())
        line = LineageRow(LINEAGE, SYSTEM, 1, None, 1, cuts + 1, 1)
        self.catalog.refill(SYSTEM, [line], [_row(number) for number in range(1, cuts + 1)], token=1)
        self.cuts = cuts
        self.lease = self.catalog.acquire_lease(SYSTEM, Owner.here("bench", 0), 1e9, 0.0)
        self.catalog.tidy()

    def commit(self, count: int = 20) -> float:
        """Seconds for one checkpoint, begun and committed."""
        began = time.perf_counter()
        for _ in range(count):
            number = self.catalog.begin(
                self.lease, LINEAGE, kind="delta", label=None, roster=PARTICIPANTS, now=1.0
            )
            row = _row(number)
            assert row.manifest_key is not None and row.manifest_digest is not None
            self.catalog.commit(
                self.lease,
                LINEAGE,
                number,
                manifest_key=row.manifest_key,
                manifest_digest=row.manifest_digest,
                blobs=row.blobs,
                summary=row.summary,
                now=2.0,
            )
            self.cuts += 1
        seconds = (time.perf_counter() - began) / count
        # What can wait is done between checkpoints.
        self.catalog.tidy()
        return seconds

    def listing(self, least: int) -> float:
        """Seconds for each cut of a list; of small lists as many are made as have ``least`` cuts. Each by
        somebody who has seen none of them before."""
        times = -(-least // self.cuts)
        seconds = 0.0
        for _ in range(times):
            catalog = SqliteCatalog(self.path)
            catalog.epoch(LINEAGE)
            began = time.perf_counter()
            found = len(catalog.checkpoints(SYSTEM))
            seconds += time.perf_counter() - began
            catalog.close()
            if found != self.cuts:
                raise AssertionError(f"{found} cuts are listed of {self.cuts}")
        return seconds / (times * self.cuts)


def measure(*, rounds: int = 8, few: int = 100, many: int = 100_000) -> list[Row]:
    """The rows; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        small, large = (_Catalog(Path(folder) / f"{cuts}.sqlite", cuts) for cuts in (few, many))
        committed = interleave(rounds, large.commit, small.commit)

        def listed(catalog: _Catalog) -> Callable[[], float]:
            return lambda: catalog.listing(min(many, 5_000))

        lists = interleave(rounds, listed(large), listed(small))
        small.catalog.close()
        large.catalog.close()
    return [
        Row(
            name=name,
            unit="s",
            samples_ours=samples[0],
            samples_baseline=samples[1],
            at_most=1.5,
            note=f"{what}; {many} cuts against {few}, SQLite",
        )
        for name, what, samples in (
            ("catalog_flat", "one checkpoint begun and committed", committed),
            ("catalog_flat_list", "a list of all, for each cut in it", lists),
        )
    ]
