"""The shell round a participant: the only loop, the only place where its parts meet.

One thread owns everything: the instance, the desk (its calls), the endpoint (the protocol). It takes
events from a queue (packets, links, finished writes, submissions), feeds the automata, performs their
actions, captures when something is due, and otherwise handles one message after another. Between two
messages is the *boundary*: there a capture or a rollback happens, never inside a handler.

A host (process, in-process, later Ray) builds a Runner, gives it a transport and a persister, and calls
`run` on the thread that handlers are to run on. Nothing here knows which host it is.

Phases::

    born ------(coordinator: born)------> running <---(resume)--- restored <--(an image, at start)
                                            |  ^                      ^
                                            |  +----------------------+--(coordinator: roll_back)
                                            +--> tainted (a told handler raised; waits for roll_back or stop)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from cutline.barrier import Endpoint, LocalSnapshot, Member, Spawn, Stamp
from cutline.barrier.actions import (
    AskBirth,
    Capture,
    Complain,
    Depart,
    Dial,
    EndpointAction,
    Heed,
    Report,
    SendAck,
    SendFrame,
    SendMarker,
    Settle,
    Undelivered,
)
from cutline.barrier.events import AtBoundary, EndpointEvent, Flush, LinkOpened
from cutline.barrier.wire import pack_ack, pack_frame, pack_marker, unpack
from cutline.errors import Overloaded
from cutline.storage.blobs import BlobStore
from cutline.storage.image import ImageRef

from . import failures
from .capture import check_capturable
from .classes import quicken
from .clock import Clock, wall
from .departing import Departing, left_error
from .desk import Desk, HandlerRaised
from .flight import Flight
from .handle import bound_port
from .handling import FLUSH_AFTER, handle_run
from .imaging import revive
from .inbox import NOTHING, Inbox
from .liaison import COORDINATOR, Liaison
from .messages import read_frame
from .method_table import MethodTable
from .outbox import OutboxLimit
from .peers import Peers
from .persist import Persisted, Persister
from .purity import Purity
from .sending import Sending
from .setup import Setup
from .shutter import Shutter
from .steps import NoSteps, StepLost
from .transport import Drained, LinkDown, LinkRefused, LinkUp, PacketIn, Transport

__all__ = ("Runner", "Setup")

_FLUSH = Flush()


class Runner(Inbox, Sending):
    """See the module's head."""

    desk_kind = Desk

    def __init__(
        self,
        setup: Setup,
        blobs: BlobStore,
        coordinator: Callable[[], str],
        *,
        flight: Flight | None = None,
        classes: MethodTable,
        wall: Callable[[], float] = wall,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.setup = setup
        self.me = setup.member
        self.blobs = blobs
        self.flight = flight or Flight(None)
        self.classes = classes
        self.clock = Clock(wall, now)
        self.now = now
        self._unbind: Callable[[], None] = lambda: None
        self.purity = Purity(lambda: self.instance, every=setup.check_awaits)
        self.phase = "starting"
        self.tainted = False
        self.ended: str | None = None
        self.birth_error: bytes | None = None
        self.birth_reason = ""
        # The epoch of the newest restore that was tried.
        self.attempted = -1
        self.endpoint_kind: Callable[..., Endpoint] = Endpoint
        self.endpoint: Endpoint | None = None
        self.checkpoint = 0
        self.liaison = Liaison(self, coordinator)
        # The lineage whose image this state came from; another one than the run's after a fork.
        self.origin = setup.run
        self.failure: dict[str, Any] | None = None
        # Packets of peers that were faster than the coordinator's word that this one is born.
        self.early: list[PacketIn] = []
        self.timers_at = 0.0
        self.outbox = OutboxLimit(setup.outbox_bytes)
        self.steps = NoSteps()
        self.unresolved: dict[str, list[bytes]] = {}
        self.skips: failures.Skips = {}
        self.open_frame: Any = None
        self.open_messages: Iterator[list[Any]] = iter(())
        self.leaving: list[tuple[str | Member, bytes]] = []
        self.last_flush = 0.0
        self.handled_total = 0
        self.handlers_run = 0

    def attach(self, transport: Transport, persister: Persister) -> None:
        """Gives the runner what moves its bytes; both were built with `post`."""
        self.address = ""
        self.peers = Peers(self.me, self.setup.run, transport, self.now)
        self.transport = transport
        self.persister = persister
        self.shutter = Shutter(self, persister)

    # -- beginnings ------------------------------------------------------------------------

    def _new_desk(self, instance: object) -> None:
        self.instance = instance
        self.shutter.renew()
        self.desk = self.desk_kind(
            self.me,
            instance,
            class_name=self.setup.class_name,
            methods_of=self._methods_of,
            fingerprint=self.purity.fingerprint,
            now=self.clock,
        )
        self.desk.on_leave = self._leave_soon
        self.steps.attach(self.desk)
        self.departing = Departing(self)
        self.skips = {}
        self.open_frame = None
        self.tainted = False
        self.failure = None
        self.leaving.clear()

    def _leave_soon(self) -> None:
        # The run of messages ends after the one in hand.
        self.called = True

    def _methods_of(self, class_name: str) -> frozenset[str] | None:
        return self.classes.methods_of(class_name)

    def be_born(self, make: Callable[[], object]) -> None:
        """Makes the instance and shows that it can be captured, before anybody can send it anything.

        Raises:
            CannotCapture: the state cannot go into an image; the message names the attribute path.
            Exception: whatever the constructor raised.
        """
        self._new_desk(None)
        undo = bound_port(self.desk, thread_only=True)
        try:
            self.instance = self.desk.instance = make()
        finally:
            undo()
        self.shutter.insist()
        check_capturable(self.instance, self.me.name)
        quicken(self.instance)
        self.phase = "born"

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        """Takes the state of a cut; data flows when the coordinator says `resume`.

        Raises:
            ClassMissing, CannotRestore: the image and this program do not fit.
            Corrupt: the image is damaged.
        """
        self.attempted = epoch
        standing = self.shutter.standing(checkpoint, ref)
        self._new_desk(None)
        # Suspended handlers run again now, and those after them must not find the desk of before.
        self._bind()
        image = self.shutter.read(ref, standing)
        restored = self.shutter.expecting(standing)
        self.steps.restored(epoch, checkpoint, image)
        revived = revive(image, self.desk, self.classes, restored)
        self.instance = revived.instance
        quicken(self.instance)
        self.origin = image.header["lineage"]
        self.shutter.adopt(checkpoint, ref, restored)
        snapshot = LocalSnapshot(floor, checkpoint, checkpoint)
        self.endpoint = self.endpoint_kind(
            self.me, self.setup.run, epoch, snapshot, channels=revived.channels
        )
        self.unresolved = revived.unresolved
        self.peers.members = {self.me.name: self.me}
        for peer in (*self.endpoint.outgoing, *self.endpoint.incoming):
            self.peers.members[peer.name] = peer
        self.peers.new_epoch(epoch)
        self.liaison.new_epoch()
        self.checkpoint = checkpoint
        self.phase = "restored"
        if self.handlers_run == 0:
            self._show_counts()

    def _show_counts(self) -> None:
        """The recorder takes the counts of the cut; until `go` it keeps what the rollback undoes."""
        self.flight.rest(self.desk.handled, self.desk.handlers, self.handlers_run)

    # -- the loop --------------------------------------------------------------------------

    def run(self) -> str:
        """Handles messages until the end; returns why it ended."""
        self._bind()
        try:
            self.liaison.dial()
            while self.ended is None:
                self.guarded_step(self._patience())
        finally:
            self._unbind()
            self.desk.close()
        return self.ended

    def _bind(self) -> None:
        """Module functions of this thread (`cutline.me`) mean the desk that is there now."""
        self._unbind()
        self._unbind = bound_port(self.desk, thread_only=True)

    def guarded_step(self, wait: float) -> None:
        """One round; what raises in it breaks this participant, which says so, and is no error here."""
        try:
            self.step(wait)
        except (Exception, StepLost) as error:
            if self.phase == "broken":
                raise
            self.phase = "broken"
            failures.report_broken(self, error)

    def _patience(self) -> float:
        """Seconds that may pass without an event before something of our own is due."""
        if self._has_work():
            return FLUSH_AFTER if self.outbox.stalled else 0.0
        wait = self._until_due() if self.phase == "running" else 1.0
        if self.liaison.retry_at is not None:
            wait = min(wait, self.liaison.retry_at - self.now())
        if self.liaison.waiting:
            wait = min(wait, self.liaison.ask_again_at - self.now())
        return max(0.0, wait)

    def _until_due(self) -> float:
        """At most 1; what of it is due, the next step does."""
        wait, now = 1.0, self.now()
        timer = self.desk.next_timer
        if timer is not None and not self.tainted:
            # Nor does a timer fire while the outbox holds messages up.
            wait = min(wait, max(timer - self.clock(), FLUSH_AFTER if self.outbox.stalled else 0.0))
        if self.peers.acks:
            wait = min(wait, self.peers.ack_at - now)
        if self.peers.retries:
            wait = min(wait, min(self.peers.retries.values()) - now)
        if self.shutter.ahead.at is not None and not self.tainted:
            wait = min(wait, self.shutter.ahead.at - now)
        return wait

    def _has_work(self) -> bool:
        if self.phase != "running" or self.tainted or self.endpoint is None:
            return False
        return self.endpoint.head is not None or self.endpoint.due

    def step(self, wait: float) -> None:
        """One round: events, then what is due at the boundary, then messages, then what is to be sent."""
        self._take_events(wait)
        endpoint = self.endpoint
        self._retry_links()
        if endpoint is None or self.ended is not None:
            return
        if endpoint.due and self.phase == "running":
            self._perform(endpoint.handle(AtBoundary()))
        if self.phase == "running" and not self.tainted:
            if self.shutter.ahead.at is not None and self.now() >= self.shutter.ahead.at:
                self.shutter.copy_ahead()
            self.at_boundary()
            self._work(endpoint)
        if self.phase == "running":
            idle = endpoint.head is None and self.queue.empty()
            if idle or self.now() - self.last_flush >= FLUSH_AFTER:
                self.last_flush = self.now()
                self.peers.set_budgets(endpoint)
                self.feed(_FLUSH)
                self.peers.send_acks()

    def _take_events(self, wait: float) -> None:
        event = self.next_event(wait)
        while event is not NOTHING:
            self._take(event)
            if self.ended is not None:
                return
            event = self.next_event()

    def _take(self, event: Any) -> None:
        if isinstance(event, PacketIn):
            self._packet(event)
        elif isinstance(event, LinkUp):
            if event.key == COORDINATOR:
                self.liaison.up(event)
            else:
                self._perform(self.peers.up(event, self._live_endpoint()))
        elif isinstance(event, LinkDown):
            if event.link is self.liaison.link:
                self.liaison.down()
            else:
                self._perform(self.peers.down(event, self._live_endpoint()))
        elif isinstance(event, LinkRefused):
            if event.key == COORDINATOR:
                self.liaison.down(event.reason)
            else:
                gone = self.peers.refused(event)
                if gone is not None:
                    self.liaison.say("trouble", peer=list(gone), reason=event.reason)
        elif isinstance(event, Persisted):
            self.shutter.persisted(event)
        elif not isinstance(event, Drained):
            self.other_event(event)

    def other_event(self, event: Any) -> None:
        """Events that only a special participant (the driver's) has."""
        raise AssertionError(f"{self.me.name}: an event nobody expects: {event!r}")

    def other_order(self, doc: dict[str, Any]) -> None:
        """Packets of the coordinator that only a special participant expects."""
        raise AssertionError(f"{self.me.name}: the coordinator said {doc['kind']!r}, which nobody expects")

    def halted(self, doc: dict[str, Any]) -> None:
        """The system halted: nothing is handled any more."""

    def reconnected(self) -> None:
        """A coordinator answered, and was told again what it may not have heard."""

    def at_boundary(self) -> None:
        """What a special participant does between two messages, after captures."""

    def resumed(self, doc: dict[str, Any]) -> None:
        """Data flows again after a restore."""

    def settled(self, checkpoint: int, committed: bool) -> None:
        """A checkpoint that was captured here is decided."""

    def captured(self, checkpoint: int) -> None:
        """The state was captured for a checkpoint."""

    def ask_birth(self, spawn: Spawn) -> None:
        """Somebody is to be born."""
        self.liaison.ask_birth(spawn)

    def spawn_answered(self, spawn: Spawn, error: bytes | None) -> None:
        """Somebody was born, or will never be."""

    def _retry_links(self) -> None:
        self.liaison.tick()
        if self.phase == "running" and self.peers.retries:
            assert self.endpoint is not None
            due = self.peers.due_retries()
            for peer in self.endpoint.pending_dials():
                if peer in due:
                    self.dial(peer)

    def _live_endpoint(self) -> Endpoint | None:
        # Between roll_back and resume nothing may travel; links are told at resume.
        return self.endpoint if self.phase == "running" else None

    def _packet(self, event: PacketIn) -> None:
        if event.link is self.liaison.link:
            self.liaison.packet(event.payload)
        elif self.endpoint is not None:
            self.feed(unpack(event.payload))
        else:
            self.early.append(event)

    # -- messages --------------------------------------------------------------------------

    def _work(self, endpoint: Endpoint) -> None:
        """Handles messages of the oldest frame until something else wants attention."""
        if self.desk.leaving:
            self.departing.work()
            return
        channel = endpoint.head
        try:
            held = self.outbox.holds_up(endpoint, self.now())
        except Overloaded as error:
            failures.report_overload(self, error)
            return
        if not held and (channel is None or self.now() >= self.timers_at):
            # Between messages too: a mailbox that never empties must not hold up a timeout.
            self.timers_at = self.now() + FLUSH_AFTER
            self._fire_timers()
        if channel is None or self.tainted or held:
            return
        frame = channel.frames[0]
        if self.open_frame is not frame:
            self.open_frame = frame
            self.open_messages = read_frame(frame.body, channel.processed + 1 - frame.first)
        handle_run(self, channel, frame.last, self.open_messages, once=self.outbox.overflowing)
        if channel.processed == frame.last:
            endpoint.consumed()

    def fail(self, failure: HandlerRaised) -> None:
        """User code raised where nobody hears it, and no message can be retried."""
        failures.report(self, failure, self.me, 0)

    def _fire_timers(self) -> None:
        try:
            if self.desk.fire_timers() and self.desk.out:
                self._release()
        except HandlerRaised as failure:
            self.fail(failure)

    def go(self) -> None:
        """Data flows: from birth on, or again after everybody was restored."""
        assert self.endpoint is not None
        self.phase = "running"
        self._show_counts()
        for peer in list(self.peers.links):
            if self.peers.link(peer) is not None:
                self.feed(LinkOpened(peer))
        for peer in self.endpoint.pending_dials():
            self.dial(peer)
        for spawn in list(self.endpoint.spawns.values()):
            self.ask_birth(spawn)
        for name in list(self.unresolved):
            self.liaison.resolve(name)
        if self.desk.out:
            self._release()
        early, self.early = self.early, []
        for event in early:
            self._packet(event)

    def dial(self, peer: Member) -> None:
        """Connects to a peer, after asking where it is if need be."""
        if not self.peers.dial(peer):
            self.liaison.resolve(peer.name)

    # -- protocol --------------------------------------------------------------------------

    def feed(self, event: EndpointEvent) -> None:
        """One event for the endpoint, its actions performed."""
        assert self.endpoint is not None
        actions = self.endpoint.handle(event)
        if actions:
            self._perform(actions)

    def _perform(self, actions: list[EndpointAction]) -> None:
        for action in actions:
            if isinstance(action, SendFrame):
                link = self.peers.link(action.peer)
                if link is not None:
                    stamp = self._stamp(action.peer)
                    link.send(pack_frame(stamp, action.marks, action.committed, action.frame))
            elif isinstance(action, SendAck):
                self.peers.acks[action.peer] = pack_ack(self._stamp(action.peer), action.positions)
            elif isinstance(action, SendMarker):
                link = self.peers.link(action.peer)
                if link is not None:
                    link.send_control(pack_marker(self._stamp(action.peer), action.marks, action.committed))
            elif isinstance(action, Dial):
                self.dial(action.peer)
            elif isinstance(action, Capture):
                self.shutter.capture(action)
            elif isinstance(action, Report):
                self.liaison.report(action)
            elif isinstance(action, Complain):
                self.liaison.say("complained", checkpoint=action.checkpoint, reason=action.reason)
            elif isinstance(action, Settle):
                self.shutter.settle(action)
            elif isinstance(action, AskBirth):
                self.ask_birth(action.spawn)
            elif isinstance(action, Heed) and not self.tainted:
                self.liaison.heed(action.word)
            elif isinstance(action, Undelivered):
                self.undeliverable(action.peer.name, action.bodies, left_error(action.peer.name))
            elif isinstance(action, Depart):
                self.departing.depart(action)

    def _stamp(self, peer: Member) -> Stamp:
        assert self.endpoint is not None
        return Stamp(self.setup.run, self.endpoint.epoch, self.me, peer)
