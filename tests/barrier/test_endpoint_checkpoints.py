"""A participant's automaton: when it captures, what it tells, what it forgets."""

from __future__ import annotations

import pytest

from cutline.barrier import ChannelTable, Endpoint, LocalSnapshot, Mark, Member, Open, Positions, Stamp
from cutline.barrier.actions import Capture, Complain, Report, SendAck, SendFrame, SendMarker, Settle
from cutline.barrier.channel import WINDOW
from cutline.barrier.events import (
    AtBoundary,
    CaptureFailed,
    CoordinatorOpened,
    Durable,
    Flush,
    FrameArrived,
    Initiated,
    LinkOpened,
    MarkerArrived,
    Released,
    Settled,
)

from .ends import frames

A, B, C = Member("A", 1), Member("B", 2), Member("C", 3)
STAMP = Stamp("run", 1, B, A)


def endpoint(snapshot: LocalSnapshot | None = None) -> Endpoint:
    return Endpoint(A, "run", 1, snapshot or LocalSnapshot(0, 0, None))


def linked(*peers: Member) -> Endpoint:
    end = endpoint()
    for peer in peers:
        end.handle(Released(peer, [b"m"]))
        end.handle(LinkOpened(peer))
    return end


def initiated(*undecided: int, newest: int = 0, committed: int = 0, epoch: int = 1) -> Initiated:
    return Initiated(epoch, tuple(Open(n, False) for n in undecided), newest or max(undecided), committed)


def captured(end: Endpoint, *checkpoints: int) -> ChannelTable:
    end.handle(initiated(*checkpoints))
    found = [action for action in end.handle(AtBoundary()) if isinstance(action, Capture)]
    assert [action.checkpoint for action in found] == list(checkpoints)
    return found[-1].channels


def marker(*marks: Mark, committed: int = 0) -> MarkerArrived:
    return MarkerArrived(STAMP, marks, committed)


# -- capturing -----------------------------------------------------------------------------------------


def test_initiate_makes_a_capture_due() -> None:
    end = endpoint()
    assert not end.due
    assert end.handle(initiated(1)) == []
    assert end.due
    assert end.handle(AtBoundary()) == [Capture(1, False, None, ChannelTable({}, {}))]
    assert not end.due


def test_with_nothing_due_a_boundary_is_nothing() -> None:
    end = linked(B)
    assert end.handle(AtBoundary()) == []
    captured(end, 1)
    assert end.handle(AtBoundary()) == []


def test_a_marker_makes_a_capture_due() -> None:
    end = endpoint()
    assert end.handle(marker(Mark(3, 0, True))) == []
    assert end.due
    (action,) = end.handle(AtBoundary())
    assert isinstance(action, Capture) and (action.checkpoint, action.full) == (3, True)


def test_a_frame_s_marks_make_a_capture_due() -> None:
    end = endpoint()
    end.handle(FrameArrived(STAMP, (Mark(3, 0, False),), 0, frames(1)[0]))
    assert end.due


def test_what_is_due_is_captured_in_order() -> None:
    end = endpoint()
    end.handle(marker(Mark(5, 0, False)))
    end.handle(initiated(3, 4))
    assert [action.checkpoint for action in end.handle(AtBoundary())] == [3, 4, 5]  # type: ignore[union-attr]


def test_markers_follow_the_capture_on_open_links() -> None:
    end = linked(B)
    end.handle(Released(C, [b"m"]))
    end.handle(initiated(1))
    capture, *others = end.handle(AtBoundary())
    assert isinstance(capture, Capture)
    assert others == [SendMarker(B, (Mark(1, 1, False),), 0)]


def test_frames_after_a_capture_carry_its_mark() -> None:
    end = linked(B)
    captured(end, 1)
    end.handle(Released(B, [b"n"]))
    first, second = [*end.handle(Flush()), *end.handle(Flush())]
    assert isinstance(first, SendFrame) and isinstance(second, SendFrame)
    assert (first.frame.last, second.frame.last) == (1, 2)
    assert first.marks == second.marks == (Mark(1, 1, False),)


def test_marks_ascend() -> None:
    end = linked(B)
    end.handle(marker(Mark(3, 0, False)))
    end.handle(AtBoundary())
    end.handle(marker(Mark(2, 0, False)))
    actions = end.handle(AtBoundary())
    assert actions[-1] == SendMarker(B, (Mark(2, 1, False), Mark(3, 1, False)), 0)


