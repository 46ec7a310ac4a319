"""Durable steps of a participant: what `Log.step` does in a handler.

Theory of operation. A step is recognised by its *key*: a digest of all that the log held before it, of the
function's name and of its arguments. Its result is appended to a file and synced, then to the log, and
returned. After a rollback handlers run again; those steps that they had made since the cut are *pending*:
who comes to one of these keys gets its result, and the function is not called. Where the content is
another one, so is the key. Several steps of one key are taken in the order in which they were made.

An image holds the steps that were pending when it was captured, so a file is needed by those alone who go
back to a cut before it (`cutline.participant.step_files`). What stays pending, because the handler went
another way, is dropped after some cuts; while a handler is suspended, which may come to it yet, it is
kept.

A newborn that was in no cut is made again from its spawn: it takes up the steps of the one that it stands
for.

A step whose file cannot be written ends the participant: its function has been called, and whoever went on
without its result could call it twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from cutline.errors import Misuse, OutsideHandler, StorageError
from cutline.storage.disk import meaning
from cutline.storage.image import Image

from .immutable import is_immutable
from .log import Log
from .pickling import dumps, loads
from .step_digest import StepDigest, name_of_call
from .step_files import Entry, Fence, Segment, StepFile, claim, folder_of, read_segments

if TYPE_CHECKING:
    from .desk import Desk

__all__ = ("PENDING", "PENDING_CUTS", "SECTION", "NoSteps", "StepLost", "Steps")

# The section of an image.
SECTION = "steps"
# Steps that wait for their handlers to come to them again, and for how many cuts without a suspended handler.
PENDING = 10_000
PENDING_CUTS = 20


class StepLost(BaseException):
    """A step could not be stored; not for handlers to catch. `error` says why."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(str(error))
        self.error = error


class NoSteps:
    """Where nothing is stored of steps: the driver, tests."""

    def attach(self, desk: Desk) -> None:
        """The desk whose handlers make the steps from now on."""

    def born(self, epoch: int, newest: int, base: int) -> None:
        """A newborn begins to handle messages; `base`: the cut that its epoch began at.

        Raises:
            StorageError: what is stored of its steps cannot be read.
        """

    def restored(self, epoch: int, checkpoint: int, image: Image) -> None:
        """The state of a cut is there again, or is about to be.

        Raises:
            StorageError: what is stored of the steps since cannot be read.
        """

    def section(self, checkpoint: int) -> dict[str, bytes]:
        """What goes into the image that is being captured; the steps after it go into another file."""
        return {}


