"""The receiver's end of a channel."""

from __future__ import annotations

import pytest

from cutline.barrier import ChannelBroken, Frame, Incoming, InPart, Mark, Positions
from cutline.barrier.channel import EARLY_FRAMES, FRAME_MESSAGES, WINDOW

from .ends import A, frames, ranges, receiver

# -- the receiver: order ---------------------------------------------------------------------------


def test_a_new_receiver_has_received_nothing() -> None:
    end = Incoming(A)
    assert (end.received, end.processed, end.released, end.digest) == (0, 0, 0, 0)
    assert end.positions(True) == Positions(0, 0, WINDOW)


def test_frames_in_order_lengthen_the_channel() -> None:
    end = receiver(2, 3)
    assert (end.received, end.queued_bytes, end.processed) == (5, 5, 0)
    assert ranges(end.frames) == [(1, 2), (3, 5)]
    assert end.digest == end.frames[1].digest


def test_a_double_is_dropped() -> None:
    end = receiver(2)
    assert not end.arrived(frames(2)[0])
    assert end.received == 2 and len(end.frames) == 1 and end.early == {}


def test_an_early_frame_waits_for_the_one_before() -> None:
    first, second, third, fourth = frames(1, 1, 1, 1)
    end = Incoming(A)
    assert not end.arrived(third)
    assert not end.arrived(second)
    assert end.received == 0 and not end.frames
    assert end.arrived(first)
    assert end.received == 3 and end.early == {}
    assert end.arrived(fourth)
    assert ranges(end.frames) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_an_early_frame_waits_for_each_gap() -> None:
    first, second, third, fourth = frames(1, 1, 1, 1)
    end = Incoming(A)
    for frame in (fourth, second):
        end.arrived(frame)
    assert end.arrived(first)
    assert end.received == 2 and list(end.early) == [4]
    assert end.arrived(third)
    assert end.received == 4


def test_the_reorder_buffer_is_bounded() -> None:
    many = frames(*[1] * (EARLY_FRAMES + 3))
    end = Incoming(A)
    for frame in many[1:]:
        end.arrived(frame)
    assert len(end.early) == EARLY_FRAMES
    end.arrived(many[0])
    assert end.received == EARLY_FRAMES + 1


def test_an_early_frame_of_no_length_breaks_the_channel() -> None:
    end = Incoming(A)
    end.arrived(Frame(2, 1, b"", 0)._replace(first=2, last=1))
    end.arrived(frames(1, 1)[1]._replace(first=2, last=2))
    end.early[2] = Frame(2, 1, b"", 0)
    with pytest.raises(ChannelBroken, match="frame 2..1 after 1"):
        end.arrived(frames(1)[0])


def test_a_frame_that_overlaps_breaks_the_channel() -> None:
    end = receiver(2)
    with pytest.raises(ChannelBroken, match="from A: frame 2..3 after 2"):
        end.arrived(Frame(2, 3, b"mm", 0))


@pytest.mark.parametrize("change", [{"body": b"n"}, {"digest": 1}])
def test_a_frame_of_another_digest_breaks_the_channel(change: dict[str, object]) -> None:
    with pytest.raises(ChannelBroken, match="digests differ after message 1"):
        Incoming(A).arrived(frames(1)[0]._replace(**change))  # type: ignore[arg-type]


def test_consumed_is_processed_to_the_end() -> None:
    end = receiver(2, 3)
    end.processed = 2
    digest = end.frames[0].digest
    end.consumed()
    assert (end.processed, end.taken_last, end.taken_digest, end.queued_bytes) == (2, 2, digest, 3)
    assert ranges(end.frames) == [(3, 5)]


# -- the receiver: what it releases ----------------------------------------------------------------


def test_what_was_received_is_released() -> None:
    assert receiver(2, 3).released == 5


def test_after_a_capture_nothing_more_is_released() -> None:
    end = receiver(2)
    end.captured(4)
    end.arrived(frames(2, 1)[1])
    assert (end.received, end.released) == (3, 2)


def test_the_mark_ends_the_withholding() -> None:
    end = receiver(2)
    end.captured(4)
    end.arrived(frames(2, 1)[1])
    end.learn([Mark(4, 3, False)])
    assert end.released == 3


def test_the_fate_ends_the_withholding() -> None:
    end = receiver(2)
    end.captured(4)
    end.arrived(frames(2, 1)[1])
    end.decided(4)
    assert end.released == 3


def test_a_known_mark_withholds_nothing() -> None:
    end = receiver(2)
    end.learn([Mark(4, 2, False)])
    end.captured(4)
    end.arrived(frames(2, 1)[1])
    assert end.released == 3


def test_the_oldest_of_several_captures_withholds() -> None:
    first, second, third = frames(1, 1, 1)
    end = Incoming(A)
    end.arrived(first)
    end.captured(4)
    end.arrived(second)
    end.captured(5)
    end.arrived(third)
    assert end.released == 1
    end.decided(4)
    assert end.released == 2
    end.learn([Mark(5, 2, False)])
    assert end.released == 3


def test_a_mark_of_another_checkpoint_does_not_end_the_withholding() -> None:
    end = receiver(1)
    end.captured(4)
    end.arrived(frames(1, 1)[1])
    end.learn([Mark(5, 2, False)])
    end.decided(5)
    assert end.released == 1


