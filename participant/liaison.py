"""A participant's side of the conversation with the coordinator.

The participant dials; a new coordinator is found through the same address function, and is told again
whatever it has not decided. What a coordinator of an older fencing token says is not obeyed. Without any
coordinator for `ORPHAN_AFTER` seconds the participant ends itself: nobody could ever stop it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cutline.barrier import LocalSnapshot, Member, Open, Spawn
from cutline.barrier.actions import Report
from cutline.barrier.events import CoordinatorOpened, Gone, Initiated, Settled, SpawnAnswered, Told
from cutline.barrier.wire import PROTOCOL, claims_to_doc
from cutline.errors import UnknownParticipant
from cutline.storage.image import ImageRef

from .control import pack_control, unpack_control
from .departing import left_error
from .failures import skips_from
from .messages import pack_error
from .saying import said
from .transport import Link, LinkUp

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ("Liaison", "COORDINATOR", "ORPHAN_AFTER")

COORDINATOR = "@coordinator"
RETRY = 0.1
ORPHAN_AFTER = 30.0
ASK_AGAIN = 0.1


class Liaison:
    """The coordinator link of one participant."""

    def __init__(self, runner: Runner, address: Callable[[], str]) -> None:
        self.runner = runner
        self.address = address
        self.link: Link | None = None
        self.retry_at: float | None = None
        self.lost_at = runner.now()
        self.refusal = ""
        self.token = -1
        self.asked: dict[str, float] = {}
        self.waiting: list[str] = []
        self.ask_again_at = 0.0
        self.requests: dict[object, bytes] = {}
        # Who did not come up, and why: what is still sent there is answered with it.
        self.failed_births: dict[str, bytes] = {}
        # Names that something was told to in vain; false once the coordinator knows.
        self.undelivered: dict[str, bool] = {}
        self._steps: dict[str, Callable[[dict[str, Any]], None]] = {
            "born": self._born,
            "initiate": self.learn,
            "settled": self._settled,
            "roll_back": self._roll_back,
            "resume": self._resume,
            "resolved": self._told,
            "spawned": self._told,
            "left": self._told,
            "leaving": self._leaving,
            "spawning": self._spawning,
            "wait": self._wait,
            "halt": self._halt,
            "stop": self._stop,
        }

    # -- the link ------------------------------------------------------------------------------

    def dial(self) -> None:
        """Connects to whatever coordinator the address function names now."""
        self.retry_at = None
        try:
            address = self.address()
        except OSError as error:
            # Of the file that says it: out of descriptors, a folder that is away for a while.
            self.down(f"where the coordinator is cannot be read: {error}")
            return
        if address:
            self.runner.transport.connect(address, self.hello(), COORDINATOR)
        else:
            self.down("no coordinator is known yet")

    def hello(self) -> bytes:
        """Who this is and where it stands."""
        runner = self.runner
        return pack_control(
            "participant",
            protocol=PROTOCOL,
            run=runner.setup.run,
            member=list(runner.me),
            phase=runner.phase,
            epoch=runner.endpoint.epoch if runner.endpoint is not None else -1,
            checkpoint=runner.checkpoint,
            address=runner.address,
            launch=runner.setup.launch,
            pid=runner.setup.pid,
            started=runner.setup.started,
            class_name=runner.setup.class_name,
            node=runner.setup.node,
            error=runner.birth_error,
            reason=runner.birth_reason,
            at=runner.attempted,
            fit=runner.desk.fit if runner.phase == "restored" else None,
        )

    def up(self, event: LinkUp) -> None:
        """A coordinator answered: say again what it has not decided, ask again what it has not answered."""
        runner = self.runner
        if self.link is not None:
            self.link.close()
        self.link = event.link
        self.asked.clear()
        if runner.endpoint is not None and runner.phase == "running":
            runner.feed(CoordinatorOpened())
            for name in runner.unresolved:
                self.resolve(name)
            for peer in runner.endpoint.pending_dials():
                runner.dial(peer)
            if runner.desk.leaving:
                runner.departing.tell_peers(again=True)
        if runner.failure is not None:
            self.say("failed", **runner.failure)
        for packet in self.requests.values():
            self.link.send_control(packet)
        runner.reconnected()

    def down(self, reason: str = "") -> None:
        """The link broke, or did not come about: try again soon."""
        runner = self.runner
        if self.link is not None:
            self.link = None
            self.lost_at = runner.now()
        self.refusal = reason
        self.retry_at = runner.now() + RETRY
        if runner.now() - self.lost_at > ORPHAN_AFTER:
            runner.ended = f"no coordinator for {ORPHAN_AFTER:.0f} s ({reason or 'the connection broke'})"

    def tick(self) -> None:
        """Dials again when it is time, and asks again for names that were not there yet."""
        if self.retry_at is None and not self.waiting:
            return
        now = self.runner.now()
        if self.retry_at is not None and now >= self.retry_at:
            self.dial()
        if self.waiting and now >= self.ask_again_at:
            names, self.waiting = self.waiting, []
            for name in names:
                self.resolve(name)

    def say(self, kind: str, **fields: Any) -> None:
        """One packet to the coordinator; without one it is lost, and said again where that matters."""
        if self.link is not None:
            endpoint = self.runner.endpoint
            epoch = endpoint.epoch if endpoint is not None else -1
            self.link.send_control(pack_control(kind, epoch=epoch, member=list(self.runner.me), **fields))

    def report(self, action: Report) -> None:
        """Prepared."""
        self.say(
            "prepared",
            checkpoint=action.checkpoint,
            claims=claims_to_doc(action.channels),
            image=action.image,
            facts=action.facts,
        )

    def packet(self, payload: bytes) -> None:
        """What the coordinator says, unless a newer one has spoken."""
        doc = unpack_control(payload)
        token = doc.get("token", 0)
        if token < self.token:
            return
        self.token = token
        step = self._steps.get(doc["kind"])
        if step is not None:
            step(doc)
        else:
            self.runner.other_order(doc)

    # -- orders --------------------------------------------------------------------------------

    def _born(self, doc: dict[str, Any]) -> None:
        runner = self.runner
        if runner.phase != "born":
            return
        snapshot = LocalSnapshot.newborn(doc["newest"], [Open(*entry) for entry in doc["undecided"]])
        runner.endpoint = runner.endpoint_kind(runner.me, runner.setup.run, doc["epoch"], snapshot)
        runner.peers.epoch = doc["epoch"]
        runner.steps.born(doc["epoch"], doc["newest"], doc["base"])
        runner.skips = skips_from(doc)
        runner.go()

    def learn(self, doc: dict[str, Any]) -> None:
        """What the coordinator lists as undecided is captured at the next boundary."""
        if self.runner.endpoint is not None:
            undecided = [Open(*entry) for entry in doc["undecided"]]
            self.runner.feed(Initiated(doc["epoch"], undecided, doc["newest"], doc["committed"]))

    def _settled(self, doc: dict[str, Any]) -> None:
        if self.runner.endpoint is not None:
            self.runner.feed(Settled(doc["epoch"], doc["checkpoint"], doc["committed"]))
            self.runner.shutter.expect(doc.get("next_in"))

    def _roll_back(self, doc: dict[str, Any]) -> None:
        runner = self.runner
        if runner.endpoint is not None and doc["epoch"] <= runner.endpoint.epoch:
            return
        # What an older capture still writes must not meet the new epoch's. Nothing is handled any more: if
        # the image does not load, there is no state.
        runner.phase = "restoring"
        runner.persister.drain()
        runner.desk.close()
        try:
            runner.be_restored(ImageRef.from_doc(doc["image"]), doc["epoch"], doc["checkpoint"], doc["floor"])
        except Exception as error:
            self.say(
                "restore_failed",
                at=doc["epoch"],
                reason=said(error),
                error=pack_error(error, participant=runner.me.name),
            )
            return
        runner.skips = skips_from(doc)
        self.say("restored", checkpoint=doc["checkpoint"], fit=runner.desk.fit)

    def _resume(self, doc: dict[str, Any]) -> None:
        runner = self.runner
        if runner.endpoint is None or doc["epoch"] != runner.endpoint.epoch or runner.phase != "restored":
            return
        runner.skips = skips_from(doc)
        runner.go()
        for name, birth, last in doc["left"]:
            self._left(Member(name, birth), last)
        runner.resumed(doc)

    def _halt(self, doc: dict[str, Any]) -> None:
        self.runner.tainted = True
        self.runner.halted(doc)

    def _stop(self, doc: dict[str, Any]) -> None:
        self.runner.ended = doc.get("reason", "stopped")

    # -- names ---------------------------------------------------------------------------------

    def new_epoch(self) -> None:
        """Answers to questions of the older epoch count no more."""
        self.asked.clear()
        self.undelivered.clear()
        self.waiting.clear()
        self.requests = {key: packet for key, packet in self.requests.items() if not isinstance(key, tuple)}

    def resolve(self, name: str) -> None:
        """Asks where `name` lives, once at a time; of an own newborn it is told anyway."""
        if name not in self.asked and not self.is_spawning(name):
            self.asked[name] = self.runner.now()
            endpoint = self.runner.endpoint
            known = {**endpoint.incoming, **endpoint.outgoing} if endpoint is not None else {}
            births = [peer.birth for peer in known if peer.name == name and peer != self.runner.me]
            self.say("resolve", name=name, births=births)

    def _wait(self, doc: dict[str, Any]) -> None:
        """The name is known and its participant not up yet."""
        self.asked.pop(doc["name"], None)
        self.waiting.append(doc["name"])
        self.ask_again_at = self.runner.now() + ASK_AGAIN

    def _told(self, doc: dict[str, Any]) -> None:
        """Who there is: heeded at the boundary after all that was begun before is captured (RULES 9)."""
        if self.runner.endpoint is not None:
            undecided = [Open(*entry) for entry in doc["undecided"]]
            self.runner.feed(Told(doc["epoch"], undecided, doc["newest"], doc["committed"], doc))

    def heed(self, doc: dict[str, Any]) -> None:
        """Acts on what the coordinator said of who there is."""
        if doc["kind"] == "spawned":
            self._heed_spawned(doc)
            return
        if doc["kind"] == "left":
            self._left(Member(doc["name"], doc["birth"]), doc["last"])
            return
        self.asked.pop(doc["name"], None)
        for birth, last in doc["gone"]:
            self._left(Member(doc["name"], birth), last)
        if doc.get("birth") is None:
            self.unknown(doc["name"], left=doc["left"])
        else:
            self._found(Member(doc["name"], doc["birth"]), doc["address"])

    def _found(self, member: Member, address: str) -> None:
        runner = self.runner
        assert runner.endpoint is not None
        runner.peers.addresses[member] = address
        self.undelivered.pop(member.name, None)
        runner.release_waiting(member.name, member)
        if member in runner.endpoint.pending_dials():
            runner.dial(member)

    def _leaving(self, doc: dict[str, Any]) -> None:
        """What is sent to that name from now on is for whoever has it then."""
        members = self.runner.peers.members
        if members.get(doc["name"]) == Member(doc["name"], doc["birth"]):
            del members[doc["name"]]

    def _left(self, peer: Member, last: int) -> None:
        """Somebody is gone, having handled that many of our messages."""
        runner = self.runner
        if runner.peers.members.get(peer.name) == peer:
            del runner.peers.members[peer.name]
        runner.peers.forget(peer)
        runner.feed(Gone(peer, last))

    def unknown(self, name: str, *, left: bool = False) -> None:
        """Nobody of that name: who asked gets an error for an answer; what was told is a dead letter."""
        runner = self.runner
        error = UnknownParticipant(
            f"participant {runner.me.name!r} sent to {name!r}, and there is no participant of that name; "
            "spawn it before its handle is used",
            participant=name,
        )
        packed = left_error(name) if left else pack_error(error, participant=runner.me.name)
        packed = self.failed_births.get(name) or packed
        runner.undeliverable(name, runner.unresolved.pop(name, []), packed)

    # -- newborns ------------------------------------------------------------------------------

    def ask_birth(self, spawn: Spawn) -> None:
        """Asks for a newborn, and again over every new link until it is answered."""
        assert self.runner.endpoint is not None
        self.failed_births.pop(spawn.name, None)
        packet = pack_control(
            "spawn",
            epoch=self.runner.endpoint.epoch,
            member=list(self.runner.me),
            number=spawn.number,
            name=spawn.name,
            record=spawn.record,
        )
        self.requests["spawn", spawn.number] = packet
        if self.link is not None:
            self.link.send_control(packet)

    def is_spawning(self, name: str) -> bool:
        """Whether this participant has spawned somebody of that name and not heard what became of it."""
        endpoint = self.runner.endpoint
        return endpoint is not None and any(spawn.name == name for spawn in endpoint.spawns.values())

    def _spawning(self, doc: dict[str, Any]) -> None:
        """Is somebody of that name to be born? Whoever is was asked for before this answer."""
        self.say("told_of_spawns", name=doc["name"])

    def _heed_spawned(self, doc: dict[str, Any]) -> None:
        runner = self.runner
        assert runner.endpoint is not None
        spawn = runner.endpoint.spawns.get(doc["number"])
        if spawn is None:
            return
        self.requests.pop(("spawn", spawn.number), None)
        runner.feed(SpawnAnswered(spawn.number))
        error: bytes | None = doc.get("error")
        if error is None:
            self._found(Member(spawn.name, doc["birth"]), doc["address"])
        else:
            self.failed_births[spawn.name] = error
            self.unknown(spawn.name)
            if any(peer.name == spawn.name for peer in runner.endpoint.pending_dials()):
                # Somebody else has the name, and something is on its way there: where that is was not asked.
                self.resolve(spawn.name)
        runner.spawn_answered(spawn, error)
