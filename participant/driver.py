"""The driver's participant: its input is durable, its answers and loop positions are in the cut.

The user's program is not a participant, but what it tells and asks has to be. So the driver's process
runs a participant of its own, named ``driver``, on a thread; user threads submit to it and wait for it.

* What is submitted is in a log before it counts, and is read again after a rollback
  (`cutline.participant.inputs`).
* Inside `system.loop` submissions are not logged: the body is run again from the position that is in the
  cut. Each has a place ``(loop, step, call)``; what the cut has of this step already is not sent twice.
* An answer is *unstable* until a checkpoint that was captured after it has committed. If a rollback
  undoes an answer that user code has seen, its next call raises `RolledBack`, once; `system.loop` rewinds.
"""

from __future__ import annotations

import queue
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cutline.barrier import Spawn
from cutline.barrier.events import SpawnAnswered
from cutline.errors import CutlineError, RolledBack, StorageError, SystemHalted
from cutline.storage.authentic import StoreKey
from cutline.storage.image import ImageRef

from .control import pack_control
from .inputs import InputRunner, failed_spawns
from .keys import Stamp
from .messages import unpack_error
from .runner import Setup
from .stability import Stability
from .submission import Place, Submission, fail

__all__ = ("DriverRunner", "DriverState", "Submission", "Place", "DRIVER")

DRIVER = "driver"


class DriverState:
    """What a cut holds of the driver."""

    def __init__(self) -> None:
        self.log_index = 0
        self.loops: dict[str, Any] = {}
        # See `cutline.participant.keys`.
        self.keys: Any = {}
        self.outcomes: Any = {}