def test_a_channel_opened_after_the_capture_had_sent_nothing() -> None:
    end = endpoint()
    captured(end, 1)
    end.handle(Released(B, [b"m"]))
    assert end.handle(LinkOpened(B)) == [SendMarker(B, (Mark(1, 0, False),), 0)]
    (action,) = end.handle(Flush())
    assert isinstance(action, SendFrame) and action.marks == (Mark(1, 0, False),)


def test_a_channel_opened_after_the_capture_is_withheld() -> None:
    end = endpoint()
    captured(end, 1)
    end.handle(FrameArrived(STAMP, (), 0, frames(1)[0]))
    assert end.handle(Flush()) == [SendAck(B, Positions(1, 0, WINDOW))]


def test_who_has_sent_nothing_before_the_cut_is_not_in_it() -> None:
    end = endpoint()
    # B was born after 1 was begun, and is heard of before A captures it.
    end.handle(marker(Mark(1, 0, False)))
    assert B in end.incoming
    found = [action for action in end.handle(AtBoundary()) if isinstance(action, Capture)]
    assert B not in found[0].channels.incoming
    # What it sends is after that cut and before the next one.
    end.handle(FrameArrived(STAMP, (Mark(1, 0, False),), 0, frames(1)[0]))
    end.handle(initiated(1, 2))
    second = [action for action in end.handle(AtBoundary()) if isinstance(action, Capture)]
    assert second[0].channels.incoming[B].upto == 1


def test_the_first_message_after_the_mark_is_not_in_the_cut() -> None:
    end = endpoint()
    first, second = frames(1, 1)
    end.handle(FrameArrived(STAMP, (), 0, first))
    end.handle(FrameArrived(STAMP, (Mark(1, 1, False),), 0, second))
    (action,) = end.handle(AtBoundary())
    assert isinstance(action, Capture)
    assert action.channels.incoming[B].frames == (first,)


def test_a_full_capture_has_no_base() -> None:
    end = endpoint(LocalSnapshot(1, 1, 1))
    end.handle(Initiated(1, (Open(2, True), Open(3, False)), 3, 1))
    assert [(a.full, a.against) for a in end.handle(AtBoundary())] == [  # type: ignore[union-attr]
        (True, None),
        (False, 1),
    ]


def test_a_mark_that_comes_after_its_checkpoint_was_forgotten_is_a_complaint() -> None:
    """B aborted 1 and went on without its mark; its marker and the coordinator's word are late."""
    end = linked(C)
    for frame in frames(1, 1):
        end.handle(FrameArrived(STAMP, (), 0, frame))
        end.consumed()
    end.handle(marker(Mark(1, 1, False), Mark(2, 2, False)))
    complaint, capture, marks = end.handle(AtBoundary())
    assert complaint == Complain(1, "message 2 of B was handled already, its mark is 1")
    assert isinstance(capture, Capture) and capture.checkpoint == 2
    assert marks == SendMarker(C, (Mark(2, 1, False),), 0)
    assert not end.due and end.snapshot.is_decided(1)
    assert end.handle(Settled(1, 1, False)) == []


# -- fates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_a_fate_reaches_the_shell_once(committed: bool) -> None:
    end = endpoint()
    captured(end, 1)
    assert end.handle(Settled(1, 1, committed)) == [Settle(1, committed)]
    assert end.handle(Settled(1, 1, committed)) == []


def test_a_fate_of_another_epoch_is_nothing() -> None:
    end = endpoint()
    captured(end, 1)
    assert end.handle(Settled(0, 1, True)) == []
    assert end.handle(initiated(2, epoch=2)) == []
    assert not end.due and not end.snapshot.is_decided(1)


def test_a_fate_ends_marks_and_withholding() -> None:
    end = linked(B)
    captured(end, 1)
    end.handle(FrameArrived(STAMP, (), 0, frames(1)[0]))
    end.handle(Flush())
    end.handle(Settled(1, 1, False))
    assert end.handle(Flush()) == [SendAck(B, Positions(1, 1, WINDOW))]
    assert end.handle(LinkOpened(B)) == []


def test_after_a_fate_nothing_is_reported() -> None:
    end = endpoint()
    captured(end, 1)
    end.handle(Settled(1, 1, False))
    assert end.handle(Durable(1, {}, {})) == []
    assert end.handle(CaptureFailed(1, "no space")) == []
    assert end.handle(CoordinatorOpened()) == []


def test_a_late_marker_of_a_decided_checkpoint_is_nothing() -> None:
    end = endpoint()
    end.handle(Settled(1, 1, False))
    assert end.handle(marker(Mark(1, 0, False))) == []
    assert not end.due and end.incoming[B].marks == {}


