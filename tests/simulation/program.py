"""The user's program: it spawns nodes, asks for things at random moments, and remembers what it was promised.

An input that was taken must be done exactly once, whatever happens; one that was refused, never; one whose
fate nobody told (the program itself was killed) once at most. The program outlives its own process: it is
what a user would know who looks at the screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutline.errors import CutlineError, RolledBack, StoreFull, StoreInUse
from cutline.participant.classes import name_of
from cutline.participant.driver import DRIVER, DriverState
from cutline.participant.handle import Handle
from cutline.participant.ingress import IngressLog
from cutline.participant.messages import pack_arguments
from cutline.participant.runner import Runner, Setup
from cutline.participant.submission import Submission
from cutline.storage import Store

from .actors import Node
from .hosts import Participant
from .observed import ObservedDriver
from .world import Violation

if TYPE_CHECKING:
    from .town import Town

__all__ = ("ACTIVITIES", "Driver", "Log", "Program")

ACTIVITIES = ("token", "transfer", "stage", "flood", "echo", "shop", "ask", "refuse", "flaky", "child")


MOST_LABELS = 6
MOST_CHILDREN = 20


class Log(IngressLog):
    """A log whose disk is sometimes full, and that one living process has at a time."""

    def __init__(self, town: Town, path: Path, owner: Participant) -> None:
        self.town, self._owner = town, owner
        # Small, so that files follow each other, and the older ones go.
        super().__init__(path, bytes(32), patience=0.0, segment_bytes=4_000, spent_bytes=1_000)

    def lock(self, path: Path, patience: float) -> int:
        holder = self.town.log_owner
        if holder is not None and holder.alive:
            raise StoreInUse(f"{holder.name} {holder.pid} holds {path.name}", path=path.name)
        self.town.log_owner = self._owner
        return super().lock(path, patience)

    def append(self, records: Any) -> int:
        if self.town.media.failing():
            self.town.world.fault("log full")
            raise StoreFull("the simulated log is full", path="log")
        return super().append(records)

    def forget(self, index: int) -> int:
        gone = super().forget(index)
        self.town.world.hits["log cut"] += gone
        return gone


class Driver(Participant):
    """The process of the program, with the driver's participant."""

    runner: ObservedDriver

    def __init__(self, town: Town, lineage: str) -> None:
        state = name_of(DriverState)
        super().__init__(
            town,
            {"member": [DRIVER, 0], "launch": "", "run": lineage, "class_name": state, "options": {}},
        )
        self.runner.log = Log(town, town.folder / "ingress" / f"{lineage}.log", self)

    def _build(self, setup: Setup, store: Store) -> Runner:
        runner = ObservedDriver(
            setup,
            store.blobs,
            lambda: self.town.endpoint,
            classes=self.town.classes,
            wall=self.now,
            now=self.now,
        )
        runner.world = self.world
        runner.told, runner.departed = self.town.checker.told, self.town.checker.departed
        return runner

    def begin(self) -> None:
        self.runner.be_born(DriverState)
        self.open()

    def crash(self) -> None:
        super().crash()
        if self.runner.log is not None:
            self.runner.log.close()