class DriverRunner(InputRunner):
    """A runner whose messages come from user threads and a log."""

    def __init__(self, setup: Setup, blobs: Any, coordinator: Callable[[], str], **options: Any) -> None:
        super().__init__(setup, blobs, coordinator, **options)
        # Vouches for the script's classes, which go by value and may come back from the store.
        self.script_key: StoreKey | None = None
        self.generation = 0
        self.stability = Stability()
        self.reads: set[int] = set()
        self.spawning: dict[str, Any] = {}
        self.requested: dict[int, Future[Any]] = {}
        self.request_count = 0
        self.nonce = secrets.token_hex(8)
        self.dead = False
        # Who is there, with the names of their classes; replaced, never changed: user threads read it.
        self.known_names: dict[str, str] = {}
        self.rolled_back: RolledBack | None = None
        self.last_undone = RolledBack("the system went back")
        self.notice: Callable[[dict[str, Any]], None] = lambda _doc: None
        self.went: Future[None] = Future()
        # What was submitted since the system is being suspended; None: it is not. Whether that was said.
        self.put_off: deque[Submission] | None = None
        self.said_held = False

    # -- input -----------------------------------------------------------------------------

    def other_event(self, event: Any) -> None:
        if isinstance(event, Submission):
            if self.fault is not None:
                event.taken.set_exception(self.fault)
            elif self.put_off is not None:
                self.put_off.append(event)
            else:
                self.submissions.append(event)
        elif callable(event):
            event()
        else:
            super().other_event(event)

    def at_boundary(self) -> None:
        super().at_boundary()
        self._say_held()

    def hold_input(self) -> None:
        """What is submitted from now on is not taken before `let_input`."""
        if self.put_off is None:
            self.put_off = deque()
        self.said_held = False
        self._say_held()

    def let_input(self) -> None:
        """The system goes on: what was put off comes in its turn."""
        late, self.put_off = self.put_off, None
        self.submissions.extend(late or ())

    def _say_held(self) -> None:
        """Says once that all is taken which was submitted before."""
        if self.put_off is None or self.said_held:
            return
        if self.phase == "running" and not self.submissions and not self.replay:
            assert self.log is not None
            self.said_held = True
            self.request("input_held", {"last": self.log.last}, Future())

    def is_coming(self, number: int) -> bool:
        return super().is_coming(number) or any(entry.number == number for entry in self.put_off or ())

    def admits(self, entry: Submission) -> bool:
        stale = entry.place is not None and entry.generation != self.generation
        if stale:
            entry.taken.set_exception(RolledBack("the loop's body is run again", checkpoint=self.checkpoint))
        return not stale

    def take(self, entry: Submission, stamp: Stamp | None) -> None:
        if entry.kind == "advance":
            self._advance(entry)
            return
        if entry.place is not None:
            self.instance.loops[entry.place.loop][1][entry.place.call] = [entry.number, entry.place.digest]
            self.desk.kept.add(entry.number)
        if entry.kind == "spawn":
            # Taken is not enough: whoever waits hears when it is up.
            self.spawning[entry.target] = entry.taken
        super().take(entry, stamp)

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
        self.known_keys().answered(number, ok, packed)
        told = number not in self.reads
        self.stability.answered(number, told)
        if told:
            self.answered_since.append(number)
        self.reads.discard(number)
        self.deliver(number, ok, packed)

    def await_stable(self, number: int, stable: Future[None]) -> None:
        """Completes `stable` when a committed checkpoint holds the answer of `number`."""
        if self.fault is not None:
            stable.set_exception(self.fault)
        else:
            self.stability.wait(number, stable)

    def captured(self, checkpoint: int) -> None:
        super().captured(checkpoint)
        self.stability.captured(checkpoint)

    def settled(self, checkpoint: int, committed: bool) -> None:
        super().settled(checkpoint, committed)
        self.stability.settled(checkpoint, committed)
        if committed and not self.went.done():
            self.went.set_result(None)
        # What a cut holds has happened wherever the log is replayed from.
        unstable = self.stability.unstable
        self.answered_since = [number for number in self.answered_since if number in unstable]

    # -- rollback --------------------------------------------------------------------------

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        super().be_restored(ref, epoch, checkpoint, floor)
        self.generation += 1
        error = RolledBack(
            f"the system went back to checkpoint {checkpoint}; what this session has seen "
            "since then is undone",
            checkpoint=checkpoint,
        )
        if self.stability.rolled_back(checkpoint, error):
            self.rolled_back = error
        self.last_undone = error
        self.went_back()
        for number, (ok, packed) in self.desk.answers.items():
            self.deliver(number, ok, packed)

    def go(self) -> None:
        # The user has heard that these did not come up: they are not asked for again.
        assert self.log is not None and self.endpoint is not None
        for number in failed_spawns(self.log.after(self.instance.log_index)):
            self.feed(SpawnAnswered(number))
        super().go()

    def resumed(self, doc: dict[str, Any]) -> None:
        logged = self.read_again()
        assert self.endpoint is not None
        spawns = {spawn.name: spawn.record["class_name"] for spawn in self.endpoint.spawns.values()}
        self.known_names = {**spawns, **doc["roster"]}
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
        # To a coordinator that may not know that the system is being suspended; who suspends it looks.
        self.let_input()
        if self.phase == "running" and not self.replay:
            self.replayed()

    def replayed(self) -> None:
        # From here on a name that the coordinator does not know is nobody's.
        self.liaison.say("spawns_told")
        self._say_held()

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
            if doc["what"] == "input_behind":
                self._forget_input(doc)
                return
            if doc["what"] in ("hold_input", "let_input"):
                (self.hold_input if doc["what"] == "hold_input" else self.let_input)()
                return
            if doc["what"] == "born":
                self.known_names = {**self.known_names, doc["name"]: doc["class_name"]}
            elif doc["what"] == "left":
                self.known_names = {n: each for n, each in self.known_names.items() if n != doc["name"]}
            self.notice(doc)
        else:
            super().other_order(doc)

    def _forget_input(self, doc: dict[str, Any]) -> None:
        try:
            self.forget_input(doc["lineage"], doc["behind"])
        except StorageError as error:
            # It is put off: nothing that is needed is gone.
            self.notice({"what": "sweep_failed", "text": str(error)})

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
        self.let_input()
        # User threads may add while this goes on; what comes later finds the fault itself.
        tables: list[dict[Any, Future[Any]]] = [self.waiting, self.spawning, self.requested]
        for table in tables:
            while table:
                fail(table.popitem()[1], self.fault)
        while self.submissions:
            fail(self.submissions.popleft().taken, self.fault)
        self.room.shut(False)
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
