"""Runners of one process with a scripted coordinator, over links in memory: every step is the test's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutline.barrier import Member
from cutline.participant.control import pack_control, unpack_control
from cutline.participant.driver import DriverRunner, DriverState
from cutline.participant.ingress import IngressLog
from cutline.participant.method_table import MethodTable
from cutline.participant.persist import Persisted, Persister, PersistJob, write
from cutline.participant.runner import Runner, Setup
from cutline.participant.transport import LinkUp, PacketIn
from cutline.participant.transport_local import LocalHub, LocalLink, LocalTransport
from cutline.storage.image import ImageRef
from cutline.storage.memory import MemoryBlobs

__all__ = ("Town", "Clock", "RUN")

RUN = "0123456789abcdef"


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Now(Persister):
    """Writes at once, in the caller's thread."""

    def __init__(self, blobs: MemoryBlobs, post: Callable[[Persisted], None]) -> None:
        self._blobs, self._post = blobs, post

    def submit(self, job: PersistJob) -> None:
        self._post(write(self._blobs, job, self.most))

    def drain(self) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """Nothing to end."""


class Town:
    """Participants and the coordinator's words to them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hub = LocalHub()
        self.blobs = MemoryBlobs()
        self.runners: dict[str, Runner] = {}
        self.links: dict[str, LocalLink] = {}
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.images: dict[int, dict[str, Any]] = {}
        self.epoch, self.token, self.newest, self.committed = 0, 1, 0, 0
        self.undecided: list[list[Any]] = []
        self.mayor = ""
        # Who has left: name, birth, and how many messages of everybody's they took.
        self.left: list[list[Any]] = []
        self.new_coordinator()

    # -- the coordinator -------------------------------------------------------------------

    def new_coordinator(self) -> None:
        """A coordinator takes its place; participants look for it when they retry."""
        self.mayor = f"local:coordinator-{self.token}"
        self.hall = LocalTransport(self.hub, "t", self._hear, self.mayor, f"coordinator-{self.token}")
        self.hall.start()

    def lose_coordinator(self) -> None:
        """The coordinator is gone; its links break."""
        self.hall.crash()
        self.links.clear()

    def _hear(self, event: Any) -> None:
        if isinstance(event, LinkUp):
            doc = unpack_control(event.greeting)
            name = doc["member"][0]
            assert isinstance(event.link, LocalLink)
            self.links[name] = event.link
            self.heard.append((name, doc))
        elif isinstance(event, PacketIn):
            doc = unpack_control(event.payload)
            name = next(name for name, link in self.links.items() if link is event.link)
            self.heard.append((name, doc))
            if doc["kind"] == "resolve" and doc["name"] in self.runners:
                runner = self.runners[doc["name"]]
                where = {"name": doc["name"], "birth": runner.me.birth, "address": runner.address}
                self.say(name, "resolved", gone=[], left=False, **where, **self.view())

    def view(self) -> dict[str, Any]:
        """What the coordinator lists in most of its packets."""
        return {"undecided": self.undecided, "newest": self.newest, "committed": self.committed}

    def say(self, to: str, kind: str, /, **fields: Any) -> None:
        """One packet of the coordinator."""
        fields.setdefault("epoch", self.epoch)
        fields.setdefault("token", self.token)
        self.links[to].send_control(pack_control(kind, **fields))

    def said(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """What participants have said of one kind, in order."""
        return [(name, doc) for name, doc in self.heard if doc["kind"] == kind]

    # -- participants ----------------------------------------------------------------------

    def add(
        self,
        name: str,
        make: Callable[[], object],
        birth: int = 1,
        kind: type[Runner] = Runner,
        by_reference: int = 0,
        **options: Any,
    ) -> Runner:
        """A participant that is born and has said hello; `born` is still to be said."""
        setup = Setup("town", RUN, Member(name, birth), "", options, by_reference=by_reference)
        runner = kind(
            setup,
            self.blobs,
            lambda: self.mayor,
            classes=MethodTable(),
            wall=self.clock,
            now=self.clock,
        )
        self._move_in(runner)
        runner.be_born(make)
        runner.liaison.dial()
        return runner

    def add_driver(
        self, folder: Path, run: str = RUN, kind: type[DriverRunner] = DriverRunner
    ) -> DriverRunner:
        """The driver's runner, with a log in `folder`."""
        setup = Setup("town", run, Member("driver", 0), "", {})
        runner = kind(
            setup, self.blobs, lambda: self.mayor, classes=MethodTable(), wall=self.clock, now=self.clock
        )
        runner.log = IngressLog(folder / f"{run}.log", bytes(32))
        self._move_in(runner)
        runner.be_born(DriverState)
        runner.liaison.dial()
        return runner

    def _move_in(self, runner: Runner) -> None:
        name = runner.me.name
        transport = LocalTransport(
            self.hub, "t", runner.post, "local:", f"{name}-{id(runner)}", lambda: runner.peers.greeting()
        )
        runner.attach(transport, _Now(self.blobs, runner.post))
        runner.address = transport.start()
        self.runners[name] = runner

    def start(self, *names: str) -> None:
        """Says `born` to these, or to all, and lets everything settle."""
        self.settle()
        for name in names or self.runners:
            self.say(name, "born", base=0, skips=[], **self.view())
        self.settle()

    def settle(self) -> None:
        """Steps everybody until nothing moves."""
        quiet = 0
        for _ in range(2000):
            busy = False
            for runner in list(self.runners.values()):
                if runner.peers.acks and runner.phase == "running":
                    # Acks leave in bulk, none before its time.
                    busy, self.clock.now = True, max(self.clock.now, runner.peers.ack_at)
                busy = busy or not runner.queue.empty() or runner._has_work()
                if runner.ended is None:
                    runner.step(0.0)
            quiet = 0 if busy else quiet + 1
            if quiet > 2:
                return
        raise AssertionError("the town does not come to rest")

    # -- checkpoints and recoveries ----------------------------------------------------------

    def begin(self, full: bool = False) -> int:
        """Begins a checkpoint; nobody has taken a step yet."""
        self.newest += 1
        self.undecided.append([self.newest, full])
        for name in self.runners:
            self.say(name, "initiate", **self.view())
        return self.newest

    def decide(self, checkpoint: int, committed: bool, *, tell: bool = True) -> None:
        """Decides a checkpoint that everybody has prepared (or not)."""
        self.undecided = [entry for entry in self.undecided if entry[0] != checkpoint]
        if committed:
            self.images[checkpoint] = {
                name: doc["image"] for name, doc in self.said("prepared") if doc["checkpoint"] == checkpoint
            }
            self.committed = max(self.committed, checkpoint)
        for name in self.runners if tell else ():
            self.say(name, "settled", checkpoint=checkpoint, committed=committed)

    def checkpoint(self, full: bool = False) -> int:
        """A whole committed checkpoint."""
        number = self.begin(full)
        self.settle()
        self.decide(number, True)
        self.settle()
        return number

    def roll_back(self, checkpoint: int) -> None:
        """Tells everybody to take a cut; `resume` is still to be said."""
        for entry in list(self.undecided):
            self.decide(entry[0], False)
        self.epoch += 1
        for name in self.runners:
            image = self.images[checkpoint][name]
            self.say(name, "roll_back", image=image, checkpoint=checkpoint, floor=self.newest, skips=[])

    def resume(self, checkpoint: int) -> None:
        """Lets data flow again."""
        for name in self.runners:
            roster = dict.fromkeys(self.images[checkpoint], "")
            self.say(name, "resume", checkpoint=checkpoint, roster=roster, skips=[], left=self.left)

    def recover(self, checkpoint: int) -> None:
        """A whole recovery."""
        self.roll_back(checkpoint)
        self.settle()
        self.resume(checkpoint)
        self.settle()

    def replace(self, name: str, checkpoint: int) -> Runner:
        """A new process takes the place of one that goes on, unheard; everybody comes to the cut."""
        zombie = self.runners.pop(name)
        self.roll_back(checkpoint)
        setup = Setup("town", RUN, zombie.me, "", {})
        runner = Runner(
            setup, self.blobs, lambda: self.mayor, classes=MethodTable(), wall=self.clock, now=self.clock
        )
        self._move_in(runner)
        image = ImageRef.from_doc(self.images[checkpoint][name])
        runner.be_restored(image, self.epoch, checkpoint, self.newest)
        runner.liaison.dial()
        self.settle()
        self.resume(checkpoint)
        self.settle()
        return runner

    def close(self) -> None:
        """Lets go of everything."""
        for runner in self.runners.values():
            runner.desk.close()
            runner._unbind()
            if isinstance(runner, DriverRunner) and runner.log is not None:
                runner.log.close()
