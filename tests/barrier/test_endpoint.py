"""A participant's automaton: messages, acks, links, and whom it listens to."""

from __future__ import annotations

from typing import Any

import pytest

from cutline.barrier import (
    ChannelTable,
    Endpoint,
    Frame,
    InPart,
    LocalSnapshot,
    Mark,
    Member,
    Open,
    OutPart,
    Positions,
    Stamp,
)
from cutline.barrier.actions import Capture, Dial, EndpointAction, SendAck, SendFrame, SendMarker
from cutline.barrier.channel import WINDOW
from cutline.barrier.events import (
    AckArrived,
    AtBoundary,
    EndpointEvent,
    Flush,
    FrameArrived,
    Initiated,
    LinkLost,
    LinkOpened,
    MarkerArrived,
    Released,
)
from cutline.barrier.messages import chain

A, B, C = Member("A", 1), Member("B", 2), Member("C", 3)


def endpoint(me: Member = A, **options: Any) -> Endpoint:
    return Endpoint(me, "run", 1, LocalSnapshot(0, 0, None), **options)


def linked(me: Member = A, *peers: Member, **options: Any) -> Endpoint:
    """An endpoint with links, and a message for each peer not yet cut into a frame."""
    end = endpoint(me, **options)
    for peer in peers:
        end.handle(Released(peer, [b"m"]))
        end.handle(LinkOpened(peer))
    return end


def stamp(sender: Member = B, receiver: Member = A, epoch: int = 1, run: str = "run") -> Stamp:
    return Stamp(run, epoch, sender, receiver)


def frames(*sizes: int) -> list[Frame]:
    made, last, digest = [], 0, 0
    for size in sizes:
        first, last = last + 1, last + size
        digest = chain(digest, last, b"m" * size)
        made.append(Frame(first, last, b"m" * size, digest))
    return made


def arrive(end: Endpoint, *found: Frame, sender: Member = B) -> list[EndpointAction]:
    actions = []
    for frame in found:
        actions += end.handle(FrameArrived(stamp(sender, end.me), (), 0, frame))
    return actions


# -- the automaton -------------------------------------------------------------------------------------


def test_every_event_has_its_step() -> None:
    assert set(endpoint()._steps) == set(EndpointEvent.__args__)


def test_an_endpoint_that_raised_is_dead() -> None:
    end = endpoint()
    with pytest.raises(AssertionError, match="digests differ"):
        arrive(end, Frame(1, 1, b"m", 7))
    assert end.dead
    with pytest.raises(AssertionError, match="the endpoint of A failed before"):
        end.handle(Flush())


def test_an_unknown_event_is_an_error() -> None:
    end = endpoint()
    with pytest.raises(KeyError):
        end.handle(object())  # type: ignore[arg-type]
    assert end.dead


# -- sending -------------------------------------------------------------------------------------------


def test_the_first_message_to_a_peer_dials() -> None:
    end = endpoint()
    assert end.handle(Released(B, [b"m"])) == [Dial(B)]
    assert end.pending_dials() == [B] and end.outbox_bytes == 1


def test_a_message_over_a_link_does_not_dial() -> None:
    end = linked(A, B)
    assert end.handle(Released(B, [b"n"])) == []
    assert end.pending_dials() == []


def test_a_channel_over_a_link_that_the_peer_dialed_is_linked() -> None:
    end = endpoint()
    end.handle(LinkOpened(B))
    assert end.handle(Released(B, [b"m"])) == []
    (action,) = end.handle(Flush())
    assert isinstance(action, SendFrame) and action.peer == B


def test_a_link_lost_before_the_first_message_is_lost() -> None:
    end = endpoint()
    end.handle(LinkOpened(B))
    end.handle(LinkLost(B))
    end.handle(LinkLost(C))
    assert end.handle(Released(B, [b"m"])) == [Dial(B)]


def test_flush_sends_one_frame_of_all_that_waits() -> None:
    end = linked(A, B)
    end.handle(Released(B, [b"n", b"o"]))
    assert end.handle(Flush()) == [SendFrame(B, (), 0, Frame(1, 3, b"mno", chain(0, 3, b"mno")))]
    assert end.handle(Flush()) == []


def test_messages_to_several_peers_go_their_ways() -> None:
    end = linked(A, B, C)
    assert [(action.peer, action.frame.last) for action in end.handle(Flush())] == [  # type: ignore[union-attr]
        (B, 1),
        (C, 1),
    ]