def test_a_channel_opened_after_a_capture_releases_nothing() -> None:
    end = Incoming(A, [4])
    end.arrived(frames(1)[0])
    assert (end.received, end.released) == (1, 0)
    end.learn([Mark(4, 1, False)])
    assert end.released == 1


def test_a_sender_has_one_position_for_a_checkpoint() -> None:
    end = receiver(2)
    end.learn([Mark(4, 1, False), Mark(5, 2, False)])
    end.learn([Mark(4, 1, True)])
    with pytest.raises(ChannelBroken, match="A names two positions, 1 and 2, for checkpoint 4"):
        end.learn([Mark(4, 2, False)])


# -- the receiver: captures ------------------------------------------------------------------------


def test_a_capture_without_a_mark_holds_the_mailbox() -> None:
    end = receiver(2, 3)
    assert end.captured(4) == InPart(0, 5, end.digest, tuple(end.frames))
    assert end.held == {4: 5}


def test_a_capture_with_a_mark_holds_the_mailbox_up_to_it() -> None:
    end = receiver(2, 1, 3)
    end.learn([Mark(4, 3, False)])
    part = end.captured(4)
    assert (part.processed, part.upto, part.digest) == (0, 3, end.frames[1].digest)
    assert ranges(part.frames) == [(1, 2), (3, 3)]
    assert end.held == {}


def test_a_capture_at_the_mark_holds_nothing() -> None:
    end = receiver(2, 3)
    digest = end.frames[0].digest
    end.consumed()
    end.learn([Mark(4, 2, False)])
    assert end.captured(4) == InPart(2, 2, digest, ())


def test_a_capture_with_a_mark_of_nothing() -> None:
    end = receiver(2)
    end.learn([Mark(4, 0, False)])
    assert end.captured(4) == InPart(0, 0, 0, ())


def test_a_capture_with_a_mark_beyond_what_came() -> None:
    end = receiver(2)
    end.learn([Mark(4, 9, False)])
    assert end.captured(4) == InPart(0, 2, end.digest, tuple(end.frames))


def test_a_capture_inside_a_frame_holds_the_frame() -> None:
    end = receiver(3)
    end.processed = 1
    assert end.captured(4) == InPart(1, 3, end.digest, tuple(end.frames))
    end.learn([Mark(5, 3, False)])
    assert end.captured(5) == InPart(1, 3, end.digest, tuple(end.frames))


def test_the_reorder_buffer_is_not_held() -> None:
    first, _, third = frames(1, 1, 1)
    end = Incoming(A)
    end.arrived(first)
    end.arrived(third)
    assert ranges(end.captured(4).frames) == [(1, 1)]
    assert end.held == {4: 1}


def test_a_capture_beyond_the_mark_breaks_the_channel() -> None:
    end = receiver(2)
    end.learn([Mark(4, 1, False)])
    end.processed = 1
    end.captured(4)
    end.processed = 2
    with pytest.raises(ChannelBroken, match="message 2 from A was handled before the capture of"):
        end.captured(4)


def test_a_decided_checkpoint_leaves_no_trace() -> None:
    end = receiver(1)
    end.learn([Mark(4, 1, False)])
    end.captured(5)
    for checkpoint in (4, 5, 6):
        end.decided(checkpoint)
    assert end.marks == {} and end.held == {}


def test_a_restored_receiver_holds_what_its_image_holds() -> None:
    before = receiver(2, 3, 1)
    before.consumed()
    before.processed = 3
    part = before.captured(4)
    end = Incoming.restored(A, part, window=10)
    assert (end.processed, end.received, end.digest, end.window) == (3, 6, before.digest, 10)
    assert (end.frames, end.queued_bytes, end.taken_last) == (before.frames, 4, 2)
    assert end.positions(True) == Positions(6, 6, 13)
    assert end.held == {} and end.marks == {}
    end.consumed()
    assert (end.taken_last, end.taken_digest) == (5, part.frames[0].digest)
    assert end.arrived(frames(2, 3, 1, 1)[3])


def test_a_restored_receiver_can_be_captured_again() -> None:
    part = receiver(2, 3).captured(4)
    assert Incoming.restored(A, part).captured(5) == part
    empty = InPart(5, 5, 77, ())
    end = Incoming.restored(A, empty)
    end.learn([Mark(5, 5, False)])
    assert end.captured(5) == empty


# -- the receiver: credit --------------------------------------------------------------------------


def test_credit_counts_from_what_was_processed() -> None:
    end = receiver(3)
    end.window = 10
    end.processed = 2
    assert end.positions(True) == Positions(3, 3, 12)


def test_credit_never_falls() -> None:
    end = receiver(1)
    end.acked = Positions(0, 0, WINDOW + 99)
    assert end.positions(True).limit == WINDOW + 99
    assert end.positions(False).limit == WINDOW + 99


def test_without_room_the_limit_stays() -> None:
    end = receiver(1)
    end.acked = Positions(1, 1, 7)
    assert end.positions(False).limit == 7


def test_without_room_and_nothing_queued_one_frame_may_come() -> None:
    end = receiver(1)
    end.acked = Positions(1, 1, 1)
    end.consumed()
    assert end.positions(False).limit == 1 + FRAME_MESSAGES
    end.window = 8
    assert end.positions(False).limit == 9


def test_without_room_and_something_queued_nothing_is_granted() -> None:
    end = receiver(1, 1)
    end.acked = Positions(-1, -1, -1)
    end.consumed()
    assert end.positions(False).limit == 2
