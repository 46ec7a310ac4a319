"""Subtle bugs to plant in barrier/, each as a patch: what the random schedules are worth is what they catch.

`PLANTED` maps a name to a function that plants; `UNPROVED` names those whose cuts the check in `cut.py`
refuses, so that with the check switched off as well a wrong cut must be seen by the model's own oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cutline.barrier import channel, commit, cut, recovery
from cutline.barrier.actions import Capture, Report, SendAck, SendFrame
from cutline.barrier.channel import Incoming, Outgoing
from cutline.barrier.commit import GlobalCommit
from cutline.barrier.endpoint import Endpoint
from cutline.barrier.messages import Frame, InPart, Mark, Member, OutPart, Positions, chain
from cutline.barrier.recovery import Recovery
from cutline.barrier.snapshot import LocalSnapshot

from .model import Hosts

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
PLANTED: dict[str, Plant] = {}
UNPROVED: list[str] = []


def plant(name: str, unproved: bool = False) -> Callable[[Plant], Plant]:
    def register(function: Plant) -> Plant:
        PLANTED[name] = function
        if unproved:
            UNPROVED.append(name)
        return function

    return register


def check_off(patch: Patch) -> None:
    """Cuts commit unproved."""
    prove_with(patch, lambda claims, departed: [])


def prove_with(patch: Patch, prove: Callable[[Any, Any], list[str]]) -> None:
    real = GlobalCommit.__init__
    patch.setattr(GlobalCommit, "__init__", lambda self: real(self, prove))


@plant("the whole mailbox is recorded", unproved=True)
def _whole_mailbox(patch: Patch) -> None:
    def captured(self: Incoming, checkpoint: int) -> InPart:
        if checkpoint not in self.marks:
            self.held[checkpoint] = self.received
        return InPart(self.processed, self.received, self.digest, tuple(self.frames))

    patch.setattr(Incoming, "captured", captured)


@plant("released is not withheld", unproved=True)
def _released(patch: Patch) -> None:
    patch.setattr(Incoming, "released", property(lambda self: self.received))


@plant("a channel that opens after the capture does not withhold", unproved=True)
def _late_channel_releases(patch: Patch) -> None:
    def receiver(self: Endpoint, peer: Member) -> Incoming:
        if peer not in self.incoming:
            self.incoming[peer] = Incoming(peer, (), self.window)
        return self.incoming[peer]

    patch.setattr(Endpoint, "_receiver", receiver)


@plant("a newborn releases as usual", unproved=True)
def _newborn_releases(patch: Patch) -> None:
    def receiver(self: Endpoint, peer: Member) -> Incoming:
        if peer not in self.incoming:
            held = [n for n in self.snapshot.captured if n not in self.snapshot.born_into]
            self.incoming[peer] = Incoming(peer, held, self.window)
        return self.incoming[peer]

    patch.setattr(Endpoint, "_receiver", receiver)


@plant("a newborn does not make its receivers capture", unproved=True)
def _newborn_unmarked(patch: Patch) -> None:
    real = Endpoint._marks

    def marks(self: Endpoint, sender: Outgoing) -> tuple[Mark, ...]:
        return tuple(m for m in real(self, sender) if m.checkpoint not in self.snapshot.born_into)

    patch.setattr(Endpoint, "_marks", marks)


@plant("a channel that opens after the capture carries no mark", unproved=True)
def _late_channel_unmarked(patch: Patch) -> None:
    real = Outgoing.__init__
    patch.setattr(
        Outgoing,
        "__init__",
        lambda self, peer, marks=(), window=channel.WINDOW: real(self, peer, (), window),
    )


@plant("only the newest mark travels")
def _newest_mark(patch: Patch) -> None:
    real = Endpoint._marks
    patch.setattr(Endpoint, "_marks", lambda self, sender: real(self, sender)[-1:])


@plant("id n+1 is captured without n", unproved=True)
def _without_n(patch: Patch) -> None:
    real_due, real_marks = LocalSnapshot.due, Endpoint._marks
    patch.setattr(LocalSnapshot, "due", lambda self: real_due(self)[-1:])
    patch.setattr(Endpoint, "_marks", lambda self, sender: real_marks(self, sender)[-1:])


@plant("a frame spans a capture")
def _frame_spans(patch: Patch) -> None:
    def captured(self: Outgoing, checkpoint: int, full: bool) -> OutPart:
        frames = list(self.frames)
        last, digest = self.sent, self.digest
        if self.pending:
            body = b"".join(self.pending)
            first, last = last + 1, last + len(self.pending)
            frames.append(Frame(first, last, body, chain(digest, last, body)))
        self.marks[checkpoint] = Mark(checkpoint, last, full)
        return OutPart(last, self.released, self.released_digest, tuple(frames))

    patch.setattr(Outgoing, "captured", captured)


@plant("what is not yet in a frame is forgotten by the capture", unproved=True)
def _pending_forgotten(patch: Patch) -> None:
    def captured(self: Outgoing, checkpoint: int, full: bool) -> OutPart:
        self.marks[checkpoint] = Mark(checkpoint, self.sent, full)
        return OutPart(self.sent, self.released, self.released_digest, tuple(self.frames))

    patch.setattr(Outgoing, "captured", captured)


@plant("a mark is renewed at retransmission")
def _mark_renewed(patch: Patch) -> None:
    real = Outgoing.link_opened

    def link_opened(self: Outgoing) -> None:
        real(self)
        self.marks = {n: Mark(n, self.sent, mark.full) for n, mark in self.marks.items()}

    patch.setattr(Outgoing, "link_opened", link_opened)


@plant("marks do not travel with frames")
def _frames_unmarked(patch: Patch) -> None:
    real = Endpoint._flush

    def flush(self: Endpoint, event: Any) -> list[Any]:
        return [
            action._replace(marks=()) if isinstance(action, SendFrame) else action
            for action in real(self, event)
        ]

    patch.setattr(Endpoint, "_flush", flush)


@plant("an older epoch is accepted")
def _older_epoch(patch: Patch) -> None:
    patch.setattr(Endpoint, "_fresh", lambda self, stamp: stamp.receiver == self.me)


@plant("the reorder buffer is recorded", unproved=True)
def _reorder_buffer(patch: Patch) -> None:
    real = Incoming.captured

    def captured(self: Incoming, checkpoint: int) -> InPart:
        part = real(self, checkpoint)
        early = tuple(self.early[first] for first in sorted(self.early))
        if not early:
            return part
        return part._replace(upto=early[-1].last, digest=early[-1].digest, frames=part.frames + early)

    patch.setattr(Incoming, "captured", captured)


@plant("the reorder buffer is acknowledged")
def _early_acked(patch: Patch) -> None:
    real = Incoming.positions

    def positions(self: Incoming, room: bool) -> Positions:
        said = real(self, room)
        return said._replace(received=max([said.received, *(f.last for f in self.early.values())]))

    patch.setattr(Incoming, "positions", positions)


@plant("credit is an increment")
def _credit(patch: Patch) -> None:
    real_acks, real_acked = Endpoint._acks, Outgoing.acked

    def acks(self: Endpoint) -> list[Any]:
        before = {peer: max(end.acked.limit, self.window) for peer, end in self.incoming.items()}
        return [
            action._replace(
                positions=action.positions._replace(limit=action.positions.limit - before[action.peer])
            )
            for action in real_acks(self)
            if isinstance(action, SendAck)
        ]

    def acked(self: Outgoing, said: Positions) -> None:
        real_acked(self, said._replace(limit=self.limit + said.limit))

    patch.setattr(Endpoint, "_acks", acks)
    patch.setattr(Outgoing, "acked", acked)


@plant("a link that opens again goes on where the old one stopped")
def _no_retransmission(patch: Patch) -> None:
    def link_opened(self: Outgoing) -> None:
        self.linked = True

    patch.setattr(Outgoing, "link_opened", link_opened)


@plant("an ack is not repeated on a new link")
def _ack_not_repeated(patch: Patch) -> None:
    real = Endpoint._link_opened

    def link_opened(self: Endpoint, event: Any) -> list[Any]:
        before = {peer: end.acked for peer, end in self.incoming.items()}
        actions = real(self, event)
        for peer, said in before.items():
            self.incoming[peer].acked = said
        return actions

    patch.setattr(Endpoint, "_link_opened", link_opened)


@plant("a late marker of a decided id is honoured")
def _late_marker(patch: Patch) -> None:
    def learn(self: LocalSnapshot, opens: Sequence[tuple[int, bool]]) -> None:
        for checkpoint, full in opens:
            self.full.setdefault(checkpoint, full)

    patch.setattr(LocalSnapshot, "learn", learn)
    patch.setattr(Endpoint, "_learn", _learn_all)


def _learn_all(
    self: Endpoint, peer: Member, marks: Sequence[Mark], committed: int
) -> tuple[Incoming, list[Any]]:
    receiver = self._receiver(peer)
    self.snapshot.learn([(mark.checkpoint, mark.full) for mark in marks])
    receiver.learn(marks)
    return receiver, []


@plant("data flows before everybody is restored")
def _data_early(patch: Patch) -> None:
    real = Recovery.handle

    def handle(self: Recovery, event: Any) -> list[Any]:
        actions = real(self, event)
        if isinstance(event, recovery.Begin):
            actions.append(recovery.Resume(event.epoch, event.checkpoint, event.roster))
        return actions

    patch.setattr(Recovery, "handle", handle)


@plant("a confirmation of an older epoch counts")
def _older_confirmation(patch: Patch) -> None:
    real = Recovery.handle

    def handle(self: Recovery, event: Any) -> list[Any]:
        if isinstance(event, recovery.Confirmed):
            event = event._replace(epoch=self.state.epoch)
        return real(self, event)

    patch.setattr(Recovery, "handle", handle)


@plant("prepared before the image is durable")
def _prepared_early(patch: Patch) -> None:
    real = Endpoint._at_boundary

    def at_boundary(self: Endpoint, event: Any) -> list[Any]:
        actions = real(self, event)
        for action in list(actions):
            if isinstance(action, Capture):
                image: dict[str, object] = {"checkpoint": action.checkpoint}
                actions.append(Report(action.checkpoint, action.channels, image, {}))
        return actions

    patch.setattr(Endpoint, "_at_boundary", at_boundary)


@plant("all but one prepared are enough")
def _one_missing(patch: Patch) -> None:
    real = GlobalCommit._prepared

    def prepared(self: GlobalCommit, event: Any, state: Any) -> list[Any]:
        actions = real(self, event, state)
        if not actions and len(getattr(state, "reports", ())) == len(state.roster) - 1 > 0:
            self._open[event.checkpoint] = commit._Writing(state.roster, state.full, ())
            return [commit.WriteManifest(event.checkpoint, state.claims, state.reports, {})]
        return actions

    patch.setattr(GlobalCommit, "_prepared", prepared)


@plant("a fate is announced before its row")
def _announced_early(patch: Patch) -> None:
    real = GlobalCommit.handle

    def handle(self: GlobalCommit, event: Any) -> list[Any]:
        actions = real(self, event)
        for action in list(actions):
            if isinstance(action, commit.Decide):
                actions.append(commit.Announce(action.checkpoint, action.commit, "", ()))
        return actions

    patch.setattr(GlobalCommit, "handle", handle)


@plant("the base of a delta is the newest capture")
def _wrong_base(patch: Patch) -> None:
    real = LocalSnapshot.settled

    def settled(self: LocalSnapshot, checkpoint: int, committed: bool) -> bool:
        known = checkpoint in self.captured
        news = real(self, checkpoint, committed)
        if known:
            self.base = max(self.base or 0, checkpoint)
        return news

    patch.setattr(LocalSnapshot, "settled", settled)


@plant("a capture inside a frame counts the frame as not handled", unproved=True)
def _frame_start(patch: Patch) -> None:
    real = Incoming.captured

    def captured(self: Incoming, checkpoint: int) -> InPart:
        return real(self, checkpoint)._replace(processed=self.taken_last)

    patch.setattr(Incoming, "captured", captured)


@plant("a capture comes one message late", unproved=True)
def _late_capture(patch: Patch) -> None:
    patch.setattr(Hosts, "captures_late", True)


@plant("a channel over a link that the peer dialed is not linked")
def _not_linked(patch: Patch) -> None:
    real = Endpoint._released

    def released(self: Endpoint, event: Any) -> list[Any]:
        fresh = event.peer not in self.outgoing
        actions = real(self, event)
        if fresh:
            self.outgoing[event.peer].linked = False
        return actions

    patch.setattr(Endpoint, "_released", released)


@plant("a frame may need the whole window")
def _whole_window(patch: Patch) -> None:
    real = Outgoing.cut

    def cut_all(self: Outgoing) -> None:
        window, self.window = self.window, self.window * 2
        real(self)
        self.window = window

    patch.setattr(Outgoing, "cut", cut_all)


@plant("the check accepts nothing in flight")
def _strict_check(patch: Patch) -> None:
    real = cut.check

    def strict(claims: Any, departed: Any) -> list[str]:
        flying = [f"{p.upto - p.processed}" for c in claims.values() for p in c.incoming.values()]
        return real(claims, departed) + [found for found in flying if found != "0"]

    prove_with(patch, strict)