def test_what_had_to_wait_travels_at_a_later_flush() -> None:
    end = linked(A, B, window=1)
    end.handle(Released(B, [b"n"]))
    assert len(end.handle(Flush())) == 1
    assert end.handle(Flush()) == []
    end.handle(AckArrived(stamp(), Positions(1, 1, 2)))
    (action,) = end.handle(Flush())
    assert isinstance(action, SendFrame) and action.frame.body == b"n"


def test_what_the_budget_held_back_travels_once_it_is_raised() -> None:
    end = linked(A, B)
    end.outgoing[B].budget = 0
    assert end.handle(Flush()) == []
    end.outgoing[B].budget = 1
    assert len(end.handle(Flush())) == 1


def test_what_is_pending_is_cut_once_the_frames_have_left() -> None:
    end = linked(A, B)
    end.handle(Flush())
    end.handle(LinkLost(B))
    end.handle(LinkOpened(B))
    end.handle(Released(B, [b"n"]))
    assert [action.frame.last for action in end.handle(Flush())] == [1]  # type: ignore[union-attr]
    assert [action.frame.last for action in end.handle(Flush())] == [2]  # type: ignore[union-attr]
    assert end.handle(Flush()) == []


def test_only_peers_that_something_waits_for_are_dialed() -> None:
    end = endpoint()
    end.handle(Released(B, [b"m"]))
    end.handle(Released(A, [b"m"]))
    end.handle(Released(C, []))
    assert end.pending_dials() == [B]
    end.handle(Flush())
    assert end.pending_dials() == [B]
    end.handle(LinkOpened(B))
    assert end.pending_dials() == []
    end.handle(LinkLost(B))
    assert end.pending_dials() == [B]


def test_the_outbox_counts_all_channels() -> None:
    end = linked(A, B, C)
    end.handle(Released(C, [b"nn"]))
    assert end.outbox_bytes == 4
    end.handle(Flush())
    end.handle(AckArrived(stamp(C), Positions(2, 2, WINDOW)))
    assert end.outbox_bytes == 1


# -- to oneself ----------------------------------------------------------------------------------------


def test_a_message_to_oneself_is_in_the_mailbox_at_once() -> None:
    end = endpoint()
    assert end.handle(Released(A, [b"m", b"n"])) == []
    assert end.head is not None and end.head.peer == A
    assert end.head.frames[0].body == b"mn" and end.queued_bytes == 2
    assert end.outbox_bytes == 0 and end.handle(Flush()) == []


def test_messages_to_oneself_are_handled_in_order() -> None:
    end = endpoint()
    for body in (b"m", b"n"):
        end.handle(Released(A, [body]))
    found = []
    while end.head is not None:
        found.append(end.head.frames[0].body)
        end.consumed()
    assert found == [b"m", b"n"] and end.queued_bytes == 0
    assert end.handle(Flush()) == []


def test_a_channel_to_oneself_is_recorded_once() -> None:
    end = endpoint()
    end.handle(Released(A, [b"m"]))
    end.handle(Initiated(1, (Open(1, False),), 1, 0))
    (action,) = end.handle(AtBoundary())
    assert isinstance(action, Capture)
    assert [frame.body for frame in action.channels.incoming[A].frames] == [b"m"]
    assert action.channels.outgoing[A].frames == ()
    assert end.incoming[A].held == {}


# -- receiving -----------------------------------------------------------------------------------------


def test_frames_are_handled_in_the_order_of_their_coming() -> None:
    end = endpoint()
    assert end.head is None
    arrive(end, *frames(1), sender=B)
    arrive(end, *frames(1, 1), sender=C)
    arrive(end, frames(1, 1)[1], sender=B)
    order: list[Member] = []
    while end.head is not None:
        order.append(end.head.peer)
        end.consumed()
    assert order == [B, C, C, B]


def test_a_frame_that_fills_a_gap_brings_all_behind_it() -> None:
    end = endpoint()
    first, second, third = frames(1, 2, 3)
    arrive(end, second, third)
    assert end.head is None and end.queued_bytes == 0
    arrive(end, first)
    assert len(end.order) == 3 and end.queued_bytes == 6


