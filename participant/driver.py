"""The driver's participant: its input is durable, its answers and loop positions are in the cut.

The user's program is not a participant, but what it tells and asks has to be. So the driver's process
runs a participant of its own, named ``driver``, on a thread; user threads submit to it and wait for it.

* A submission is appended to the ingress log and synced (all that wait at that moment by one sync), and
  only then sent. After a rollback the log is read again from the cut's position. A record names the
  questions that were answered before it: it may follow from their answers, so it is held back until they
  are answered again (RULES 10).
* Inside `system.loop` submissions are not logged: the body is run again from the position that is in the
  cut. Each has a place ``(loop, step, call)``; what the cut has of this step already is not sent twice.
* An answer is *unstable* until a checkpoint that was captured after it has committed. If a rollback
  undoes an answer that user code has seen, its next call raises `RolledBack`, once; `system.loop` rewinds.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from cutline.barrier import Spawn
from cutline.barrier.events import SpawnAnswered, Spawned
from cutline.errors import Corrupt, CutlineError, Misuse, RolledBack, StorageError, SystemHalted
from cutline.storage.authentic import StoreKey
from cutline.storage.image import ImageRef

from .control import pack_control
from .ingress import IngressLog
from .messages import encode_ask, encode_tell, unpack_error
from .outcomes import OutcomeRunner
from .runner import Setup
from .stability import Stability
from .submission import Place, Submission, copy, fail

__all__ = ("DriverRunner", "DriverState", "Submission", "Place", "DRIVER", "REMEMBERED_KEYS")

DRIVER = "driver"
REMEMBERED_KEYS = 10_000
# Seconds: what a replayed input may follow from may itself wait for a call that no log holds.
HOLD_SECONDS = 10.0


class DriverState:
    """What a cut holds of the driver."""

    def __init__(self) -> None:
        self.log_index = 0
        self.loops: dict[str, Any] = {}
        self.keys: dict[str, int] = {}


class DriverRunner(OutcomeRunner):
    """A runner whose messages come from user threads and a log."""

    instance: DriverState

    def __init__(self, setup: Setup, blobs: Any, coordinator: Callable[[], str], **options: Any) -> None:
        super().__init__(setup, blobs, coordinator, **options)
        self.log: IngressLog | None = None
        # Vouches for the script's classes, which go by value and may come back from the store.
        self.script_key: StoreKey | None = None
        self.submissions: deque[Submission] = deque()
        self.replay: deque[list[Any]] = deque()
        self.answered_since: list[int] = []
        self.held_for: list[int] = []
        self.first_spawns: set[str] = set()
        self.generation = 0
        self.highest = 0
        self.hold_until = 0.0
        # Whether input waits for receivers to take what was sent; user threads read it.
        self.is_full = False
        # The thread that this runs on, which must never wait for itself.
        self.ident = 0
        self.stability = Stability()
        self.waiting: dict[int, Future[Any]] = {}
        self.reads: set[int] = set()
        self.applied: set[int] = set()
        self.spawning: dict[str, Any] = {}
        self.requested: dict[int, Future[Any]] = {}
        self.request_count = 0
        self.nonce = secrets.token_hex(8)
        self.dead = False
        # Who is there, with the names of their classes; replaced, never changed: user threads read it.
        self.known_names: dict[str, str] = {}
        self.rolled_back: RolledBack | None = None
        self.last_undone = RolledBack("the system went back")
        self.fault: CutlineError | None = None
        self.notice: Callable[[dict[str, Any]], None] = lambda _doc: None
        self.went: Future[None] = Future()

    # -- input -----------------------------------------------------------------------------

    def run(self) -> str:
        self.ident = threading.get_ident()
        return super().run()

    def other_event(self, event: Any) -> None:
        if isinstance(event, Submission):
            if self.fault is not None:
                event.taken.set_exception(self.fault)
            else:
                self.submissions.append(event)
        elif callable(event):
            event()
        else:
            super().other_event(event)

    def _has_work(self) -> bool:
        if self.phase == "running" and not self.tainted:
            if self.submissions and not self._holds():
                return True
        return super()._has_work()

    def at_boundary(self) -> None:
        """Takes everything submitted so far: one sync for all of it."""
        if self.replay:
            self._replay()
        if not self.submissions or self._holds():
            return
        batch = list(self.submissions)
        self.submissions.clear()
        durable = [entry for entry in batch if entry.logged]
        index = self.instance.log_index
        if durable:
            assert self.log is not None
            try:
                last = self.log.append(self._records(durable))
            except StorageError as error:
                for entry in batch:
                    entry.taken.set_exception(error)
                return
            index = last - len(durable)
        for entry in batch:
            if entry.logged:
                index += 1
                self.instance.log_index = index
            self._take_submission(entry)
        if self.desk.out:
            self._release()

    def _records(self, entries: list[Submission]) -> list[list[Any]]:
        since, self.answered_since = self.answered_since, []
        records = []
        for entry in entries:
            call = [entry.number, entry.target, entry.method, entry.arguments]
            records.append([entry.kind, *call, entry.key, since, list(entry.carried)])
            since = []
        return records

    def _replay(self) -> None:
        """Applies records of the log as far as what they may follow from has happened again."""
        while self.replay and not self._spawning():
            index, kind, number, target, method, arguments, key, since, carried = self.replay[0]
            if self.now() < self.hold_until and any(earlier in self.desk.asks for earlier in since):
                break
            self.replay.popleft()
            self.instance.log_index = index
            self._apply(kind, number, target, method, arguments, key, carried)
        if self.desk.out:
            self._release()
        if not self.replay:
            self._spawns_told()

    def _holds(self) -> bool:
        """Whether what user code submits now may follow from answers that have not come again."""
        self.is_full = self.endpoint is not None and self.outbox.is_over(self.endpoint)
        if self.replay or self._spawning() or self.is_full:
            return True
        if self.held_for and self.now() >= self.hold_until:
            self.held_for = []
        if self.held_for:
            self.held_for = [number for number in self.held_for if number in self.desk.asks]
        return bool(self.held_for)

    def _spawning(self) -> bool:
        """Whether somebody is being spawned again: the first time, the program may have waited for it."""
        spawns = self.endpoint.spawns.values() if self.endpoint is not None else ()
        return any(spawn.name not in self.first_spawns for spawn in spawns)

    def _take_submission(self, entry: Submission) -> None:
        if entry.place is not None and entry.generation != self.generation:
            entry.taken.set_exception(RolledBack("the loop's body is run again", checkpoint=self.checkpoint))
            return
        if entry.kind == "advance":
            self._advance(entry)
            return
        if entry.place is not None:
            self.instance.loops[entry.place.loop][1][entry.place.call] = [entry.number, entry.place.digest]
            self.desk.kept.add(entry.number)
        if entry.kind == "spawn":
            # Taken is not enough: whoever waits hears when it is up.
            self.spawning[entry.target] = entry.taken
            self.first_spawns.add(entry.target)
        self._apply(*entry[:5], entry.key, entry.carried)
        if entry.kind != "spawn":
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
    ) -> None:
        for own in carried:
            self.desk.keep_number(own)
        if key is not None:
            keys = self.instance.keys
            first = keys.setdefault(key, number)
            if first != number:
                self._alias(number, first)
                return
            while len(keys) > REMEMBERED_KEYS:
                self.desk.kept.discard(keys.pop(next(iter(keys))))
            self.desk.kept.add(number)
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

    def _alias(self, number: int, first: int) -> None:
        """A second submission under one key: the first one's answer is its answer."""
        known = self.desk.answers.get(first)
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

    def is_coming(self, number: int) -> bool:
        """Whether a question was submitted and is not asked yet."""
        return any(entry.number == number for entry in self.submissions) or any(
            record[2] == number for record in self.replay
        )

    def undone(self) -> RolledBack:
        """What the newest rollback was."""
        return self.last_undone

    # -- loops -----------------------------------------------------------------------------

    def loop_position(self, loop: str) -> tuple[int, dict[int, list[int]], int]:
        """Step, what the step has submitted so far (index -> number, digest), and the generation."""
        position = self.instance.loops.setdefault(loop, [0, {}])
        # Whoever goes on from here has heard of every rollback before.
        self.rolled_back = None
        return position[0], {int(k): v for k, v in position[1].items()}, self.generation

    def _advance(self, entry: Submission) -> None:
        assert entry.place is not None
        position = self.instance.loops[entry.place.loop]
        for number, _digest in position[1].values():
            self.desk.kept.discard(number)
        self.instance.loops[entry.place.loop] = [entry.place.step + 1, {}]
        entry.taken.set_result(None)

    # -- answers ---------------------------------------------------------------------------

    def _new_desk(self, instance: object) -> None:
        super()._new_desk(instance)
        self.desk.on_answered = self._answered

    def _answered(self, number: int, ok: bool, packed: Any) -> None:
        told = number not in self.reads
        self.stability.answered(number, told)
        if told:
            self.answered_since.append(number)
        self.reads.discard(number)
        self.deliver(number, ok, packed)

    def deliver(self, number: int, ok: bool, packed: Any) -> None:
        """An answer for whoever waits in this process; the first one wins."""
        self.applied.discard(number)
        future = self.waiting.pop(number, None)
        if future is not None:
            self.tell(future, (ok, packed))

    def await_stable(self, number: int, stable: Future[None]) -> None:
        """Completes `stable` when a committed checkpoint holds the answer of `number`."""
        if self.fault is not None:
            stable.set_exception(self.fault)
        else:
            self.stability.wait(number, stable)

    def captured(self, checkpoint: int) -> None:
        self.stability.captured(checkpoint)

    def settled(self, checkpoint: int, committed: bool) -> None:
        self.stability.settled(checkpoint, committed)
        if committed and not self.went.done():
            self.went.set_result(None)
        # What a cut holds has happened wherever the log is replayed from.
        unstable = self.stability.unstable
        self.answered_since = [number for number in self.answered_since if number in unstable]

    # -- rollback --------------------------------------------------------------------------

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        super().be_restored(ref, epoch, checkpoint, floor)
        if self.origin != self.setup.run:
            # A fork: its own log begins empty, and inputs of its origin are not delivered again.
            self.instance.log_index = 0
        self.generation += 1
        self.first_spawns.clear()
        error = RolledBack(
            f"the system went back to checkpoint {checkpoint}; what this session has seen "
            "since then is undone",
            checkpoint=checkpoint,
        )
        if self.stability.rolled_back(checkpoint, error):
            self.rolled_back = error
        self.last_undone = error
        self.applied.update(self.desk.asks)
        self.desk.next_number = max(self.desk.next_number, self.highest + 1)
        for number, (ok, packed) in self.desk.answers.items():
            self.deliver(number, ok, packed)

    def go(self) -> None:
        # The user has heard that these did not come up: they are not asked for again.
        assert self.log is not None and self.endpoint is not None
        for number in _failed(self.log.after(self.instance.log_index)):
            self.feed(SpawnAnswered(number))
        super().go()

    def resumed(self, doc: dict[str, Any]) -> None:
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
        failed = _failed(records)
        assert self.endpoint is not None
        spawns = {spawn.name: spawn.record["class_name"] for spawn in self.endpoint.spawns.values()}
        self.known_names = {**spawns, **doc["roster"]}
        self.replay = deque(record for record in records if record[2] not in failed)
        # What is held back has its numbers already.
        used = max((record[2] for record in self.replay), default=0)
        self.highest = max(self.highest, used)
        self.desk.next_number = max(self.desk.next_number, used + 1)
        self.hold_until = self.now() + HOLD_SECONDS
        logged = {record[2] for record in self.replay}
        self.held_for = [number for record in self.replay for number in record[7]] + self.answered_since
        self._replay()
        undone = [n for n in self.applied if n not in self.desk.asks and n not in logged]
        for number in undone:
            self.applied.discard(number)
            error = RolledBack(
                f"the question was undone: the system went back to checkpoint {self.checkpoint}",
                checkpoint=self.checkpoint,
            )
            fail(self.waiting.pop(number, None), error)
        if not self.went.done():
            self.went.set_result(None)

    # -- coordinator -----------------------------------------------------------------------

    def reconnected(self) -> None:
        if self.phase == "running" and not self.replay:
            self._spawns_told()

    def _spawns_told(self) -> None:
        # From here on a name that the coordinator does not know is nobody's.
        self.liaison.say("spawns_told")

    def ask_birth(self, spawn: Spawn) -> None:
        self.known_names = {**self.known_names, spawn.name: spawn.record["class_name"]}
        self.spawning.setdefault(spawn.name, Future())
        super().ask_birth(spawn)

    def spawn_answered(self, spawn: Spawn, error: bytes | None) -> None:
        future = self.spawning.pop(spawn.name, None)
        if error is not None:
            self._spawn_failed(spawn)
            fail(future, unpack_error(error, participant=self.me.name, live={}))
        elif future is not None and not future.done():
            future.set_result(None)

    def _spawn_failed(self, spawn: Spawn) -> None:
        """The user hears of it, so no replay may try it again."""
        self.known_names = {name: each for name, each in self.known_names.items() if name != spawn.name}
        assert self.log is not None
        if not self.replay:
            try:
                self.instance.log_index = self.log.append(
                    [["unspawn", spawn.number, spawn.name, "", None, None, [], []]]
                )
            except StorageError as error:
                self.notice({"what": "ingress_failed", "text": str(error)})

    def request(self, what: str, fields: dict[str, Any], future: Future[Any]) -> None:
        """A question to the coordinator (savepoint, checkpoint, list, stop, ...); runs on this thread."""
        if self.fault is not None:
            future.set_exception(self.fault)
            return
        self.request_count += 1
        number = self.request_count
        # A coordinator that took over must see that it is the same request again.
        asked = f"{self.nonce}-{number}"
        packet = pack_control(
            "request", epoch=0, member=list(self.me), number=number, what=what, asked=asked, **fields
        )
        self.requested[number] = future
        self.liaison.requests[number] = packet
        if self.liaison.link is not None:
            self.liaison.link.send_control(packet)

    def other_order(self, doc: dict[str, Any]) -> None:
        kind = doc["kind"]
        if kind == "reply":
            self.liaison.requests.pop(doc["number"], None)
            future = self.went if doc["number"] == 0 else self.requested.pop(doc["number"], None)
            if future is not None and not future.done():
                if doc["ok"]:
                    future.set_result(doc["value"])
                else:
                    future.set_exception(unpack_error(doc["value"], participant=self.me.name, live={}))
        elif kind == "notice":
            if doc["what"] == "born":
                self.known_names = {**self.known_names, doc["name"]: doc["class_name"]}
            elif doc["what"] == "left":
                self.known_names = {n: each for n, each in self.known_names.items() if n != doc["name"]}
            self.notice(doc)
        else:
            super().other_order(doc)

    def halted(self, doc: dict[str, Any]) -> None:
        cause = unpack_error(doc["error"], participant=self.me.name, live={})
        fault = SystemHalted(
            doc["text"], participant=doc.get("participant"), checkpoint=doc.get("checkpoint")
        )
        fault.__cause__ = cause
        self.fail_all(fault)

    def fail_all(self, fault: CutlineError) -> None:
        """Everybody who waits hears that there will be no answer."""
        self.tell_all()
        self.fault = self.fault or fault
        fail(self.went, self.fault)
        # User threads may add while this goes on; what comes later finds the fault itself.
        tables: list[dict[Any, Future[Any]]] = [self.waiting, self.spawning, self.requested]
        for table in tables:
            while table:
                fail(table.popitem()[1], self.fault)
        while self.submissions:
            fail(self.submissions.popleft().taken, self.fault)
        self.stability.fail_all(self.fault)

    def die(self, fault: CutlineError) -> None:
        """This thread ends; whoever still posts something hears why nothing comes of it."""
        self.fail_all(fault)
        self.dead = True
        self._refuse_events()

    def post(self, event: Any) -> None:
        super().post(event)
        if self.dead:
            self._refuse_events()

    def _refuse_events(self) -> None:
        while True:
            try:
                event = self.queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, Submission) or callable(event):
                self.other_event(event)


def _failed(records: Sequence[list[Any]]) -> dict[int, None]:
    """The numbers of spawns that a log says did not come up."""
    return {record[2]: None for record in records if record[1] == "unspawn"}
