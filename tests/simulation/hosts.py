"""Processes: the product's runners, stepped at moments of the world instead of in loops of their own.

A `Process` runs when something was posted to it or when its own patience ends, after a while that it needs to
get going. It may be paused (everything waits for it, nothing is lost) or crash (its links break, it posts
nothing any more). A participant's process is what `host_process` makes of a launch document, with links in
memory, a clock of the world and a persister that takes time; a coordinator's is what `begin` makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from cutline.barrier import Member
from cutline.coordinator.begin import lineage_to_run
from cutline.coordinator.input_retention import InputRetention
from cutline.coordinator.launch import Ended, launch_document
from cutline.coordinator.roster import Seat
from cutline.coordinator.runner import LEASE_SECONDS, Coordinator, Settings
from cutline.errors import StoreInUse
from cutline.participant.control import pack_control
from cutline.participant.flight import Flight
from cutline.participant.host_process import BEAT_SECONDS, begin
from cutline.participant.method_table import MethodTable
from cutline.participant.parcelling import Parcelling
from cutline.participant.persist import Persisted, Persister, PersistJob, write
from cutline.participant.runner import Runner, Setup
from cutline.participant.transport_local import LocalTransport
from cutline.storage import Owner, Store
from cutline.storage.blobs import BlobStore

if TYPE_CHECKING:
    from .town import Town

__all__ = ("CoordinatorProcess", "Launcher", "Participant", "Process", "SYSTEM", "Slow", "TOKEN")

SYSTEM = "simulated"
TOKEN = "t"
# Attempts, half a second each, to take a lease that somebody else has.
PATIENCE = 30


class Process(ABC):
    """See the module's head."""

    def __init__(self, town: Town, name: str) -> None:
        self.town = town
        self.world = town.world
        self.name = name
        self.alive = True
        self.paused_until = 0.0
        self.pid = town.next_pid()
        self.transport: LocalTransport
        self._due = float("inf")

    def wake(self, delay: float | None = None) -> None:
        """It will run in `delay` seconds, if it does not sooner."""
        if delay is None:
            delay = self.world.span(0.00002, 0.001)
        at = max(self.world.now + delay, self.paused_until)
        if at < self._due and self.alive:
            self._due = at
            self.world.after(at - self.world.now, self._run)

    def _run(self) -> None:
        if not self.alive or self._due > self.world.now:
            return
        self._due = float("inf")
        if self.paused_until > self.world.now:
            self.wake(0.0)
            return
        self.step()

    @abstractmethod
    def step(self) -> None:
        """One round of whatever runs here."""

    def pause(self, seconds: float) -> None:
        """It is stopped, and goes on later as if nothing had happened."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def crash(self) -> None:
        """SIGKILL."""
        self.alive = False
        self.transport.crash()


class Slow(Persister):
    """Images become durable after a while, in the order in which they were captured."""

    def __init__(self, process: Participant, blobs: BlobStore) -> None:
        self._process = process
        self._blobs = blobs
        self._captured: list[PersistJob] = []
        self._epoch = 0

    def submit(self, job: PersistJob) -> None:
        world = self._process.world
        self._captured.append(job)
        slow = world.chance(self._process.town.slow_writes)
        self._process.later(world.span(0.01, 3.0) if slow else world.span(0.001, 0.05), self._first)

    def _first(self) -> None:
        if self._captured:
            self._tell(self._write(self._captured.pop(0)))

    def _write(self, job: PersistJob) -> Persisted:
        written = write(self._blobs, job, self._process.town.most)
        if job.parent is not None and written.ref is not None:
            length = len(written.ref.chain)
            if length <= len(job.parent.chain):
                self._process.world.hits["chain folded" if length > 1 else "chain written whole"] += 1
        return written

    def drain(self) -> None:
        while self._captured:
            self._tell(self._write(self._captured.pop(0)))

    def _tell(self, outcome: Persisted) -> None:
        self._process.runner.post(outcome)
        self._process.wake()

    def close(self) -> None:
        """Nothing to end."""


class Participant(Process):
    """A participant's process. `kind` is the class of its runner."""

    kind: type[Runner] = Parcelling

    def __init__(self, town: Town, spec: Mapping[str, Any]) -> None:
        super().__init__(town, spec["member"][0])
        self.spec = spec
        self.launch: str = spec["launch"]
        self.spent = 0.0
        member = Member(*spec["member"])
        setup = Setup(
            system=SYSTEM,
            run=spec["run"],
            member=member,
            class_name=spec["class_name"],
            options=spec["options"],
            launch=self.launch,
            pid=self.pid,
        )
        self.runner = self._build(setup, town.store())
        self.runner.endpoint_kind = town.endpoint_kind
        self.transport = LocalTransport(
            town.network,
            TOKEN,
            self.post,
            "local:",
            f"{member.name}/{self.pid}",
            lambda: self.runner.peers.greeting(),
        )
        self.runner.attach(self.transport, Slow(self, self.runner.blobs))
        self.runner.shutter.small = town.small
        # Which pages a heap shares with strangers is not decided by a seed.
        self.runner.shutter.tracking = "hash"
        self.runner.shutter.renew()
        self.runner.shutter.renew()

    def _build(self, setup: Setup, store: Store) -> Runner:
        return self.kind(
            setup,
            store.blobs,
            lambda: self.town.endpoint,
            flight=Flight(Path(self.spec["flight"])),
            classes=MethodTable(),
            wall=self.now,
            now=self.now,
        )

    def now(self) -> float:
        """Its clock: a handler takes time, which passes while nobody else runs."""
        self.spent += self.town.handler_cost
        return self.world.now + self.spent

    def later(self, delay: float, what: Callable[[], None]) -> None:
        """Work of another thread of this process: not while it is paused, nor after its end."""

        def go() -> None:
            if not self.alive:
                return
            if self.paused_until > self.world.now:
                self.later(self.paused_until - self.world.now, what)
            else:
                what()

        self.world.after(delay, go)

    def post(self, event: Any) -> None:
        """What the transport tells; it wakes the process."""
        self.runner.post(event)
        self.wake()

    def begin(self) -> None:
        """The first lines of the process."""
        begin(self.runner, self.spec)
        self.open()

    def open(self) -> None:
        """It listens, and looks for the coordinator."""
        runner = self.runner
        runner.address = self.transport.start()
        runner.liaison.dial()
        self.town.watch(self)
        self.wake()
        self.later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        link = self.runner.liaison.link
        if link is not None:
            running = self.runner.desk.in_handler
            link.send_control(
                pack_control("beat", epoch=-1, member=list(self.runner.me), running=running, held=0.0)
            )
        self.later(BEAT_SECONDS, self._beat)

    def step(self) -> None:
        runner = self.runner
        self.spent = 0.0
        runner._bind()
        try:
            runner.guarded_step(0.0)
        finally:
            runner._unbind()
            spent, self.spent = self.spent, 0.0
        self.town.stepped(self)
        if runner.ended is not None:
            self.end(f"exit status 0: {runner.ended}")
            return
        self.wake(max(runner._patience(), spent) + 0.00001)

    def end(self, how: str) -> None:
        """The process is over."""
        if self.alive:
            self.crash()
            self.town.ended(self, how)

    def crash(self) -> None:
        super().crash()
        if self.runner.phase != "starting":
            self.runner.desk.close()


