"""Captures of one participant: state, calls and channels at one boundary, then durable in the background.

The shutter keeps the image references of captures that are undecided or committed, because a delta names
its parent, and only an image of a committed cut may be one (RULES 14).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cutline.barrier.actions import Capture, Settle
from cutline.barrier.events import CaptureFailed, Durable
from cutline.errors import CaptureError
from cutline.storage.blobs import pack_key
from cutline.storage.image import Image, ImageRef, read_image, size_of

from .ahead import SLICE_PAGES, Ahead
from .capture import Capturer
from .imaging import sections_of
from .persist import Persisted, Persister, PersistJob
from .program import program_id
from .restore import Restored
from .standing import Standing
from .tracking import RegionTracker, chosen_tracking, insist
from .unshelving import left_unread

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ("SMALL", "Shutter")

# Bytes of a state that is written whole each time: a chain of packs would cost more than it saves.
SMALL = 16 * 1024


class Shutter:
    """Takes captures when the endpoint asks, and tells it what became of them."""

    small = SMALL

    def __init__(self, runner: Runner, persister: Persister) -> None:
        self.runner = runner
        self.persister = persister
        self.refs: dict[int, ImageRef] = {}
        self.facts: dict[int, dict[str, Any]] = {}
        # What the last image was to build on.
        self.built_on = b""
        self.tracking = chosen_tracking(runner.setup.options.get("tracking"))
        self.ahead = Ahead()
        self.base: int | None = None
        self.renew()

    def insist(self) -> None:
        """At a birth. Raises RefusedOption if changes cannot be found in the way that was asked for."""
        insist(self.tracking)

    def renew(self) -> None:
        """Forgets all captures: another state takes the place of the one they belong to."""
        self.capturer = Capturer(self.runner.me.name, small=self.small, tracking=self.tracking)
        self.refs.clear()
        self.facts.clear()
        self.ahead.forget()
        self.base = None

    def standing(self, checkpoint: int, ref: ImageRef) -> Standing:
        """What of the state that is there now need not be read again to go back to `ref`."""
        if self.refs.get(checkpoint) != ref:
            return Standing({}, {}, RegionTracker("hash"))
        return self.capturer.standing(checkpoint, self.runner.instance)

    def read(self, ref: ImageRef, standing: Standing) -> Image:
        """The image that the state is to be restored from. Raises Corrupt."""
        left = left_unread if self.runner.setup.options.get("lazy_maps") else None
        return read_image(self.runner.blobs, ref, standing.alone(), left)

    def expecting(self, standing: Standing) -> Restored:
        """What the restore that is to come fills, for `adopt`."""
        return self.capturer.expecting(standing)

    def adopt(self, checkpoint: int, ref: ImageRef, restored: Restored) -> None:
        """The state was restored from `ref`: the next delta may build on it."""
        self.capturer.adopt(checkpoint, self.runner.instance, restored)
        self.refs = {checkpoint: ref}
        self.built_on = b""
        self.base = checkpoint

    def expect(self, seconds: float | None) -> None:
        """The coordinator begins the next checkpoint in so many seconds; None: it does not know."""
        if seconds is not None:
            self.ahead.expect(self.runner.now(), seconds)

    def copy_ahead(self) -> None:
        """A slice of what the next capture will have to write. Between messages, when `ahead` wants it."""
        copied = 0 if self.base is None else self.capturer.copy_ahead(self.base, SLICE_PAGES)
        self.ahead.sliced(self.runner.now(), full=copied == SLICE_PAGES)

    def capture(self, action: Capture) -> None:
        """Copies what the image needs, now; the handler goes on when this returns."""
        runner = self.runner
        assert runner.endpoint is not None
        began = time.perf_counter()
        against = action.against if action.against in self.refs else None
        try:
            if runner.tainted:
                raise CaptureError("a handler raised here; the participant waits for a rollback")
            captured = self.capturer.capture(runner.instance, number=action.checkpoint, against=against)
            sections = {
                **sections_of(runner.desk, action.channels, runner.unresolved),
                **runner.steps.section(action.checkpoint),
            }
        except CaptureError as error:
            runner.feed(CaptureFailed(action.checkpoint, str(error)))
            return
        emits = runner.desk.output.facts()
        runner.captured(action.checkpoint)
        self.ahead.captured(captured.pages)
        setup, epoch = runner.setup, runner.endpoint.epoch
        self.facts[action.checkpoint] = {
            "stall_ms": (time.perf_counter() - began) * 1000,
            "detect_ms": captured.detecting * 1000,
            "changed_bytes": captured.changed_bytes + sum(map(size_of, sections.values())),
            "state_bytes": captured.state_bytes,
            "tracked": captured.tracked,
            "why": captured.why,
            "containers": captured.containers,
            "captured_at": runner.now(),
            "handled": runner.desk.handled,
            "handlers": runner.desk.handlers,
            "waits": runner.waits(),
            **emits,
        }
        header = {
            "participant": runner.me.name,
            "birth": runner.me.birth,
            "class": captured.class_name,
            "class_version": captured.class_version,
            "checkpoint": action.checkpoint,
            "lineage": setup.run,
            "epoch": epoch,
            "program": program_id(),
        }
        key = pack_key(setup.system, setup.run, epoch, action.checkpoint, runner.me.name, runner.me.birth)
        parent = None if against is None else self.refs[against]
        # One that failed, or is still being written, has folded that chain: it is not folded twice, and
        # folding that takes too long does not keep every checkpoint from being committed.
        fold = parent is not None and parent.digest != self.built_on
        self.built_on = parent.digest if parent is not None else b""
        self.persister.submit(
            PersistJob(
                epoch,
                action.checkpoint,
                key,
                header,
                sections,
                captured.pieces,
                captured.regions,
                parent,
                fold,
            )
        )

    def persisted(self, event: Persisted) -> None:
        """A write ended. One that belongs to an older epoch is nobody's business any more."""
        runner = self.runner
        if runner.endpoint is None or event.epoch != runner.endpoint.epoch:
            return
        if event.ref is None:
            if event.damaged and event.checkpoint in self.facts:
                # What there is to build on is lost, and the state is not: the next image has everything.
                self.refs.clear()
            runner.feed(CaptureFailed(event.checkpoint, event.reason))
            return
        facts = self.facts.pop(event.checkpoint, None)
        if facts is None:
            # Decided (aborted) while it was being written.
            return
        self.refs[event.checkpoint] = event.ref
        runner.feed(
            Durable(
                event.checkpoint,
                event.ref.to_doc(),
                {**facts, "written_bytes": event.ref.size, "image_kind": event.ref.kind},
            )
        )

    def settle(self, action: Settle) -> None:
        """A capture's fate: a base for deltas, or nothing."""
        if action.committed:
            self.capturer.committed(action.checkpoint)
            self.base = max(action.checkpoint, self.base or 0)
            self.refs = {n: ref for n, ref in self.refs.items() if n >= action.checkpoint}
        else:
            self.capturer.aborted(action.checkpoint)
            self.refs.pop(action.checkpoint, None)
            self.facts.pop(action.checkpoint, None)
        self.runner.settled(action.checkpoint, action.committed)
