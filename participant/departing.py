"""A participant that leaves: what is done and said from `cutline.leave()` to its departure.

Nothing is handled any more. Who asks is answered with `ParticipantLeft`, what is told is a dead letter, and
suspended handlers end with that error for whoever waits for them. Frames are still taken and acked, so that
two that leave never wait for each other; the coordinator gives the name to nobody any more and has the peers
ask anew, so that what still comes is only what was under way. When nothing is left the endpoint departs
(`cutline.barrier`), the coordinator sees to the rest, and the process is told to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cutline.barrier import Member
from cutline.barrier.actions import Depart
from cutline.barrier.channel import Incoming
from cutline.barrier.events import Leave
from cutline.barrier.wire import claims_to_doc
from cutline.errors import OutsideHandler, ParticipantLeft

from .handle import own_port
from .messages import ASK, CHASE, TELL, decode_frame, encode_answer, pack_error

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ("Departing", "leave", "left_error")


@runtime_checkable
class _Leaver(Protocol):
    def leave(self) -> None:
        """This participant leaves."""
        ...


def leave() -> None:
    """The participant whose handler runs leaves the system when the handler returns (or awaits).

    What the handler sent is sent, and its answer is given. Nothing is handled afterwards: asks are answered
    with `ParticipantLeft`, tells are dead letters, its suspended handlers end. When all that it sent has
    arrived and every checkpoint that it takes part in is decided, its process ends, and its name may be used
    again. A recovery to a checkpoint before that brings it back; it then leaves again.

    Raises:
        OutsideHandler: no handler runs in this thread.
    """
    port = own_port()
    if not isinstance(port, _Leaver):
        raise OutsideHandler(
            "cutline.leave() is for handlers: the participant whose handler runs leaves. In the program: "
            "system.stop_participant(handle)"
        )
    port.leave()


def left_error(name: str) -> bytes:
    """What whoever asks one that has left is answered."""
    error = ParticipantLeft(
        f"participant {name!r} has left and handles nothing more; spawn another one", participant=name
    )
    return pack_error(error, participant=name)


class Departing:
    """The end of one participant; `work` is done at each boundary once its desk says that it leaves."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.unhandled = 0
        self.told: dict[Member, None] = {}
        self.error = left_error(runner.me.name)

    def work(self) -> None:
        """Refuses one frame, or has the endpoint depart if there is none."""
        runner = self.runner
        endpoint = runner.endpoint
        assert endpoint is not None
        runner.desk.end_all(self.error)
        if runner.desk.out:
            runner.release(runner.desk.out)
        self.tell_peers()
        channel = endpoint.head
        if channel is not None:
            self._refuse(channel)
        elif not endpoint.leaving and not runner.is_waiting:
            runner.feed(Leave())

    def tell_peers(self, again: bool = False) -> None:
        """Says who is not to send any more; those that have been told are left out, unless it is `again`."""
        endpoint = self.runner.endpoint
        assert endpoint is not None
        peers = [peer for peer in {**endpoint.incoming, **endpoint.outgoing} if peer != self.runner.me]
        fresh = [peer for peer in peers if again or peer not in self.told]
        if fresh or again:
            self.told.update(dict.fromkeys(fresh))
            self.runner.liaison.say("leaving", peers=[list(peer) for peer in fresh])

    def _refuse(self, channel: Incoming) -> None:
        runner = self.runner
        desk, frame = runner.desk, channel.frames[0]
        first = channel.processed + 1
        messages = decode_frame(frame.body)[first - frame.first :]
        for sequence, (kind, number, detail, _packed) in enumerate(messages, first):
            if kind in (ASK, CHASE):
                desk.out.append((channel.peer, encode_answer(number, False, self.error)))
            elif kind == TELL:
                self.unhandled += 1
                desk.dead_letters.append([*channel.peer, sequence, kind, str(detail)])
        desk.handled += len(messages)
        runner.handled_total += len(messages)
        channel.processed = frame.last
        assert runner.endpoint is not None
        runner.endpoint.consumed()
        if desk.out:
            runner.release(desk.out)

    def depart(self, action: Depart) -> None:
        """The endpoint has nothing left to do."""
        claims = claims_to_doc(action.channels)
        self.runner.liaison.say("departed", claims=claims, unhandled=self.unhandled)


def peers_of(doc: dict[str, Any]) -> list[Member]:
    """The members that a packet names."""
    return [Member(*peer) for peer in doc["peers"]]
