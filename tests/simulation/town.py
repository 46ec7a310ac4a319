"""A whole simulated system: processes, disk, network, catalog, program, and whatever befalls them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutline.barrier import Endpoint, Member
from cutline.barrier.channel import WINDOW
from cutline.barrier.endpoint import MAILBOX_BYTES
from cutline.coordinator.driver_port import DriverPort
from cutline.coordinator.launch import Ended
from cutline.errors import StorageError, StoreInUse
from cutline.participant.driver import DRIVER
from cutline.participant.method_table import MethodTable
from cutline.participant.shutter import SMALL
from cutline.storage import DirectoryBlobs, Lease, Owner, SqliteCatalog, Store
from cutline.storage.folding import MOST

from .actors import Numbers
from .check import Checker
from .disk import FlakyDatabase, Media, SimulatedDisk
from .hosts import CoordinatorProcess, Launcher, Participant, Process
from .network import Manners, Network
from .observed import ObservedDriver, ObservedRunner
from .program import Driver, Program
from .world import Violation, World

__all__ = ("Doomed", "Town")


class Doomed(BaseException):
    """The process dies here and now, in the middle of a call. No `except Exception` holds it up."""


class _Catalog(SqliteCatalog):
    """The product's catalog, with a witness of what is written."""

    town: Town

    def acquire_lease(self, system: str, owner: Owner, ttl: float, now: float) -> Lease:
        lease = super().acquire_lease(system, owner, ttl, now)
        self.town.checker.newest_token = lease.token
        self.town.world.note("lease", lease.token)
        return lease

    def begin(self, lease: Lease, lineage: str, **facts: Any) -> int:
        number = super().begin(lease, lineage, **facts)
        self.town.doom("after begun", lease)
        return number

    def abort(self, lease: Lease, lineage: str, checkpoint: int, reason: str, now: float) -> Any:
        if "prove itself" in reason and self.town.checker.watching:
            raise Violation(f"checkpoint {checkpoint} is refused: {reason}")
        return super().abort(lease, lineage, checkpoint, reason, now)

    def commit(self, lease: Lease, lineage: str, checkpoint: int, **facts: Any) -> Any:
        self.town.doom("before the row", lease)
        try:
            return super().commit(lease, lineage, checkpoint, **facts)
        finally:
            self.town.checker.row_written(lease, lineage, checkpoint)
            self.town.doom("after the row", lease)

    def bump_epoch(self, lease: Lease, lineage: str) -> int:
        epoch = super().bump_epoch(lease, lineage)
        self.town.doom("after the epoch", lease)
        return epoch


class _Wire(Network):
    """The network, and a witness of what coordinators say."""

    town: Town

    def carry(self, kind: Any, ends: Any, payload: bytes, effect: Any, forget: Any = lambda: None) -> None:
        """See `Network.carry`."""
        if kind == "control" and ends[0].startswith("coordinator"):
            self.town.checker.said(payload)
        super().carry(kind, ends, payload, effect, forget)


class _Participant(Participant):
    kind = ObservedRunner

    def _build(self, setup: Any, store: Store) -> Any:
        runner = super()._build(setup, store)
        assert isinstance(runner, ObservedRunner)
        runner.world = self.world
        runner.told, runner.departed = self.town.checker.told, self.town.checker.departed
        return runner