class Program:
    """See the module's head."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.world = town.world
        rng = town.world.rng
        count = rng.choice((2, 3, 3, 4, 5))
        self.names = [f"n{k}" for k in range(count)]
        self.late = [f"late{k}" for k in range(rng.choice((0, 0, 1, 2)))]
        self.balances = {name: 1000 for name in (*self.names, *self.late)}
        self.weights = [rng.choice((0, 1, 1, 3)) for _ in ACTIVITIES]
        self.weights[0] = max(1, self.weights[0])
        self.pace = rng.choice((0.05, 0.1, 0.2))
        self.number = 0
        self.children = self.labels = 0
        self.most_children = rng.choice((1, 3, 15))
        # How often it asks for checkpoints itself.
        self.haste = rng.choice((0.0, 0.02, 0.1))
        self.inputs = 0
        # Of each input: taken (None: nobody knows), and what it asked for.
        self.taken: dict[int, bool | None] = {}
        self.kinds: dict[int, str] = {}
        # Of inputs with a key: what they are, so that they can be sent again, and how often they were.
        self.keyed: dict[int, tuple[str, list[Any]]] = {}
        self.tries: Counter[int] = Counter()
        self.answers: dict[int, Future[Any]] = {}
        self.spawned: set[str] = set()
        self.introduced: set[str] = set()
        self.up: dict[str, Future[Any]] = {}
        self.stopped = False
        self.points: list[Future[Any]] = []

    # -- the driver's end ------------------------------------------------------------------

    @property
    def driver(self) -> Driver | None:
        """The program's process, if it can be spoken to."""
        driver = self.town.driver
        if driver is None or not driver.alive or not driver.runner.went.done():
            return None
        return driver

    def _submit(self, kind: str, target: str, method: str, arguments: Any, **more: Any) -> Future[Any]:
        driver = self.driver
        assert driver is not None
        runner = driver.runner
        self.number = max(self.number + 1, runner.desk.next_number)
        taken: Future[Any] = Future()
        if kind == "ask":
            answer = runner.waiting[self.number] = Future()
            self.answers[self.number] = answer
            number = self.number
            taken.add_done_callback(lambda done: self._refused(number, done))
        driver.post(
            Submission(kind, self.number, target, method, arguments, more.get("key"), True, None, 0, taken)
        )
        return taken

    def _refused(self, number: int, taken: Future[Any]) -> None:
        driver = self.driver
        if taken.exception() is not None:
            self.answers.pop(number, None)
            if driver is not None:
                driver.runner.waiting.pop(number, None)

    def _handles(self, names: list[str]) -> list[Handle]:
        return [Handle(name, name_of(Node), self.town.port) for name in names]

    def _spawn(self, name: str, peers: list[str]) -> None:
        arguments = (name, self._handles(peers), self.balances[name], self.world.rng.choice((0, 0, 400_000)))
        record = {
            "class_name": name_of(Node),
            "options": {"on_error": "retry"},
            "args": pack_arguments(arguments, {}, participant=DRIVER, where=name),
            "main": b"",
            "get": False,
        }
        self.up[name] = self._submit("spawn", name, "", record)
        self.spawned.add(name)

    # -- what it does ----------------------------------------------------------------------

    def go(self) -> None:
        """One thing, and another one later."""
        if not self.stopped:
            self.world.after(self.world.span(self.pace / 4, self.pace * 4), self.go)
        started = self.town.driver
        if started is not None and started.runner.went.done() and started.runner.went.exception() is not None:
            # The start has failed: cut 0 could not be written, say. The user runs it again.
            self.world.note("the start fails", started.runner.went.exception())
            self.town.run_again()
        driver = self.driver
        if driver is None:
            return
        if driver.runner.replay:
            return
        known = driver.runner.known_names
        missing = [name for name in self.names if name not in known]
        if missing:
            for name in missing:
                if name not in self.up or self.up[name].done():
                    self._spawn(name, self.names)
            return
        if any(not future.done() for future in self.up.values()):
            return
        if self.late and not self.stopped and self.world.chance(0.05):
            self._add_late(known)
        if self.world.chance(self.haste):
            self._ask_for_cuts()
        if self.keyed and self.world.chance(0.2):
            self._insist(self.world.rng.choice(list(self.keyed)))
        self._input()

    def _ask_for_cuts(self) -> None:
        """Two at once: the second begins while the first is under way."""
        self.checkpoint()
        if self.labels < MOST_LABELS:
            self.labels += 1
            self._request("savepoint", label=f"point {self.labels}")
        else:
            self.checkpoint()

    def _add_late(self, known: Any) -> None:
        name = self.late[0]
        if name not in known:
            if name not in self.up or self.up[name].done():
                self._spawn(name, [*self.names, name])
        else:
            self.late.pop(0)
            for peer in self.names:
                self._submit(
                    "tell",
                    peer,
                    "meet",
                    pack_arguments((self._handles([name])[0],), {}, participant=DRIVER, where="meet"),
                )

    def _input(self) -> None:
        rng = self.world.rng
        activity = rng.choices(ACTIVITIES, self.weights)[0]
        target = rng.choice(self.names)
        self.inputs += 1
        number = self.inputs
        self.kinds[number] = activity
        if activity == "shop":
            taken = self._submit("ask", target, "shop", [number, rng.randint(0, 4)])
        elif activity == "child" and self.children >= self.most_children:
            self.kinds[number] = "none"
            return
        elif activity == "flaky":
            if rng.random() < 0.9:
                self.kinds[number] = "none"
                return
            taken = self._submit("tell", target, "flaky", [number])
        elif activity == "ask":
            taken = self._submit("ask", target, "start", [number, "token", rng.randint(0, 9)])
        elif activity == "refuse":
            taken = self._submit("ask", target, "refuse", [number])
        else:
            self.children += activity == "child"
            arguments = [number, activity, rng.choice((1, 3, 8))]
            if rng.random() < 0.3:
                self.keyed[number] = target, arguments
                self._insist(number)
                return
            taken = self._submit("tell", target, "start", arguments)
        self.taken[number] = None
        taken.add_done_callback(lambda done: self._told(number, done))

    def _insist(self, number: int) -> None:
        """Sends an input with a key, for the first time or again."""
        target, arguments = self.keyed[number]
        self.tries[number] += 1
        # Refused so far is not refused for good.
        self.taken[number] = self.taken.get(number) or None
        taken = self._submit("tell", target, "start", arguments, key=f"key {number}")
        taken.add_done_callback(lambda done: self._told(number, done))
        if self.tries[number] > 1:
            self.world.hits["input again under its key"] += 1

    def want_checkpoint(self) -> None:
        """Asks for one, and does not wait for it."""
        self.checkpoint()

    def bear(self, target: str, remainder: int) -> None:
        """A node has a child: an odd one has a name of its own, an even one that of those before it."""
        driver = self.driver
        if driver is None or driver.runner.replay or self.children >= MOST_CHILDREN:
            return
        if any(name not in driver.runner.known_names for name in self.names):
            return
        self.children += 1
        self.inputs += 1 + ((self.inputs + 1) % 2 != remainder)
        number = self.inputs
        self.kinds[number] = "child"
        self.taken[number] = None
        taken = self._submit("tell", target, "start", [number, "child", 8])
        taken.add_done_callback(lambda done: self._told(number, done))

    def _told(self, number: int, done: Future[Any]) -> None:
        if done.exception() is None:
            self.taken[number] = True
        elif self.tries[number] < 2:
            self.taken[number] = False

    def checkpoint(self) -> Future[Any]:
        """Asks for a checkpoint."""
        return self._request("checkpoint")

    def _request(self, what: str, **fields: Any) -> Future[Any]:
        done: Future[Any] = Future()
        driver = self.driver
        if driver is None:
            done.set_exception(CutlineError("there is no driver"))
        else:
            driver.post(lambda: driver.runner.request(what, fields, done))
        return done

    # -- what it was promised --------------------------------------------------------------

    def check(self, nodes: Mapping[str, Node]) -> None:
        """Raises Violation."""
        done: Counter[int] = Counter()
        for node in nodes.values():
            done.update(node.inputs)
            done.update(node.done)
        echoed: Counter[int] = Counter(number for node in nodes.values() for number in node.heard)
        served: Counter[int] = Counter(order for node in nodes.values() for order in node.served)
        for number, taken in self.taken.items():
            kind = self.kinds[number]
            if kind == "refuse":
                continue
            times = done.pop(number, 0)
            if times > 1 or (taken is True and times != 1) or (taken is False and times):
                raise Violation(f"input {number} ({kind}) was done {times} times; taken: {taken}")
            if kind == "echo" and echoed[number] != times:
                raise Violation(f"the echo of {number} came {echoed[number]} times")
        if done:
            raise Violation(f"inputs {sorted(done)} were done, and nobody asked for them")
        twice = [order for order, times in served.items() if times > 1]
        if twice:
            raise Violation(f"orders {twice} were served more than once")
        self._check_orders(nodes, served)
        self._check_answers()

    def _check_orders(self, nodes: Mapping[str, Node], served: Counter[int]) -> None:
        finished = {number for node in nodes.values() for number in node.done}
        strays = sorted(order for order in served if order // 100 not in finished)
        if strays:
            raise Violation(f"orders {strays} were served for nobody")

    def _check_answers(self) -> None:
        driver = self.driver
        assert driver is not None
        for number, future in self.answers.items():
            if not future.done():
                if number in driver.runner.waiting:
                    raise Violation(f"question {number} of the program has no answer")
                continue
            error = future.exception()
            if error is not None and not isinstance(error, RolledBack):
                raise Violation(f"question {number} of the program ended with {error!r}")