def test_the_mailbox_counts_the_frames_that_came_and_no_others() -> None:
    end = endpoint()
    first, second, third = frames(5, 1, 2)
    arrive(end, first, third, second)
    assert end.queued_bytes == 8


def test_consumed_frees_the_mailbox() -> None:
    end = endpoint()
    arrive(end, *frames(1, 2))
    end.consumed()
    assert end.queued_bytes == 2 and end.incoming[B].processed == 1


@pytest.mark.parametrize(
    "wrong",
    [stamp(run="other"), stamp(epoch=0), stamp(epoch=2), stamp(receiver=C), stamp(receiver=Member("A", 9))],
)
def test_what_is_not_of_this_incarnation_is_fenced(wrong: Stamp) -> None:
    end = linked(A, B)
    end.handle(Flush())
    marks = (Mark(1, 0, False),)
    assert end.handle(FrameArrived(wrong, marks, 3, frames(1)[0])) == []
    assert end.handle(MarkerArrived(wrong, marks, 3)) == []
    assert end.handle(AckArrived(wrong, Positions(1, 1, 9))) == []
    assert end.fenced == 3
    assert end.incoming == {} and not end.due and end.snapshot.committed == 0
    assert end.outgoing[B].received == 0
    assert end.handle(Flush()) == []


def test_what_is_of_this_incarnation_is_not_fenced() -> None:
    end = endpoint()
    arrive(end, *frames(1))
    assert end.fenced == 0


def test_another_incarnation_of_the_sender_is_another_channel() -> None:
    end = endpoint()
    arrive(end, *frames(1), sender=B)
    arrive(end, *frames(1), sender=Member("B", 9))
    assert list(end.incoming) == [B, Member("B", 9)]


def test_an_ack_of_an_unknown_channel_is_nothing() -> None:
    assert endpoint().handle(AckArrived(stamp(), Positions(1, 1, 9))) == []


# -- acks ----------------------------------------------------------------------------------------------


def test_a_frame_is_acked_once() -> None:
    end = endpoint()
    arrive(end, *frames(2))
    assert end.handle(Flush()) == [SendAck(B, Positions(2, 2, WINDOW))]
    assert end.handle(Flush()) == []


def test_a_small_window_is_no_reason_to_ack_for_ever() -> None:
    end = endpoint(window=2)
    arrive(end, *frames(1))
    assert end.handle(Flush()) == [SendAck(B, Positions(1, 1, 2))]
    assert end.handle(Flush()) == []


def test_a_double_is_acked_again() -> None:
    end = endpoint()
    arrive(end, *frames(2))
    end.handle(Flush())
    arrive(end, *frames(2))
    assert end.handle(Flush()) == [SendAck(B, Positions(2, 2, WINDOW))]


def test_a_marker_of_a_known_channel_is_not_acked_again() -> None:
    end = endpoint()
    arrive(end, *frames(2))
    end.handle(Flush())
    end.handle(MarkerArrived(stamp(), (), 0))
    assert end.handle(Flush()) == []


@pytest.mark.parametrize(("processed", "acked"), [(1, False), (2, True)])
def test_credit_is_told_by_the_quarter_window(processed: int, acked: bool) -> None:
    end = endpoint(window=8)
    arrive(end, *frames(1, 1, 1))
    end.handle(Flush())
    for _ in range(processed):
        end.consumed()
    expected = [SendAck(B, Positions(3, 3, 8 + processed))] if acked else []
    assert end.handle(Flush()) == expected


def test_released_alone_is_told() -> None:
    end = endpoint()
    end.handle(Initiated(1, (Open(1, False),), 1, 0))
    end.handle(AtBoundary())
    arrive(end, *frames(1))
    assert end.handle(Flush()) == [SendAck(B, Positions(1, 0, WINDOW))]
    end.handle(MarkerArrived(stamp(), (Mark(1, 1, False),), 0))
    assert end.handle(Flush()) == [SendAck(B, Positions(1, 1, WINDOW))]


def test_received_alone_is_told() -> None:
    end = endpoint()
    end.handle(Initiated(1, (Open(1, False),), 1, 0))
    end.handle(AtBoundary())
    arrive(end, frames(1)[0])
    end.handle(Flush())
    arrive(end, frames(1, 1)[1])
    assert end.handle(Flush()) == [SendAck(B, Positions(2, 0, WINDOW))]