class Town:
    """See the module's head."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.classes = MethodTable()
        self.network = _Wire(world, Manners.drawn(world))
        self.network.town = self
        self.media = Media(world)
        self.catalog = self._catalog()
        self.checker = Checker(self)
        self.endpoint = ""
        self.lineage = ""
        self.launches: dict[str, Participant] = {}
        # Launches that the coordinator was told have ended, though they go on.
        self.given_up: set[str] = set()
        self.coordinators: list[CoordinatorProcess] = []
        self.driver: Driver | None = None
        # Who has the ingress log: as with a lock of the operating system, until its process ends.
        self.log_owner: Participant | None = None
        self.dooms: dict[str, float] = {}
        self._pids = self._launched = self._appointed = 0
        Numbers.reset()
        pick = world.rng.choice
        self.settings: dict[str, Any] = {
            "interval": pick((0.3, 0.7, 1.5)),
            "full_every": pick((None, None, 2, 10)),
            "keep": pick((1, 2, 10)),
            "min_pause": pick((0.0, 0.0, 0.3)),
            "checkpoint_timeout": pick((2.0, 60.0)),
            "max_deaths": 1000,
        }
        # Messages that a channel may have under way, and bytes of a mailbox: small ones are often full.
        self.window = pick((8, 64, WINDOW))
        self.mailbox_bytes = pick((2_000, MAILBOX_BYTES, MAILBOX_BYTES))
        # Seconds that pass whenever a participant looks at its clock, which it does between messages.
        self.handler_cost = pick((0.005, 0.015, 0.04))
        # Packs of a chain beside the full one, and bytes of a state that is written whole each time.
        self.most = pick((1, 2, 4, MOST))
        self.small = pick((0, 0, 2_000, SMALL))
        # How often an image takes long to become durable.
        self.slow_writes = 0.05
        self.program = Program(self)
        self.port: Any = None

    def _catalog(self) -> _Catalog:
        catalog = _Catalog(":memory:", dead=self._is_dead)
        flaky = FlakyDatabase(":memory:")
        flaky._connection, flaky._pid = catalog.database._connection, catalog.database._pid
        flaky.media = self.media
        catalog.database = flaky
        catalog.town = self
        return catalog

    def _is_dead(self, owner: Owner) -> bool:
        return not any(each.alive for each in self.coordinators if each.pid == owner.pid)

    def store(self) -> Store:
        """What a process opens: blobs of its own on the one disk, and the catalog."""
        return Store("simulated", DirectoryBlobs("/", SimulatedDisk(self.media)), self.catalog, None)

    def endpoint_kind(self, *state: Any, **more: Any) -> Endpoint:
        """The protocol automaton of a participant, with this town's windows."""
        return Endpoint(*state, window=self.window, mailbox_bytes=self.mailbox_bytes, **more)

    # -- names -----------------------------------------------------------------------------

    def next_pid(self) -> int:
        """A process id."""
        self._pids += 1
        return self._pids

    def next_launch(self) -> str:
        """A launch's nonce."""
        self._launched += 1
        return f"launch-{self._launched}"

    def next_coordinator(self) -> int:
        """A coordinator's number."""
        self._appointed += 1
        return self._appointed

    # -- processes -------------------------------------------------------------------------

    @property
    def coordinator(self) -> CoordinatorProcess | None:
        """The newest coordinator, if it lives."""
        newest = self.coordinators[-1] if self.coordinators else None
        return newest if newest is not None and newest.alive else None

    def participants(self) -> list[Participant]:
        """Processes of participants that live and are not given up."""
        return [
            process
            for process in self.launches.values()
            if process.alive and process.launch not in self.given_up
        ]

    def processes(self) -> list[Process]:
        """All that live."""
        found: list[Process] = [each for each in self.coordinators if each.alive]
        found += [process for process in self.launches.values() if process.alive]
        if self.driver is not None and self.driver.alive:
            found.append(self.driver)
        return found

    def launch(self, spec: Mapping[str, Any]) -> Participant:
        """A participant's process begins in a moment."""
        process = _Participant(self, spec)
        self.launches[process.launch] = process
        self.world.note("launches", process.name, spec["mode"])

        def begin() -> None:
            if process.alive:
                process.begin()

        self.world.after(self.world.span(0.01, 0.3), begin)
        return process

    def appoint(self, how: Mapping[str, Any], delay: float = 0.0) -> None:
        """A coordinator's process begins."""
        process = CoordinatorProcess(self, {"take_over": False, "restore": None, "fresh": False, **how})
        self.coordinators.append(process)
        self.world.after(delay, lambda: self.guard(process, process.begin))

    def appointed(self, process: CoordinatorProcess) -> None:
        """A coordinator holds the lease and listens."""
        assert process.coordinator is not None
        self.lineage = process.coordinator.lineage
        self.world.note("coordinates", process.name, "token", process.coordinator.lease.token)
        if process.of_second_program:
            try:
                self._drive()
            except StoreInUse as error:
                # The second program ends with this error; the first one starts a coordinator when it can.
                self.world.note("the second program ends", error)
                self.world.hits["second program refused"] += 1
                process.crash()
                self.replace()
        elif self.driver is None or not self.driver.alive:
            self._drive()

    def _drive(self) -> None:
        self.driver = Driver(self, self.lineage)
        self.port = DriverPort(self.driver.runner)
        self.driver.begin()

    def guard(self, process: CoordinatorProcess, what: Any) -> None:
        """A coordinator that fails is a process that ends; another one takes its place."""
        try:
            what()
        except Doomed:
            self.world.fault("coordinator killed", "inside a call")
            process.crash()
            self.replace()
        except StorageError as error:
            self.world.fault("coordinator failed", type(error).__name__)
            process.crash()
            self.replace()

    def replace(self) -> None:
        """The driver notices that the coordinator has ended, and starts another one."""
        take_over = {"take_over": self.driver is not None, "lineage": self.lineage}
        self.appoint(take_over, self.world.span(0.05, 1.0))

    def doom(self, place: str, lease: Lease) -> None:
        """Ends the process that calls, if its time has come; only inside a step of a coordinator."""
        if self.dooms.get(place) and lease.token == self.checker.newest_token:
            if self.world.chance(self.dooms[place]):
                self.world.hits[f"coordinator dead {place}"] += 1
                raise Doomed(place)

    def kill_coordinator(self) -> None:
        """SIGKILL."""
        process = self.coordinator
        if process is None:
            return
        made = process.coordinator
        if made is None:
            state = "before it listens"
        elif made.recoverer.gathering:
            state = "gathering"
        elif made.recovery.restoring:
            state = "restoring"
        elif made.commit.undecided:
            state = "with a checkpoint under way"
        else:
            state = "idle"
        self.world.hits[f"coordinator dead {state}"] += 1
        self.world.fault("coordinator killed", state)
        process.crash()
        self.replace()

    def coordinator_ended(self, process: CoordinatorProcess, how: str) -> None:
        """A coordinator has ended by itself."""
        self.world.note("ends", process.name, how)
        if how.startswith("fenced"):
            self.world.hits["zombie coordinator refused"] += 1
        if process is self.coordinators[-1]:
            # The program hears of it, and is run again.
            self.replace()

    def cut_power(self) -> None:
        """Everything dies at once; what was not synced is gone; the program is run again."""
        self.world.fault("power cut")
        self.media.cut_power()
        self.run_again()

    def run_again(self) -> None:
        """Nothing of the program's is left; it is started anew."""
        for process in self.processes():
            process.crash()
        self.given_up.clear()
        self.endpoint = ""
        self.driver = None
        self.appoint({}, self.world.span(0.1, 1.0))

    def run_twice(self) -> None:
        """The program stands still, its coordinator has ended, and somebody runs it again."""
        driver = self.program.driver
        if driver is None:
            return
        self.world.fault("program run twice")
        if self.coordinator is not None:
            self.coordinator.crash()
        driver.pause(self.world.span(0.3, 5.0))
        self.appoint({}, self.world.span(0.1, 1.0))
        self.coordinators[-1].of_second_program = True

    def ended(self, process: Participant, how: str) -> None:
        """A participant's process has ended: the operating system tells its coordinators."""
        self.world.note("ended", process.name, how)
        if process is self.driver:
            raise Violation(f"the driver's participant has ended: {how}")
        if process.launch in self.given_up:
            return
        self._tell_ended(process, how)

    def _tell_ended(self, process: Participant, how: str) -> None:
        for each in self.coordinators:
            launcher = each.coordinator.launcher if each.coordinator is not None else None
            if each.alive and isinstance(launcher, Launcher) and process.launch in launcher.watched:
                each.hear(Ended(process.launch, how))

    def give_up(self, process: Participant) -> None:
        """Coordinators are told that it has ended; it is only out of reach, and will be back."""
        self.world.fault("declared dead", process.name)
        self.given_up.add(process.launch)
        process.pause(self.world.span(0.1, 6.0))
        if self.world.chance(0.5):
            for link in sorted(process.transport.links, key=repr):
                link.sever()
        self._tell_ended(process, "its node is out of reach")

    # -- what processes report -------------------------------------------------------------

    def watch(self, process: Participant) -> None:
        """A participant's process listens."""
        if process.runner.phase == "failed":
            self.world.note("failed", process.name, process.runner.birth_reason)

    def stepped(self, process: Participant) -> None:
        """A participant has taken a step."""
        runner = process.runner
        assert isinstance(runner, (ObservedRunner, ObservedDriver))
        if runner.wrong:
            raise Violation(f"{process.name} {runner.wrong}")
        if runner.phase == "broken":
            raise Violation(f"{process.name} broke: {runner.failure}")
        self.checker.buffers(process)

    def coordinated(self, process: CoordinatorProcess) -> None:
        """A coordinator has taken a step."""
        made = process.coordinator
        if made is not None and made.halted is not None:
            raise Violation(f"the system halted: {made.halted['text']}")

    # -- rest ------------------------------------------------------------------------------

    def quiet(self) -> bool:
        """Whether nothing is under way any more."""
        process = self.coordinator
        made = process.coordinator if process is not None else None
        driver = self.driver
        if made is None or not made.flowing or made.commit.undecided or driver is None or not driver.alive:
            return False
        if not driver.runner.went.done() or driver.runner.replay or driver.runner.submissions:
            return False
        names = {seat.member.name for seat in made.roster if seat.phase == "running"}
        if any(seat.phase not in ("running", "departed") for seat in made.roster) or DRIVER not in names:
            return False
        known = self.program.spawned & set(driver.runner.known_names)
        return known <= names and all(self._rests(p) for p in [*self.participants(), driver])

    def _rests(self, process: Participant) -> bool:
        runner = process.runner
        endpoint = runner.endpoint
        if endpoint is None or runner.phase != "running" or runner._has_work() or not runner.queue.empty():
            return False
        if runner.unresolved or runner.desk.calls or endpoint.queued_bytes or runner.desk.out:
            return False
        asks = set(runner.desk.asks)
        if isinstance(runner, ObservedDriver):
            # An answer that nobody waits for may stay away.
            asks &= set(runner.waiting)
        return not asks and all(not end.pending and not end.frames for end in endpoint.outgoing.values())