class Launcher:
    """See `cutline.coordinator.launch.Launcher`; processes live on when their coordinator dies."""

    def __init__(self, owner: CoordinatorProcess, common: Mapping[str, Any], folder: Path) -> None:
        self.program: dict[str, Any] = {}
        self.folder = folder
        self.owner = owner
        self._common = dict(common)
        self.watched: set[str] = set()

    def start(self, seat: Seat, mode: str, now: float, **details: Any) -> None:
        """Starts a process, which takes a while."""
        town = self.owner.town
        seat.launch = town.next_launch()
        seat.flight = str(self.folder / f"{seat.launch}.flight")
        seat.started = town.world.now
        raw = launch_document(self._common, seat, mode, details)
        process = town.launch(msgpack.unpackb(raw, strict_map_key=False))
        seat.pid = process.pid
        self.watched.add(seat.launch)
        seat.phase, seat.launched_at, seat.link, seat.address = "starting", now, None, ""

    def adopt(self, seat: Seat) -> None:
        """Watches what an older coordinator started."""
        self.watched.add(seat.launch)
        if not self.alive(seat):
            self.owner.hear(Ended(seat.launch, "its process has ended"))

    def alive(self, seat: Seat) -> bool:
        """Whether its process runs."""
        process = self.owner.town.launches.get(seat.launch)
        return process is not None and process.alive and seat.launch not in self.owner.town.given_up

    def why_waiting(self, seat: Seat) -> str:
        """Nobody knows."""
        return ""

    def leave(self, node: str, seats: Sequence[Seat]) -> None:
        """There are no nodes."""

    def end(self, seat: Seat) -> None:
        """SIGKILL."""
        process = self.owner.town.launches.get(seat.launch)
        if process is not None:
            process.end("ended by SIGKILL")

    def close(self) -> None:
        """Processes live on."""
        self.watched.clear()