def test_a_full_mailbox_grants_nothing_until_there_is_room() -> None:
    end = endpoint(window=8, mailbox_bytes=3)
    arrive(end, *frames(1, 1, 1))
    assert end.handle(Flush()) == [SendAck(B, Positions(3, 3, 3))]
    end.queued_bytes += 1
    end.consumed()
    assert end.handle(Flush()) == []
    end.queued_bytes -= 1
    assert end.handle(Flush()) == [SendAck(B, Positions(3, 3, 9))]
    assert end.handle(Flush()) == []


def test_the_mailbox_is_full_at_its_bytes() -> None:
    end = endpoint(window=8, mailbox_bytes=3)
    arrive(end, *frames(2))
    assert end.handle(Flush()) == [SendAck(B, Positions(2, 2, 8))]


def test_a_new_link_tells_positions_again() -> None:
    end = endpoint()
    arrive(end, *frames(2))
    end.handle(Flush())
    end.handle(LinkOpened(B))
    assert end.handle(Flush()) == [SendAck(B, Positions(2, 2, WINDOW))]


def test_a_new_link_takes_back_no_credit() -> None:
    end = endpoint(window=8, mailbox_bytes=3)
    arrive(end, *frames(2))
    end.handle(Flush())
    arrive(end, frames(2, 2)[1])
    end.handle(LinkOpened(B))
    assert end.handle(Flush()) == [SendAck(B, Positions(4, 4, 8))]
    arrive(end, *frames(2))
    assert end.handle(Flush()) == [SendAck(B, Positions(4, 4, 8))]


# -- links ---------------------------------------------------------------------------------------------


def test_a_new_link_sends_again_what_was_not_received() -> None:
    end = linked(A, B)
    end.handle(Flush())
    end.handle(LinkLost(B))
    assert end.handle(Flush()) == []
    assert end.handle(LinkOpened(B)) == []
    (action,) = end.handle(Flush())
    assert isinstance(action, SendFrame) and action.frame.last == 1


def test_a_link_that_replaces_another_sends_again() -> None:
    end = linked(A, B)
    end.handle(Flush())
    end.handle(LinkOpened(B))
    (action,) = end.handle(Flush())
    assert isinstance(action, SendFrame) and action.frame.last == 1


def test_while_there_is_no_link_messages_wait() -> None:
    end = linked(A, B)
    end.handle(LinkLost(B))
    assert end.handle(Released(B, [b"n"])) == [Dial(B)]
    assert end.handle(Flush()) == []
    end.handle(LinkOpened(B))
    assert len(end.handle(Flush())) == 1


def test_a_new_link_tells_the_marks_of_undecided_checkpoints() -> None:
    end = linked(A, B)
    end.handle(Initiated(1, (Open(1, True),), 1, 0))
    end.handle(AtBoundary())
    assert end.handle(LinkOpened(B)) == [SendMarker(B, (Mark(1, 1, True),), 0)]


# -- restored ------------------------------------------------------------------------------------------


def test_a_restored_endpoint_goes_on_where_the_cut_was() -> None:
    first, second = frames(1, 1)
    table = ChannelTable(
        {B: InPart(0, 2, second.digest, (first, second)), C: InPart(3, 3, 9, ())},
        {B: OutPart(2, 1, first.digest, (second,)), C: OutPart(1, 1, first.digest, ())},
    )
    end = endpoint(channels=table, window=10)
    assert (len(end.order), end.queued_bytes, end.outbox_bytes) == (2, 2, 1)
    assert end.pending_dials() == [B]
    assert end.outgoing[B].window == end.incoming[B].window == 10
    assert end.handle(Flush()) == [SendAck(B, Positions(2, 2, 10)), SendAck(C, Positions(3, 3, 13))]
    end.handle(LinkOpened(B))
    assert SendFrame(B, (), 0, second) not in end.handle(Flush())
    end.handle(AckArrived(stamp(), Positions(1, 1, 2)))
    assert end.handle(Flush()) == [SendFrame(B, (), 0, second)]


def test_frames_and_markers_tell_the_newest_committed() -> None:
    end = Endpoint(A, "run", 1, LocalSnapshot(7, 6, None))
    end.handle(Released(B, [b"m"]))
    end.handle(LinkOpened(B))
    (action,) = end.handle(Flush())
    assert isinstance(action, SendFrame) and action.committed == 6
