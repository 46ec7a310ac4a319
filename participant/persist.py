"""Captured images become durable in the background, one after the other.

The capture has copied all it needs, so the handler goes on; hashing, compression and writing release the
GIL. Pickling never happens here: it would hold it. `drain` waits for what is under way: a rollback must
not overtake an older capture's write.

The thread is all there is for small images, and where there can be no process that writes the large ones
(`cutline.participant.persist_client`).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cutline.errors import Corrupt, CutlineError
from cutline.storage.blobs import BlobStore
from cutline.storage.folding import MOST
from cutline.storage.image import Content, ImageRef, Piece, Region, write_image

__all__ = ("Persister", "PersistJob", "Persisted")

_log = logging.getLogger("cutline")


class PersistJob(NamedTuple):
    """One captured image. `parent` is None for a full one; `fold`: its chain may be folded."""

    epoch: int
    checkpoint: int
    key: str
    header: Mapping[str, Any]
    sections: Mapping[str, Content]
    pieces: Sequence[Piece]
    regions: Sequence[Region]
    parent: ImageRef | None
    fold: bool = True


class Persisted(NamedTuple):
    """The outcome: an image reference, or the reason why there is none. `damaged`: what it was to build on
    is not whole."""

    epoch: int
    checkpoint: int
    ref: ImageRef | None
    reason: str
    damaged: bool = False


class Persister:
    """A thread that writes images; `post` hears of each one. `most`: packs of a chain, see `folding`."""

    most = MOST
    rest: float | None = None

    def __init__(self, blobs: BlobStore, post: Callable[[Persisted], None], name: str = "") -> None:
        self._blobs = blobs
        self._post = post
        self._jobs: queue.SimpleQueue[PersistJob | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"cutline-persist-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: PersistJob) -> None:
        """Queues an image; `Persisted` follows."""
        self._jobs.put(job)

    def drain(self) -> None:
        """Waits until everything submitted so far has its outcome."""
        done = threading.Event()
        self._jobs.put(done)
        done.wait()

    def close(self) -> None:
        """Ends the thread after what is queued."""
        self._jobs.put(None)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self.rest)
            except queue.Empty:
                self._rested()
                continue
            if job is None:
                self._rested()
                return
            if isinstance(job, threading.Event):
                job.set()
                continue
            try:
                outcome = self._outcome(job)
            except Exception as error:
                # Without this thread the checkpoint, and every rollback after it, would wait for ever.
                _log.exception("an image could not be written, for a reason that nobody foresaw")
                outcome = Persisted(job.epoch, job.checkpoint, None, f"{type(error).__name__}: {error}")
            self._post(outcome)
            # They refer to the bytes of the image.
            del job, outcome

    def _rested(self) -> None:
        """No image was asked for in `rest` seconds, or none will be."""

    def _outcome(self, job: PersistJob) -> Persisted:
        return write(self._blobs, job, self.most)


def write(blobs: BlobStore, job: PersistJob, most: int = MOST) -> Persisted:
    """Writes one image; a failure is an outcome, not an exception: it aborts one checkpoint."""
    try:
        ref = write_image(
            blobs,
            job.key,
            header=dict(job.header),
            sections=dict(job.sections),
            pieces=job.pieces,
            regions=job.regions,
            parent=job.parent,
            most=most if job.fold else None,
        )
    except Corrupt as error:
        return Persisted(job.epoch, job.checkpoint, None, f"Corrupt: {error}", damaged=True)
    except (CutlineError, OSError, MemoryError) as error:
        return Persisted(job.epoch, job.checkpoint, None, f"{type(error).__name__}: {error}")
    return Persisted(job.epoch, job.checkpoint, ref, "")