class CoordinatorProcess(Process):
    """A coordinator: the same lines as `cutline.coordinator.begin`, over links in memory."""

    def __init__(self, town: Town, how: Mapping[str, Any]) -> None:
        super().__init__(town, f"coordinator-{town.next_coordinator()}")
        self.how = how
        self.tries = 0
        self.coordinator: Coordinator | None = None
        # Whether the program that started it runs beside the one that is there.
        self.of_second_program = False
        self.transport = LocalTransport(
            town.network, TOKEN, self.post, f"local:{self.name}", self.name, self._welcome
        )

    def _welcome(self) -> bytes:
        assert self.coordinator is not None
        return pack_control("welcome", lineage=self.coordinator.lineage, token=self.coordinator.lease.token)

    def post(self, event: Any) -> None:
        """What the transport tells; it wakes the process."""
        assert self.coordinator is not None
        self.coordinator.post(event)
        self.wake()

    def hear(self, event: Ended) -> None:
        """The operating system says something, after a while."""

        def tell() -> None:
            if self.alive and self.coordinator is not None:
                self.post(event)

        self.world.after(self.world.span(0.0005, 0.05), tell)

    def begin(self) -> None:
        """Takes the lease, or tries again; then it listens, and does what is first."""
        town = self.town
        if not self.alive:
            return
        store = town.store()
        owner = Owner("simulated", self.pid, self.world.now, 1, "coordinator")
        try:
            lease = store.catalog.acquire_lease(SYSTEM, owner, LEASE_SECONDS, self.world.now)
        except StoreInUse:
            self.tries += 1
            if self.tries > PATIENCE:
                # The owner has come back: it is the one.
                self.alive = False
                self.town.coordinators.remove(self)
            self.world.after(0.5, lambda: self.town.guard(self, self.begin))
            return
        lineage, mode = lineage_to_run(store, lease, SYSTEM, dict(self.how))
        made = self.coordinator = Coordinator(
            Settings(SYSTEM, **town.settings),
            store,
            lease,
            lineage,
            now=self.world.clock,
            wall=self.world.clock,
        )
        made.swept = InputRetention(made).tell
        common = {"run": lineage, "system": SYSTEM}
        made.attach(self.transport, Launcher(self, common, town.folder))
        town.endpoint = self.transport.start()
        town.appointed(self)
        if not self.alive:
            return
        if mode == "take_over":
            made.recoverer.take_over()
        elif mode == "resume":
            made.recoverer.resume_newest()
        self.wake()

    def step(self) -> None:
        coordinator = self.coordinator
        assert coordinator is not None
        self.town.guard(self, lambda: coordinator.step(0.0))
        if not self.alive:
            return
        self.town.coordinated(self)
        if coordinator.ended is not None:
            self.end(coordinator.ended)
            return
        self.wake(coordinator.patience())

    def end(self, how: str) -> None:
        """It stops in order: what it said still leaves, and the lease is free."""
        coordinator = self.coordinator
        assert coordinator is not None
        self.alive = False
        self.transport.close()
        if not how.startswith("fenced"):
            coordinator.catalog.release_lease(coordinator.lease)
        self.town.coordinator_ended(self, how)