def test_committed_travels_with_packets() -> None:
    end = endpoint()
    captured(end, 1)
    assert end.handle(marker(committed=1)) == [Settle(1, True)]
    assert end.snapshot.committed == end.snapshot.base == 1
    assert end.handle(FrameArrived(STAMP, (), 1, frames(1)[0])) == []


def test_what_initiate_no_longer_lists_is_decided() -> None:
    end = endpoint()
    captured(end, 1, 2, 3)
    assert end.handle(initiated(3, newest=4, committed=2)) == [Settle(1, False), Settle(2, True)]
    assert end.snapshot.full == {3: False} and end.snapshot.floor == 2


def test_initiate_tells_what_committed_to_who_had_no_part() -> None:
    end = endpoint(LocalSnapshot.newborn(1, [Open(1, False)]))
    assert end.handle(initiated(2, committed=1)) == []
    assert end.snapshot.committed == 1 and end.snapshot.base is None
    assert end.due


def test_initiate_tells_of_a_commit_that_was_never_heard_of() -> None:
    end = endpoint()
    end.handle(initiated(2, committed=1))
    assert end.snapshot.committed == 1


def test_an_initiate_of_an_older_commit_tells_nothing_new() -> None:
    end = endpoint(LocalSnapshot(3, 3, 3))
    end.handle(initiated(4, committed=1))
    assert end.snapshot.committed == 3


def test_initiate_raises_the_floor_to_all_that_is_decided() -> None:
    end = endpoint()
    end.handle(Initiated(1, (), 4, 0))
    assert end.snapshot.floor == 4
    end.handle(marker(Mark(4, 0, False)))
    assert not end.due


def test_an_older_initiate_takes_nothing_back() -> None:
    end = endpoint()
    captured(end, 1, 2)
    end.handle(initiated(2, newest=2, committed=1))
    assert end.handle(initiated(1, newest=1)) == []
    assert end.snapshot.full == {2: False} and end.snapshot.committed == 1 and not end.due


# -- reports -------------------------------------------------------------------------------------------


def test_prepared_is_reported_when_the_image_is_durable() -> None:
    end = endpoint()
    table = captured(end, 1)
    report = Report(1, table, {"key": "k"}, {"stall": 1})
    assert end.handle(Durable(1, {"key": "k"}, {"stall": 1})) == [report]


def test_an_image_of_no_capture_is_not_reported() -> None:
    end = endpoint()
    assert end.handle(Durable(1, {}, {})) == []
    assert end.handle(CaptureFailed(1, "no space")) == []


def test_a_failed_capture_is_a_complaint() -> None:
    end = endpoint()
    captured(end, 1)
    assert end.handle(CaptureFailed(1, "no space")) == [Complain(1, "no space")]


def test_a_new_coordinator_hears_again_what_it_has_not_decided() -> None:
    end = endpoint()
    table = captured(end, 1, 2, 3)
    assert end.handle(CoordinatorOpened()) == []
    end.handle(CaptureFailed(3, "no space"))
    end.handle(Durable(2, {}, {}))
    end.handle(Durable(1, {}, {}))
    end.handle(Settled(1, 1, True))
    assert end.handle(CoordinatorOpened()) == [Report(2, table, {}, {}), Complain(3, "no space")]


# -- newborns ------------------------------------------------------------------------------------------


def test_a_newborn_has_no_part_in_what_is_undecided() -> None:
    end = endpoint(LocalSnapshot.newborn(1, [Open(1, True)]))
    assert not end.due
    assert end.handle(initiated(1)) == []
    assert end.handle(marker(Mark(1, 3, True))) == []
    assert end.handle(AtBoundary()) == []
    assert end.handle(Settled(1, 1, True)) == []


def test_what_a_newborn_sends_makes_its_receivers_capture() -> None:
    end = endpoint(LocalSnapshot.newborn(1, [Open(1, True)]))
    end.handle(LinkOpened(B))
    end.handle(Released(B, [b"m"]))
    (action,) = end.handle(Flush())
    assert isinstance(action, SendFrame) and action.marks == (Mark(1, 0, True),)


def test_a_newborn_releases_nothing_that_may_belong_to_the_cut() -> None:
    end = endpoint(LocalSnapshot.newborn(1, [Open(1, True)]))
    end.handle(FrameArrived(STAMP, (), 0, frames(1)[0]))
    assert end.handle(Flush()) == [SendAck(B, Positions(1, 0, WINDOW))]
    end.handle(marker(Mark(1, 1, True)))
    assert end.handle(Flush()) == [SendAck(B, Positions(1, 1, WINDOW))]