def describe(town: Town) -> str:
    """Why it does not come to rest, for people."""
    process = town.coordinator
    made = process.coordinator if process is not None else None
    lines = [f"coordinator {process.name if process else None}"]
    if made is not None:
        lines.append(f"flowing {made.flowing} undecided {made.commit.undecided} state {made.recovery.state}")
        lines += [f"seat {seat.member} {seat.phase} {seat.launch} link {seat.link}" for seat in made.roster]
    for each in [*town.participants(), *([town.driver] if town.driver else [])]:
        runner = each.runner
        endpoint = runner.endpoint
        desk = runner.desk if runner.phase != "starting" else None
        lines.append(
            f"{each.name} alive {each.alive} {runner.phase} unresolved {list(runner.unresolved)} calls "
            f"{list(desk.calls) if desk else ''} asks {list(desk.asks)[:9] if desk else ''} "
            f"queue {runner.queue.qsize()}"
        )
        if endpoint is not None:
            ends: dict[Member, Any] = {
                p: (e.sent, e.transmitted, e.received, e.released, e.linked, len(e.pending))
                for p, e in endpoint.outgoing.items()
                if e.pending or e.frames
            }
            lines.append(f"   epoch {endpoint.epoch} queued {endpoint.queued_bytes} out {ends}")
    return "\n".join(lines)
