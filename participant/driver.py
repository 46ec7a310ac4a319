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

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from cutline.barrier import Member
from cutline.errors import CutlineError, RolledBack, StorageError, SystemHalted
from cutline.storage.image import ImageRef

from .control import pack_control
from .ingress import IngressLog
from .messages import encode_ask, encode_tell, unpack_error
from .runner import Runner, Setup

__all__ = ("DriverRunner", "DriverState", "Submission", "Place", "DRIVER", "REMEMBERED_KEYS")

DRIVER = "driver"
REMEMBERED_KEYS = 10_000


class Place(NamedTuple):
    """Where in a loop a submission stands, so that a re-run of the body finds it again."""

    loop: str
    step: int
    call: int
    digest: int


class Submission(NamedTuple):
    """One thing that user code wants done; `kind` is ask, tell, spawn or advance."""

    kind: str
    number: int
    target: str
    method: str
    arguments: Any
    key: str | None
    durable: bool
    place: Place | None
    generation: int
    taken: Future[Any]


class DriverState:
    """What a cut holds of the driver."""

    def __init__(self) -> None:
        self.log_index = 0
        self.loops: dict[str, Any] = {}
        self.keys: dict[str, int] = {}
        self.spawns: dict[str, dict[str, Any]] = {}


class DriverRunner(Runner):
    """A runner whose messages come from user threads and a log."""

    instance: DriverState

    def __init__(self, setup: Setup, blobs: Any, coordinator: Callable[[], str], **options: Any) -> None:
        super().__init__(setup, blobs, coordinator, **options)
        self.log: IngressLog | None = None
        self.submissions: deque[Submission] = deque()
        self.replay: deque[list[Any]] = deque()
        self.answered_since: list[int] = []
        self.held_for: list[int] = []
        self.generation = 0
        self.highest = 0
        self.unstable: dict[int, None] = {}
        self.covered: dict[int, list[int]] = {}
        self.stable: dict[int, list[Future[None]]] = {}
        self.spawned: list[dict[str, Any]] = []
        self.waiting: dict[int, Future[Any]] = {}
        self.reads: set[int] = set()
        self.applied: set[int] = set()
        self.spawning: dict[str, Future[Any]] = {}
        self.requested: dict[int, Future[Any]] = {}
        self.request_count = 0
        self.known_names: set[str] = set()
        self.rolled_back: RolledBack | None = None
        self.last_undone = RolledBack("the system went back")
        self.fault: CutlineError | None = None
        self.notice: Callable[[dict[str, Any]], None] = lambda _doc: None
        self.went: Future[None] = Future()

    # -- input -----------------------------------------------------------------------------

    def other_event(self, event: Any) -> None:
        if isinstance(event, Submission):
            self.submissions.append(event)
        elif callable(event):
            event()
        else:
            super().other_event(event)

    def _has_work(self) -> bool:
        if self.phase == "running" and not self.tainted:
            if self.spawned or (self.submissions and not self._holds()):
                return True
        return super()._has_work()

    def at_boundary(self) -> None:
        """Takes everything submitted so far: one sync for all of it."""
        for doc in self.spawned:
            self._apply_spawned(doc)
        self.spawned.clear()
        if self.replay:
            self._replay()
        if not self.submissions or self._holds():
            return
        batch = list(self.submissions)
        self.submissions.clear()
        durable = [
            entry for entry in batch if entry.durable and entry.place is None and entry.kind != "advance"
        ]
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
            if entry.durable and entry.place is None and entry.kind != "advance":
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
            records.append([entry.kind, *call, entry.key, since])
            since = []
        return records

    def _replay(self) -> None:
        """Applies records of the log as far as what they may follow from has happened again."""
        while self.replay:
            index, kind, number, target, method, arguments, key, since = self.replay[0]
            if any(earlier in self.desk.asks for earlier in since):
                break
            self.replay.popleft()
            self.instance.log_index = index
            self._apply(kind, number, target, method, arguments, key)
        if self.desk.out:
            self._release()

    def _holds(self) -> bool:
        """Whether what user code submits now may follow from answers that have not come again."""
        if self.replay:
            return True
        if self.held_for:
            self.held_for = [number for number in self.held_for if number in self.desk.asks]
        return bool(self.held_for)

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
        self._apply(entry.kind, entry.number, entry.target, entry.method, entry.arguments, entry.key)
        entry.taken.set_result(None)

    def _apply(
        self, kind: str, number: int, target: str, method: str, arguments: Any, key: str | None
    ) -> None:
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
            self.instance.spawns[target] = dict(arguments)
            self._ask_spawn(target)
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
        else:
            future = self.waiting.get(number)
            original = self.waiting.setdefault(first, Future())
            if future is not None:
                self.waiting[number] = future
                original.add_done_callback(lambda done: _copy(done, future))

    def undone(self) -> RolledBack:
        """What the newest rollback was."""
        return self.last_undone

    # -- loops -----------------------------------------------------------------------------

    def loop_position(self, loop: str) -> tuple[int, dict[int, list[int]], int]:
        """Step, what the step has submitted so far (index -> number, digest), and the generation."""
        position = self.instance.loops.setdefault(loop, [0, {}])
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
        if number not in self.reads:
            self.unstable[number] = None
            self.answered_since.append(number)
        self.reads.discard(number)
        self.deliver(number, ok, packed)

    def deliver(self, number: int, ok: bool, packed: Any) -> None:
        """An answer for whoever waits in this process; the first one wins."""
        self.applied.discard(number)
        future = self.waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result((ok, packed))

    def await_stable(self, number: int, stable: Future[None]) -> None:
        """Completes `stable` when a committed checkpoint holds the answer of `number`."""
        if number in self.unstable:
            self.stable.setdefault(number, []).append(stable)
        else:
            stable.set_result(None)

    def captured(self, checkpoint: int) -> None:
        self.covered[checkpoint] = list(self.unstable)

    def settled(self, checkpoint: int, committed: bool) -> None:
        numbers = self.covered.pop(checkpoint, [])
        if not committed:
            return
        if not self.went.done():
            self.went.set_result(None)
        for number in numbers:
            self.unstable.pop(number, None)
            for stable in self.stable.pop(number, []):
                stable.set_result(None)

    # -- rollback --------------------------------------------------------------------------

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        seen = list(self.unstable)
        super().be_restored(ref, epoch, checkpoint, floor)
        self.generation += 1
        error = RolledBack(
            f"the system went back to checkpoint {checkpoint}; what this session has seen "
            "since then is undone",
            checkpoint=checkpoint,
        )
        if seen:
            self.rolled_back = error
        self.last_undone = error
        self.unstable.clear()
        self.covered.clear()
        for stables in self.stable.values():
            for stable in stables:
                stable.set_exception(error)
        self.stable.clear()
        self.desk.next_number = max(self.desk.next_number, self.highest + 1)
        for number, (ok, packed) in self.desk.answers.items():
            self.deliver(number, ok, packed)

    def resumed(self, doc: dict[str, Any]) -> None:
        roster = set(doc["roster"])
        spawned = [name for name, record in self.instance.spawns.items() if not record.get("failed")]
        self.known_names = roster | set(spawned)
        for name in spawned:
            if name not in roster:
                self._ask_spawn(name)
        assert self.log is not None
        self.replay = deque(self.log.after(self.instance.log_index))
        logged = {record[2] for record in self.replay}
        self.held_for = [number for record in self.replay for number in record[7]] + self.answered_since
        self._replay()
        undone = [n for n in self.applied if n not in self.desk.asks and n not in logged]
        for number in undone:
            self.applied.discard(number)
            future = self.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(
                    RolledBack(
                        f"the question was undone: the system went back to checkpoint {self.checkpoint}",
                        checkpoint=self.checkpoint,
                    )
                )
        if not self.went.done():
            self.went.set_result(None)

    # -- coordinator -----------------------------------------------------------------------

    def _ask_spawn(self, name: str) -> None:
        record = self.instance.spawns[name]
        self.known_names.add(name)
        self.liaison.failed_births.pop(name, None)
        assert self.endpoint is not None
        packet = pack_control(
            "spawn", epoch=self.endpoint.epoch, member=list(self.me), name=name, record=record
        )
        self.liaison.requests[("spawn", name)] = packet
        if self.liaison.link is not None:
            self.liaison.link.send_control(packet)

    def _apply_spawned(self, doc: dict[str, Any]) -> None:
        name = doc["name"]
        assert self.endpoint is not None
        if doc["epoch"] != self.endpoint.epoch or name not in self.instance.spawns:
            return
        self.liaison.requests.pop(("spawn", name), None)
        future = self.spawning.pop(name, None)
        if doc.get("error") is not None:
            self.instance.spawns[name] = {**self.instance.spawns[name], "failed": True}
            self.known_names.discard(name)
            self.liaison.failed_births[name] = doc["error"]
            self.liaison.unknown(name)
            error = unpack_error(doc["error"], participant=self.me.name, live={})
            if future is not None and not future.done():
                future.set_exception(error)
            return
        member = Member(name, doc["birth"])
        self.instance.spawns[name] = {**self.instance.spawns[name], "birth": member.birth}
        self.peers.addresses[member] = doc["address"]
        self.release_waiting(name, member)
        for peer in self.endpoint.pending_dials():
            if peer == member:
                self.dial(peer)
        if future is not None and not future.done():
            future.set_result(None)

    def request(self, what: str, fields: dict[str, Any], future: Future[Any]) -> None:
        """A question to the coordinator (savepoint, checkpoint, list, stop, ...); runs on this thread."""
        self.request_count += 1
        number = self.request_count
        packet = pack_control("request", epoch=0, member=list(self.me), number=number, what=what, **fields)
        self.requested[number] = future
        self.liaison.requests[number] = packet
        if self.liaison.link is not None:
            self.liaison.link.send_control(packet)

    def other_order(self, doc: dict[str, Any]) -> None:
        kind = doc["kind"]
        if kind == "spawned":
            self.liaison.learn(doc)
            self.spawned.append(doc)
        elif kind == "reply":
            self.liaison.requests.pop(doc["number"], None)
            future = self.went if doc["number"] == 0 else self.requested.pop(doc["number"], None)
            if future is not None and not future.done():
                if doc["ok"]:
                    future.set_result(doc["value"])
                else:
                    future.set_exception(unpack_error(doc["value"], participant=self.me.name, live={}))
        elif kind == "notice":
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
        self.fault = self.fault or fault
        waiting = [*self.waiting.values(), *self.spawning.values(), *self.requested.values(), self.went]
        waiting += [entry.taken for entry in self.submissions]
        waiting += [stable for stables in self.stable.values() for stable in stables]
        for future in waiting:
            if not future.done():
                future.set_exception(self.fault)
        for table in (self.waiting, self.spawning, self.requested, self.stable, self.submissions):
            table.clear()


def _copy(done: Future[Any], to: Future[Any]) -> None:
    if to.done():
        return
    error = done.exception()
    if error is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())