class Steps(NoSteps):
    """The steps of one participant; `key` as of `step_files`."""

    def __init__(self, participant: str, birth: int, lineage: str, home: Path, key: bytes) -> None:
        self._participant, self._birth, self._lineage = participant, birth, lineage
        self._folder = folder_of(home, lineage, participant)
        self._key = key
        self._digest = StepDigest(participant)
        self._desk: Desk | None = None
        self._file: StepFile | None = None
        self._fence: Fence = {}
        # -1: not known yet.
        self._epoch = self._after = -1
        self._pending: dict[bytes, deque[bytes]] = {}
        # Of a newborn, the newest checkpoint when it was born.
        self._born_after = -1
        self._cuts = 0
        self._inside: Callable[..., Any] | None = None
        self._lost: StepLost | None = None

    # -- what the runner tells -----------------------------------------------------------------------

    def attach(self, desk: Desk) -> None:
        self._desk = desk
        desk.steps = self

    def born(self, epoch: int, newest: int, base: int) -> None:
        self._born_after = newest

        def counts(segment: Segment, head: Mapping[str, Any]) -> bool:
            """Whether it is of one that this one stands for: in no cut, and undone."""
            return segment.epoch < epoch and segment.birth != self._birth and head["born_after"] >= base

        self._begin(epoch, newest, base, counts)
        if self._pending and not claim(self._folder, epoch):
            # Another one of that name has had them in this epoch.
            self._pending = {}

    def restored(self, epoch: int, checkpoint: int, image: Image) -> None:
        self._born_after = -1
        self._begin(epoch, checkpoint, checkpoint, lambda segment, _: segment.birth == self._birth)
        section = image.sections.get(SECTION)
        # A fork has a history of its own; its origin's steps are none of it.
        if section is not None and image.header["lineage"] == self._lineage:
            given: list[list[Any]] = msgpack.unpackb(section, max_bin_len=len(section))
            later, self._pending = self._pending, {}
            for key, results in given:
                self._pending[key] = deque(results)
            for key, queue in later.items():
                self._pending.setdefault(key, deque()).extend(queue)

    def _begin(
        self, epoch: int, after: int, base: int, counts: Callable[[Segment, Mapping[str, Any]], bool]
    ) -> None:
        self._close()
        self._epoch, self._after, self._cuts = epoch, after, 0
        self._pending = {}
        read, self._fence = read_segments(self._folder, self._key, base)
        for segment, found in read:
            if counts(segment, found.head):
                for entry in found.entries:
                    self._pending.setdefault(entry.key, deque()).append(entry.result)

    def section(self, checkpoint: int) -> dict[str, bytes]:
        self._close()
        self._after = checkpoint
        if self._pending:
            self._age()
        if not self._pending:
            return {}
        return {SECTION: msgpack.packb([[key, list(queue)] for key, queue in self._pending.items()])}

    def _age(self) -> None:
        desk = self._desk
        if desk is not None and not desk.calls:
            self._cuts += 1
        if self._cuts > PENDING_CUTS:
            self._pending.clear()
        excess = sum(map(len, self._pending.values())) - PENDING
        while excess > 0:
            key = next(iter(self._pending))
            excess -= len(self._pending.pop(key))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- what handlers do ----------------------------------------------------------------------------

    def take(self, log: Log[Any], function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """One step; see `Log.step`."""
        desk = self._desk
        if desk is None or self._epoch < 0:
            raise OutsideHandler(
                f"participant {self._participant!r}: a constructor cannot make a step, since it is not run "
                "again where its participant is restored; make it in a handler",
                participant=self._participant,
            )
        if self._lost is not None:
            raise self._lost
        if self._inside is not None:
            raise self._misused(self._inside, f"makes a step itself ({name_of_call(function)})")
        if desk.active is not None:
            desk.active.stepped = True
        chain = self._digest.chain(log)
        key = self._digest.call(chain, function, args, kwargs)
        queue = self._pending.get(key)
        if queue:
            result = self._loaded(queue.popleft())
            if not queue:
                del self._pending[key]
        else:
            result = self._call(log, chain, key, function, args, kwargs)
        log.append(result)
        return result

    def _call(
        self,
        log: Log[Any],
        chain: bytes,
        key: bytes,
        function: Callable[..., Any],
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> Any:
        desk = self._desk
        assert desk is not None
        # Tells, and whatever has a number: questions, spawns, effects.
        sent, self._inside = (len(desk.out), desk.next_number), function
        try:
            result = function(*args, **kwargs)
        finally:
            self._inside = None
        if (len(desk.out), desk.next_number) != sent:
            raise self._misused(function, "sends something, spawns, or asks for an effect")
        if self._digest.chain(log) != chain:
            raise self._misused(function, "changes the log")
        name = name_of_call(function)
        packed: bytes = dumps(result, participant=self._participant, where=f"result of step {name}")
        self._store(Entry(key, packed))
        # The same whether the function was called or not: nobody else has it.
        return result if is_immutable(result) else self._loaded(packed)

    def _loaded(self, packed: bytes) -> Any:
        assert self._desk is not None
        return loads(packed, participant=self._participant, live=self._desk.live)

    def _misused(self, function: Callable[..., Any], what: str) -> Misuse:
        return Misuse(
            f"participant {self._participant!r}: {name_of_call(function)} {what} while it is a step of a log;"
            " when the handler runs again after a crash it is not called, and that would be missing. Do it in"
            " the handler, before or after the step",
            participant=self._participant,
        )

    def _store(self, entry: Entry) -> None:
        try:
            if self._file is None:
                head = {
                    "epoch": self._epoch,
                    "after": self._after,
                    "birth": self._birth,
                    "born_after": self._born_after,
                    "fence": self._fence,
                }
                self._file = StepFile(self._folder, head, self._key)
            self._file.append(entry)
        except OSError as error:
            self._lost = StepLost(self._explained(error))
            raise self._lost from error

    def _explained(self, error: OSError) -> StorageError:
        fault = meaning(error, str(self._folder), writing=True)
        return type(fault)(
            f"participant {self._participant!r} cannot store a step whose function has been called: {fault}. "
            "The system stops here, since who goes on might call it twice; after the next start the handler "
            "runs again from the last checkpoint, and calls it again",
            participant=self._participant,
            **fault.facts,
        )
