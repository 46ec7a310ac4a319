"""Thousands of checkpoints of one system with ten kept: what grows, and whether all that is listed restores.

Run with ``python -m tests.retention --cuts 10000``; `tests/system/test_retention_flat.py` runs a few hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cutline
from cutline.participant.ingress import SPENT_BYTES
from cutline.storage import open_store

__all__ = ("Keeper", "grown", "run")

NAME = "retention"
KEPT = 10
# Of what is measured, what may not grow with the number of checkpoints.
FLAT = ("blobs", "blob_bytes", "catalog_bytes", "rows", "other_files", "ingress_bytes")
# With each input, so that the log of a few hundred has several files.
FILLER = bytes(2000)
# What the log may have in the end: what is needed, what waits until a file is worth its removal, some more.
LOG_BYTES = KEPT * len(FILLER) + SPENT_BYTES + (32 << 10)


class Keeper:
    """A bounded state that changes with each step: plain, in a Map, in a Log, in an array."""

    def __init__(self) -> None:
        self.count = 0
        self.recent: list[int] = []
        # As large as they ever get: what grows is to be the store.
        self.map: cutline.Map[int, Any] = cutline.Map({n: (n, "x" * 20) for n in range(1000)})
        self.log: cutline.Log[int] = cutline.Log(range(-500, 1))
        self.array = np.random.default_rng(1).random(50_000)

    def step(self, filler: bytes) -> int:
        """Changes a little of everything."""
        self.count += 1
        self.recent = [*self.recent[-99:], self.count]
        self.map[self.count % 1000] = (self.count, "x" * 20)
        self.log.append(self.count)
        if len(self.log) > 600:
            del self.log[:300]
        self.array[self.count % 50_000] = self.count
        return self.count

    def is_sound(self) -> bool:
        """Whether all parts of it are those of one step."""
        newest = self.recent[-1:], [self.log[-1]] if self.log else [], self.array[self.count % 50_000]
        return (
            newest == ([self.count], [self.count], self.count)
            and self.map[self.count % 1000][0] == self.count
        )


def measured(folder: Path) -> dict[str, int]:
    """Files, bytes and rows of a store."""
    sizes: dict[Path, int] = {}
    # The collector may be faster: folders that are gone are passed over.
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size
    blobs = [path for path in sizes if path.is_relative_to(folder / "blobs")]
    catalog = [path for path in sizes if path.name.startswith("catalog.sqlite")]
    ingress = [path for path in sizes if path.parent.name == "ingress"]
    connection = sqlite3.connect(folder / "catalog.sqlite")
    try:
        tables = ("checkpoints", "listings", "failures", "members", "leases", "lineages", "meta")
        rows = sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
    finally:
        connection.close()
    return {
        "blobs": len(blobs),
        "blob_bytes": sum(sizes[path] for path in blobs),
        "catalog_bytes": sum(sizes[path] for path in catalog),
        "rows": rows,
        "other_files": len(sizes) - len(blobs) - len(catalog),
        "ingress_bytes": sum(sizes[path] for path in ingress),
    }


def run(
    folder: Path, cuts: int, looks: int = 20, told: Callable[[dict[str, int]], None] = lambda _: None
) -> dict[str, Any]:
    """Takes so many checkpoints; what the store was like on the way, and what its checkpoints load to."""
    seen: list[dict[str, int]] = []
    with cutline.start(folder, name=NAME, interval=None, keep=KEPT, quiet=True) as system:
        keeper = system.spawn("keeper", Keeper)
        every = max(1, cuts // looks)
        for number in range(1, cuts + 1):
            cutline.get(keeper.step.remote(FILLER))
            system.checkpoint()
            if number % every == 0:
                seen.append({"cuts": number, **measured(folder)})
                told(seen[-1])
        # What nobody needs of the log goes with a checkpoint, about once a second: so how high it stands on
        # the way depends on how fast the machine is, but not that it falls to what is needed.
        deadline = time.monotonic() + 60
        while (left := measured(folder)["ingress_bytes"]) > LOG_BYTES and time.monotonic() < deadline:
            time.sleep(0.1)
            number = cutline.get(keeper.step.remote(FILLER))
            system.checkpoint()
    with open_store(folder, create=False) as store:
        rows = store.catalog.checkpoints(NAME)
        faults = [str(fault) for fault in store.verify(NAME).faults]
    counts = []
    for row in rows:
        state = cutline.load(f"{row.lineage}/{row.checkpoint}", folder, name=NAME)["keeper"]
        if not state.is_sound():
            raise AssertionError(f"{row} loads to a state that never was")
        counts.append(state.count)
    return {
        "seen": seen,
        "listed": len(rows),
        "counts": counts,
        "faults": faults,
        "whole": not faults and counts[-1] == number,
        "cuts": number,
        "left": left,
    }


def grown(seen: list[dict[str, int]]) -> dict[str, float]:
    """By what factor each figure was larger in the last quarter than ever in the first half."""
    half, quarter = len(seen) // 2, len(seen) // 4
    return {
        name: max(look[name] for look in seen[-quarter:]) / max(1, *(look[name] for look in seen[:half]))
        for name in FLAT
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cutline-retention-") as folder:
        found = run(
            Path(folder) / "store", options.cuts, told=lambda look: print(json.dumps(look), flush=True)
        )
    factors = grown(found["seen"])
    print(json.dumps({"grown": factors, **{name: found[name] for name in found if name != "seen"}}))
    if not found["whole"] or max(factors.values()) > 1.2 or found["left"] > LOG_BYTES:
        raise SystemExit(f"it grows, or does not restore: {factors} {found['faults']}")


if __name__ == "__main__":
    main()
