"""From the last participant prepared to all told of the commit, against publishing one small file.

The coordinator is the product's, its participants are packets (`bench.simulated_city`), its store is a folder
with SQLite. What is timed: the check of the cut, the manifest, the row, and the word to everybody. Packs are
written before, by other hands, as by other processes. The plain side creates a file, writes 100 bytes, syncs
it, renames it and syncs its folder, on the same disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.row import Row, interleave
from bench.simulated_city import SimulatedCity
from cutline.coordinator.cycles import seldom_looking
from cutline.storage import DirectoryBlobs, open_store

__all__ = ("measure",)


class _Publisher:
    """Publishes small files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        folder.mkdir()

    def publish(self) -> float:
        """Seconds for one."""
        self.count += 1
        began = time.perf_counter()
        hidden, path = self.folder / f".{self.count}", self.folder / str(self.count)
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, bytes(100))
        os.fsync(fd)
        os.close(fd)
        os.rename(hidden, path)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        return time.perf_counter() - began


def measure(*, rounds: int = 15, participants: int = 16, each: int = 5) -> Row:
    """The row; see the module's head. A sample is the mean of ``each``."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        place = Path(folder)
        with open_store(place / "store", create=True) as store, seldom_looking():
            # One of the members is the driver.
            city = SimulatedCity(participants + 1, store, DirectoryBlobs(place / "store" / "blobs"))
            publisher = _Publisher(place / "plain")
            ours, baseline = interleave(
                rounds,
                lambda: sum(city.commit_time() for _ in range(each)) / each,
                lambda: sum(publisher.publish() for _ in range(each)) / each,
            )
    return Row(
        name="commit_vs_publish",
        unit="s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_most=3,
        note=f"{participants} participants and the driver; a folder with SQLite, retention not timed",
    )
