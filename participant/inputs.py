"""The driver's input: submissions of user threads, the log that they are in before they count, its replay.

A submission is appended to the ingress log and synced (all that wait at that moment by one sync), and only
then sent. After a rollback the log is read again from the cut's position. A record names the questions that
were answered before it: it may follow from their answers, so it is held back until they are answered again
(RULES 10).

A record of the log is: index, kind, number, target, method, arguments, key, questions answered since the
record before it, own questions among the arguments, and for one with a key its stamp
(`cutline.participant.keys`).

The log is cut behind the checkpoints that a recovery may go to. The coordinator says what all have behind
that are kept; those that are not decided yet may still become one of them, so what this participant has
captured since counts too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from cutline.barrier import Spawn
from cutline.barrier.actions import Capture
from cutline.barrier.events import Spawned
from cutline.errors import Corrupt, CutlineError, Misuse, StorageError

from .ingress import IngressLog
from .keys import KEY_SECONDS, Keys, Stamp
from .messages import encode_ask, encode_tell
from .outcomes import OutcomeRunner
from .persist import Persister
from .room import Room
from .shutter import Shutter
from .submission import Submission, Waited, copy, fail
from .transport import Transport

if TYPE_CHECKING:
    from .driver import DriverState

__all__ = ("InputRunner", "InputShutter", "failed_spawns")

# Seconds: what a replayed input may follow from may itself wait for a call that no log holds.
HOLD_SECONDS = 10.0


class InputShutter(Shutter):
    """Notes in each report how much of the log is behind the capture."""

    runner: InputRunner

    def capture(self, action: Capture) -> None:
        super().capture(action)
        facts = self.facts.get(action.checkpoint)
        if facts is not None:
            facts["input"] = self.runner.instance.log_index


class InputRunner(OutcomeRunner):
    """The part of the driver's runner that takes input."""

    instance: DriverState

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.log: IngressLog | None = None
        self.room = Room()
        self.key_seconds = KEY_SECONDS
        self.submissions: deque[Submission] = deque()
        self.replay: deque[list[Any]] = deque()
        self.answered_since: list[int] = []
        self.held_for: list[int] = []
        self.first_spawns: set[str] = set()
        self.highest = 0
        self.hold_until = 0.0
        # The thread that this runs on, which must never wait for itself.
        self.ident = 0
        self.waiting: dict[int, Future[Any]] = {}
        self.applied: set[int] = set()
        self.fault: CutlineError | None = None
        # What kept something from being taken that nobody waits for: user code hears of it at its next call.
        self.refused: CutlineError | None = None
        # By checkpoint that is not decided, the position in the log at its capture.
        self._captured: dict[int, int] = {}

    def attach(self, transport: Transport, persister: Persister) -> None:
        super().attach(transport, persister)
        self.shutter = InputShutter(self, persister)

    def run(self) -> str:
        self.ident = threading.get_ident()
        return super().run()

    def _new_desk(self, instance: object) -> None:
        super()._new_desk(instance)
        # Made when there is a state.
        self.keys: Keys | None = None

    def known_keys(self) -> Keys:
        """The keys in the state that there is now."""
        if self.keys is None:
            self.keys = Keys(self.instance, self.desk, self.key_seconds)
        return self.keys

    # -- taking ----------------------------------------------------------------------------

    def _has_work(self) -> bool:
        if self.phase == "running" and not self.tainted:
            if self.submissions and not self._holds():
                return True
        return super()._has_work()

    def at_boundary(self) -> None:
        """Takes everything submitted so far: one sync for all of it."""
        if self.replay:
            self._replay()
        if self.room.is_shut and not self.submissions:
            self._look_at_the_outbox()
        if not self.submissions or self._holds():
            return
        batch, stamps = self._admitted()
        durable = [entry for entry in batch if entry.logged]
        index = self.instance.log_index
        if durable:
            assert self.log is not None
            try:
                last = self.log.append(self._records(durable, stamps))
            except StorageError as error:
                self._refuse(durable, error)
                batch, last = [entry for entry in batch if not entry.logged], index + len(durable)
            except BaseException:
                self.submissions.extendleft(reversed(batch))
                raise
            else:
                self.answered_since = []
            index = last - len(durable)
        for number, entry in enumerate(batch):
            if entry.logged:
                index += 1
                self.instance.log_index = index
            try:
                self.take(entry, stamps.get(entry.number))
            except BaseException:
                # This runner is broken; whoever waits for one of them hears of it.
                self.submissions.extendleft(reversed(batch[number:]))
                raise
        if self.desk.out:
            self._release()

    def _admitted(self) -> tuple[list[Submission], dict[int, Stamp]]:
        """What is to be taken now, and by number the stamps of what has a key."""
        batch: list[Submission] = []
        stamps: dict[int, Stamp] = {}
        others: dict[str, tuple[int, str]] = {}
        while self.submissions:
            entry = self.submissions.popleft()
            if not self.admits(entry):
                continue
            if entry.key is not None:
                keys, now = self.known_keys(), self.clock()
                if not stamps:
                    keys.forget(now)
                try:
                    stamps[entry.number] = keys.judge(entry, now, others)
                except CutlineError as error:
                    self._refuse([entry], error)
                    continue
            batch.append(entry)
        return batch, stamps

    def admits(self, entry: Submission) -> bool:
        """Whether it means anything any more; who waits for one that does not has been told."""
        return True

    def _refuse(self, batch: Sequence[Submission], error: CutlineError) -> None:
        for entry in batch:
            if entry.kind == "tell" and not getattr(entry.taken, "is_heard", True):
                self.refused = error
            entry.taken.set_exception(error)

    def _records(self, entries: list[Submission], stamps: dict[int, Stamp]) -> list[list[Any]]:
        since, records = self.answered_since, []
        for entry in entries:
            call = [entry.number, entry.target, entry.method, entry.arguments]
            stamp = stamps.get(entry.number)
            last = [] if stamp is None else [stamp]
            records.append([entry.kind, *call, entry.key, since, list(entry.carried), *last])
            since = []
        return records

    def take(self, entry: Submission, stamp: Stamp | None) -> None:
        """It is in the log, if it has to be: it happens, and whoever waits for that hears of it."""
        if entry.kind == "spawn":
            self.first_spawns.add(entry.target)
        self._apply(*entry[:5], entry.key, entry.carried, stamp)
        if type(entry.taken) is Waited:
            self.tell(entry.taken, None)
        elif entry.kind != "spawn":
            entry.taken.set_result(None)

    def _apply(
        self,
        kind: str,
        number: int,
        target: str,
        method: str,
        arguments: Any,
        key: str | None,
        carried: Sequence[int],
        stamp: Stamp | None,
    ) -> None:
        self.minded(arguments)
        for own in carried:
            self.desk.keep_number(own)
        if key is not None:
            keys = self.known_keys()
            first = keys.first(key, number, f"{target}.{method}", stamp, asks=kind == "ask")
            if first != number:
                self._alias(number, first)
                return
        if kind == "spawn":
            # Whether the program has used the name before was looked at when it asked; after a rollback the
            # log may have brought it back since. Who is there is who is meant.
            self.feed(Spawned(Spawn(number, target, {**arguments, "get": True})))
        elif kind == "ask":
            self.applied.add(number)
            self.desk.asks[number] = (target, method, [])
            self.desk.out.append((target, encode_ask(number, method, arguments)))
        else:
            self.desk.out.append((target, encode_tell(method, arguments)))
        self.desk.next_number = max(self.desk.next_number, number + 1)
        self.highest = max(self.highest, number)

    def minded(self, arguments: Any) -> None:
        """These are about to be sent, again perhaps: what travels beside them has to be there."""

    def _alias(self, number: int, first: int) -> None:
        """A second submission under one key: the first one's answer is its answer."""
        known = self.known_keys().answer(first) or self.desk.answers.get(first)
        if known is not None:
            self.deliver(number, *known)
        elif first in self.desk.asks:
            original = self.waiting.setdefault(first, Future())
            original.add_done_callback(lambda done: copy(done, self.waiting.pop(number, None)))
        else:
            fail(
                self.waiting.pop(number, None),
                Misuse("an idempotency key of a message that wanted no answer was used to ask for one"),
            )

    def deliver(self, number: int, ok: bool, packed: Any) -> None:
        """An answer for whoever waits in this process; the first one wins."""
        self.applied.discard(number)
        future = self.waiting.pop(number, None)
        if future is not None:
            self.tell(future, (ok, packed))

    # -- holding back ----------------------------------------------------------------------

    def _replay(self) -> None:
        """Applies records of the log as far as what they may follow from has happened again."""
        while self.replay and not self._spawning():
            index, kind, number, target, method, arguments, key, since, carried, *stamp = self.replay[0]
            if self.now() < self.hold_until and any(earlier in self.desk.asks for earlier in since):
                break
            self.replay.popleft()
            self.instance.log_index = index
            last = stamp[0] if stamp else None
            self._apply(kind, number, target, method, arguments, key, carried, last)
        if self.desk.out:
            self._release()
        if not self.replay:
            self.replayed()

    def replayed(self) -> None:
        """All that the log holds has happened again."""

    def _holds(self) -> bool:
        """Whether what user code submits now may follow from answers that have not come again."""
        self._look_at_the_outbox()
        if self.replay or self._spawning() or self.room.is_shut:
            return True
        if self.held_for and self.now() >= self.hold_until:
            self.held_for = []
        if self.held_for:
            self.held_for = [number for number in self.held_for if number in self.desk.asks]
        return bool(self.held_for)

    def _look_at_the_outbox(self) -> None:
        """Whoever sends faster than others take waits, as a source does."""
        self.room.shut(self.endpoint is not None and self.outbox.is_over(self.endpoint))

    def _spawning(self) -> bool:
        """Whether somebody is being spawned again: the first time, the program may have waited for it."""
        spawns = self.endpoint.spawns.values() if self.endpoint is not None else ()
        return any(spawn.name not in self.first_spawns for spawn in spawns)

    def is_coming(self, number: int) -> bool:
        """Whether a question was submitted and is not asked yet."""
        return any(entry.number == number for entry in self.submissions) or any(
            record[2] == number for record in self.replay
        )

    # -- rollbacks -------------------------------------------------------------------------

    def went_back(self) -> None:
        """A state was restored."""
        if self.origin != self.setup.run:
            # A fork: its own log begins empty, and inputs of its origin are not delivered again.
            self.instance.log_index = 0
        # Before the first answer comes: then its question is not among the open ones any more.
        self.known_keys()
        self._captured.clear()
        self.first_spawns.clear()
        self.applied.update(self.desk.asks)
        self.desk.next_number = max(self.desk.next_number, self.highest + 1)

    def read_again(self) -> set[int]:
        """Reads the log from the cut's position; returns the numbers of what is going to happen again.

        Raises:
            Corrupt: acknowledged input is not there.
        """
        assert self.log is not None
        if self.log.last < self.instance.log_index:
            raise Corrupt(
                f"ingress log {self.log.path} ends at record {self.log.last}, and checkpoint "
                f"{self.checkpoint} has taken {self.instance.log_index}: acknowledged input is lost; restore "
                "the file from a copy",
                path=str(self.log.path),
                checkpoint=self.checkpoint,
            )
        records = self.log.after(self.instance.log_index)
        failed = failed_spawns(records)
        self.replay = deque(record for record in records if record[2] not in failed)
        # What is held back has its numbers already.
        used = max((record[2] for record in self.replay), default=0)
        self.highest = max(self.highest, used)
        self.desk.next_number = max(self.desk.next_number, used + 1)
        self.hold_until = self.now() + HOLD_SECONDS
        self.held_for = [number for record in self.replay for number in record[7]] + self.answered_since
        return {record[2] for record in self.replay}

    # -- forgetting ------------------------------------------------------------------------

    def captured(self, checkpoint: int) -> None:
        super().captured(checkpoint)
        self._captured[checkpoint] = self.instance.log_index

    def settled(self, checkpoint: int, committed: bool) -> None:
        super().settled(checkpoint, committed)
        self._captured.pop(checkpoint, None)

    def forget_input(self, lineage: str, behind: int) -> None:
        """All checkpoints that are kept have the log up to `behind` behind them.

        Raises:
            StorageError: a file of the log cannot be removed.
        """
        if self.log is not None and lineage == self.setup.run and self.phase == "running":
            self.log.forget(min(behind, self.instance.log_index, *self._captured.values()))


def failed_spawns(records: Sequence[list[Any]]) -> dict[int, None]:
    """The numbers of spawns that a log says did not come up."""
    return {record[2]: None for record in records if record[1] == "unspawn"}
