"""A store, a folder for the persister process, and images to write: what tests of it share."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutline.participant.persist import Persisted, Persister, PersistJob
from cutline.participant.persist_client import SOCKET, ProcessPersister, persister_here
from cutline.participant.processes import process_alive, process_started
from cutline.participant.shared_memory import room
from cutline.storage import BlobStore, open_blobs, open_store, pack_key, read_image
from cutline.storage.codec import digest_of
from cutline.storage.extents import Extents
from cutline.storage.image import ImageRef, Piece, Region
from tests.system.living import until

__all__ = (
    "Place",
    "a_place",
    "captured",
    "check",
    "job_of",
    "lives",
    "needs_process",
    "random_bytes",
    "signalled",
)


needs_process = pytest.mark.skipif(persister_here({})[0] == "thread", reason=persister_here({})[1])


class Place:
    """A store, a folder for the process, and those who are connected to it."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "store")
        open_store(self.url, create=True).close()
        self.blobs: BlobStore = open_blobs(self.url)
        self.folder = folder / "run"
        self.folder.mkdir(mode=0o700)
        self.persisters: list[ProcessPersister] = []
        self.outcomes: queue.SimpleQueue[Persisted] = queue.SimpleQueue()

    def persister(self, name: str = "p") -> ProcessPersister:
        made = ProcessPersister(self.blobs, self.outcomes.put, name, self.folder, self.url)
        self.persisters.append(made)
        return made

    def written(self, persister: Persister, job: PersistJob) -> ImageRef:
        """The image, once it is durable."""
        persister.submit(job)
        outcome = self.outcomes.get(timeout=60)
        assert outcome.ref is not None, outcome.reason
        assert (outcome.epoch, outcome.checkpoint) == (job.epoch, job.checkpoint)
        return outcome.ref

    def close_all(self) -> list[int]:
        """Ends who is connected; the processes that they were connected to."""
        pids = [each.pid for each in self.persisters]
        for each in self.persisters:
            each.close()
        self.persisters.clear()
        return pids

    def unfinished(self) -> set[str]:
        """What is being written, and what was when somebody was killed."""
        return set(self.blobs.unfinished())


@contextmanager
def a_place(folder: Path) -> Iterator[Place]:
    """At the end nobody is left."""
    made = Place(folder)
    pids = []
    try:
        yield made
    finally:
        pids = made.close_all()
        # As when a system ends: who cannot be found any more does not stay for others.
        (made.folder / SOCKET).unlink(missing_ok=True)
        until(lambda: not any(lives(pid) for pid in pids), "the end of the persister process")


def signalled(pid: int, number: signal.Signals) -> None:
    """To the persister process; it may have ended. 0 would be all of this test's processes."""
    assert pid > 0
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def lives(pid: int) -> bool:
    try:
        return bool(pid) and process_alive(pid, process_started(pid))
    except ProcessLookupError:
        return False


def job_of(
    number: int,
    contents: Mapping[int, np.ndarray[Any, Any]],
    *,
    parent: ImageRef | None = None,
    regions: list[Region] | None = None,
    state: bytes | None = b"a state",
) -> PersistJob:
    """An image of whole regions, or of those given."""
    header = digest_of(b"a state")
    return PersistJob(
        3,
        number,
        pack_key("system", "line", 3, number, "p", 0),
        {"participant": "p", "checkpoint": number},
        {"calls": b"calls", "queued": [b"x" * 5000, memoryview(b"y" * 3000)], "none": b""},
        [Piece("header", header, state), Piece("empty", digest_of(b""), b"")],
        regions
        or [
            Region(key, each.nbytes, Extents.of([(0, each.data.cast("B"))])) for key, each in contents.items()
        ],
        parent,
    )


def check(place: Place, ref: ImageRef, contents: Mapping[int, np.ndarray[Any, Any]]) -> None:
    """The image holds this."""
    image = read_image(place.blobs, ref)
    assert image.sections == {"calls": b"calls", "queued": b"x" * 5000 + b"y" * 3000, "none": b""}
    assert image.pieces == [("header", b"a state"), ("empty", b"")]
    assert {key: bytes(each) for key, each in image.regions.items()} == {
        key: each.tobytes() for key, each in contents.items()
    }


def random_bytes(size: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(os.urandom(size), np.uint8)


def captured(size: int) -> np.ndarray[Any, Any]:
    """Random bytes where a capture would put them."""
    memory = room(size)
    memory[:] = random_bytes(size)
    return memory
