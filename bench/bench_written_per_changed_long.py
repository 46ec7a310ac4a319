"""All bytes that 100 checkpoints write, folding and catalog included, against the bytes changed.

The workload is that of `written_per_changed`; nothing of how checkpoints are taken and kept is changed. What
participants write is counted by the packs, which are written once and never changed. What the coordinator
writes (manifests, commit records, the catalog with its log, the folders) is what the operating system counts
for its process. The first checkpoint, which writes the whole state, counts as written and not as changed.
At the end the newest image, read through all that was folded, must be what the participant holds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import cutline
from bench.bench_written_per_changed import Painter, digest_of_region
from bench.row import Row
from cutline.participant.endpoint_file import read_endpoint
from cutline.storage.blobs import parts_of

__all__ = ("measure",)


def _written_by(pid: int) -> int:
    """Bytes that a process had written to files, in pages. Linux tells."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("write_bytes")))


def _packs(system: cutline.System, number: int) -> tuple[int, Any]:
    """Bytes of the packs that a checkpoint wrote, and the painter's image."""
    row = next(row for row in system.checkpoints() if row.checkpoint == number)
    images = system.store.read_manifest(row).images
    own = [key for key in row.blobs if key.endswith(".pack") and _checkpoint(key) == number]
    return sum(system.store.blobs.size(key) for key in own), images["painter"].ref


def _checkpoint(key: str) -> int:
    parts = parts_of(key)
    return parts.checkpoint if parts is not None else 0


def _run(mebibytes: int, share: float, checkpoints: int) -> tuple[float, float, int]:
    """(bytes written, bytes changed, longest chain)."""
    changed, longest = 0, 1
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(folder, name="painter", interval=None, quiet=True)
        try:
            endpoint = read_endpoint(Path(folder), "painter")
            assert endpoint is not None
            before = _written_by(endpoint.pid)
            painter: Any = system.spawn("painter", Painter, mebibytes)
            # Spawning takes the first one.
            written, ref = _packs(system, system.checkpoint())
            written += sum(
                system.store.blobs.size(key)
                for row in system.checkpoints()[:-1]
                for key in row.blobs
                if key.endswith(".pack")
            )
            for _ in range(checkpoints):
                changed += painter.paint.options(durable=False).remote(share).result(timeout=60)
                size, ref = _packs(system, system.checkpoint())
                written += size
                longest = max(longest, len(ref.chain))
            written += _written_by(endpoint.pid) - before
            held = painter.digest.options(durable=False).remote().result(timeout=60)
            if digest_of_region(system, ref) != held:
                raise AssertionError("the newest image is not what the participant holds")
        finally:
            system.stop()
    return float(written), float(changed), longest


def measure(*, rounds: int = 5, mebibytes: int = 64, share: float = 0.01, checkpoints: int = 100) -> Row:
    """The row; see the module's head."""
    found = [_run(mebibytes, share, checkpoints) for _ in range(rounds)]
    return Row(
        name="written_per_changed_long",
        unit="bytes",
        samples_ours=[written for written, _, _ in found],
        samples_baseline=[changed for _, changed, _ in found],
        at_most=3.5,
        note=f"{checkpoints} checkpoints of {mebibytes} MiB of random numbers, {share:.0%} of the pages "
        "written between two; the first full image, manifests, records and catalog included; at most "
        f"{max(longest for _, _, longest in found)} packs in a chain",
    )
