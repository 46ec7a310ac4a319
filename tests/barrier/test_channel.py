"""The sender's end of a channel, and one end against the other."""

from __future__ import annotations

import pytest

from cutline.barrier import ChannelBroken, Incoming, Mark, Outgoing, OutPart, Positions
from cutline.barrier.channel import FRAME_BYTES, FRAME_MESSAGES, TRANSMIT_BYTES, WINDOW
from cutline.barrier.messages import Frame, chain

from .ends import A, B, frames, ranges, sender

# -- the sender: frames ----------------------------------------------------------------------------


def test_a_new_sender_has_sent_nothing() -> None:
    end = Outgoing(B)
    assert (end.sent, end.released, end.received, end.transmitted) == (0, 0, 0, 0)
    assert (end.limit, end.window, end.budget, end.linked) == (WINDOW, WINDOW, TRANSMIT_BYTES, False)
    assert (end.digest, end.released_digest, end.backlog_bytes, end.peer) == (0, 0, 0, B)


def test_messages_get_numbers_when_a_frame_is_cut() -> None:
    end = Outgoing(B)
    end.push([b"a", b"bc"])
    assert end.sent == 0 and not end.frames
    end.cut()
    assert end.sent == 2
    assert list(end.frames) == [Frame(1, 2, b"abc", chain(0, 2, b"abc"))]


def test_frames_continue_numbers_and_digest() -> None:
    first, second = frames(2, 3)
    assert (second.first, second.last) == (3, 5)
    assert second.digest == chain(first.digest, 5, b"mmm")


def test_a_cut_of_nothing_makes_no_frame() -> None:
    end = Outgoing(B)
    end.cut()
    assert not end.frames and end.sent == 0 and end.digest == 0


def test_a_cut_leaves_nothing_pending() -> None:
    end = Outgoing(B)
    end.push([b"a"])
    end.cut()
    end.cut()
    assert ranges(end.frames) == [(1, 1)] and end.pending == [] and end.pending_bytes == 0


def test_a_frame_is_full_at_its_bytes() -> None:
    end = Outgoing(B)
    end.push([bytes(FRAME_BYTES - 1), b"x", b"y"])
    end.cut()
    assert ranges(end.frames) == [(1, 2), (3, 3)]


def test_every_frame_is_filled_to_its_bytes() -> None:
    half = bytes(FRAME_BYTES // 2)
    end = Outgoing(B)
    end.push([half] * 5)
    end.cut()
    assert ranges(end.frames) == [(1, 2), (3, 4), (5, 5)]


def test_a_message_larger_than_a_frame_travels_alone() -> None:
    end = Outgoing(B)
    end.push([bytes(FRAME_BYTES + 1), bytes(FRAME_BYTES), b"z"])
    end.cut()
    assert ranges(end.frames) == [(1, 1), (2, 2), (3, 3)]


def test_a_frame_is_full_at_its_messages() -> None:
    full = FRAME_MESSAGES
    assert ranges(frames(full + 1)) == [(1, full), (full + 1, full + 1)]


@pytest.mark.parametrize(("window", "most"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (100, 75)])
def test_a_frame_leaves_a_quarter_of_the_window(window: int, most: int) -> None:
    end = sender(window + 1, window=window)
    assert end.frames[0].last == most


def test_backlog_counts_what_is_pending_and_what_is_in_frames() -> None:
    end = Outgoing(B)
    end.push([b"abc", b"de"])
    assert end.backlog_bytes == 5
    end.cut()
    assert end.backlog_bytes == 5 and end.frame_bytes == 5
    end.push([b"f"])
    assert end.backlog_bytes == 6
    end.acked(Positions(2, 2, WINDOW))
    assert end.backlog_bytes == 1


# -- the sender: when a frame is cut and travels ---------------------------------------------------


def test_flush_cuts_when_everything_has_travelled() -> None:
    end = sender(1)
    end.transmit()
    end.push([b"x"])
    end.flush()
    assert ranges(end.frames) == [(1, 1), (2, 2)]


def test_flush_waits_while_a_frame_waits() -> None:
    end = sender(1)
    end.push([b"x"])
    end.flush()
    assert ranges(end.frames) == [(1, 1)] and end.pending == [b"x"]


def test_flush_cuts_a_full_frame_though_another_waits() -> None:
    end = sender(1)
    end.push([bytes(FRAME_BYTES - 1)])
    end.flush()
    assert len(end.frames) == 1
    end.push([b"x"])
    end.flush()
    assert ranges(end.frames) == [(1, 1), (2, 3)]


def test_a_frame_travels_once_per_link() -> None:
    end = sender(2, 3)
    assert ranges(end.transmit()) == [(1, 2), (3, 5)]
    assert end.transmitted == 5
    assert end.transmit() == []


def test_only_what_has_not_travelled_travels() -> None:
    end = sender(2)
    end.transmit()
    end.push([b"x"])
    end.cut()
    assert ranges(end.transmit()) == [(3, 3)]


def test_nothing_travels_without_a_link() -> None:
    end = sender(1)
    end.link_lost()
    assert end.transmit() == [] and end.transmitted == 0


def test_only_whole_frames_within_the_limit_travel() -> None:
    end = sender(2, 2, 2)
    end.limit = 4
    assert ranges(end.transmit()) == [(1, 2), (3, 4)]
    end.limit = 5
    assert end.transmit() == []
    end.limit = 6
    assert ranges(end.transmit()) == [(5, 6)]


def test_the_budget_bounds_what_travels_at_once() -> None:
    end = sender(2, 2, 2)
    end.budget = 4
    assert ranges(end.transmit()) == [(1, 2), (3, 4)]
    assert ranges(end.transmit()) == [(5, 6)]


def test_one_frame_travels_however_small_the_budget() -> None:
    end = sender(2, 2)
    end.budget = 1
    assert ranges(end.transmit()) == [(1, 2)]


def test_nothing_travels_without_budget() -> None:
    end = sender(2)
    end.budget = 0
    assert end.transmit() == [] and end.transmitted == 0


def test_a_new_link_starts_after_what_was_received() -> None:
    end = sender(1, 1, 1)
    end.transmit()
    end.acked(Positions(1, 0, WINDOW))
    end.link_lost()
    end.link_opened()
    assert ranges(end.transmit()) == [(2, 2), (3, 3)]


# -- the sender: acks ------------------------------------------------------------------------------


def test_received_stops_retransmission_and_keeps_the_frame() -> None:
    end = sender(1, 1)
    end.acked(Positions(1, 0, WINDOW))
    assert (end.received, end.released, end.transmitted) == (1, 0, 1)
    assert ranges(end.frames) == [(1, 1), (2, 2)]
    assert ranges(end.transmit()) == [(2, 2)]


def test_released_lets_the_sender_forget() -> None:
    end = sender(2, 1)
    digest = end.frames[0].digest
    end.acked(Positions(2, 2, WINDOW))
    assert (end.released, end.released_digest, end.frame_bytes) == (2, digest, 1)
    assert ranges(end.frames) == [(3, 3)]


def test_released_inside_a_frame_keeps_it() -> None:
    end = sender(2)
    end.acked(Positions(2, 1, WINDOW))
    assert end.released == 0 and ranges(end.frames) == [(1, 2)]


def test_an_older_ack_changes_nothing() -> None:
    end = sender(1, 1)
    end.transmit()
    end.acked(Positions(2, 2, WINDOW + 9))
    end.acked(Positions(1, 1, WINDOW))
    assert (end.received, end.released, end.transmitted, end.limit) == (2, 2, 2, WINDOW + 9)


def test_an_ack_behind_what_travelled_sends_nothing_again() -> None:
    end = sender(1, 1)
    end.transmit()
    end.acked(Positions(1, 1, WINDOW))
    assert end.transmitted == 2 and end.transmit() == []


def test_the_limit_is_absolute() -> None:
    end = sender(1)
    end.acked(Positions(0, 0, WINDOW + 5))
    end.acked(Positions(0, 0, WINDOW + 5))
    assert end.limit == WINDOW + 5


def test_an_ack_of_what_was_never_sent_breaks_the_channel() -> None:
    end = sender(2)
    end.acked(Positions(2, 0, WINDOW))
    with pytest.raises(ChannelBroken, match="B has received 3 of a channel that sent 2"):
        end.acked(Positions(3, 0, WINDOW))


# -- the sender: captures --------------------------------------------------------------------------


def test_a_capture_cuts_what_is_pending() -> None:
    end = Outgoing(B)
    end.push([b"a"])
    part = end.captured(4, True)
    end.push([b"b"])
    end.cut()
    assert ranges(end.frames) == [(1, 1), (2, 2)]
    assert part.last == 1 and ranges(part.frames) == [(1, 1)]
    assert end.marks == {4: Mark(4, 1, True)}


def test_a_capture_holds_what_was_not_released() -> None:
    end = sender(1, 1, 1)
    digest = end.frames[0].digest
    end.acked(Positions(2, 1, WINDOW))
    assert end.captured(4, False) == OutPart(3, 1, digest, tuple(end.frames))


def test_a_channel_opened_after_a_capture_had_sent_nothing() -> None:
    assert Outgoing(B, [(3, True), (4, False)]).marks == {3: Mark(3, 0, True), 4: Mark(4, 0, False)}


def test_a_decided_mark_is_forgotten() -> None:
    end = Outgoing(B, [(3, True), (4, False)])
    end.decided(3)
    end.decided(3)
    assert list(end.marks) == [4]


def test_a_restored_sender_sends_what_its_image_holds() -> None:
    before = sender(1, 2, 1)
    before.acked(Positions(1, 1, WINDOW))
    part = before.captured(4, True)
    end = Outgoing.restored(B, part, window=8)
    assert (end.sent, end.released, end.received, end.transmitted, end.limit) == (4, 1, 1, 1, 1)
    assert (end.digest, end.released_digest) == (before.digest, before.released_digest)
    assert (end.frame_bytes, end.marks, end.linked) == (3, {}, False)
    end.link_opened()
    # What it holds may have been sent on top of a full window: the receiver says how much it takes.
    assert end.transmit() == []
    end.acked(Positions(1, 1, 3))
    assert ranges(end.transmit()) == [(2, 3)]
    end.acked(Positions(3, 3, 8))
    assert ranges(end.transmit()) == [(4, 4)]
    end.push([b"n"])
    end.cut()
    before.push([b"n"])
    before.cut()
    assert end.frames[-1] == before.frames[-1]


def test_a_restored_sender_that_nobody_has_heard_has_a_window() -> None:
    """Its receiver is not in the cut, and has nothing to acknowledge."""
    part = sender(1, 2, 1).captured(4, True)
    end = Outgoing.restored(B, part, window=3)
    end.link_opened()
    assert (end.limit, ranges(end.transmit())) == (3, [(1, 1), (2, 3)])


def test_recoveries_one_after_the_other_fill_no_mailbox_beyond_its_window() -> None:
    """The receiver handles nothing between them."""
    there, here = Outgoing(B, window=4), Incoming(A, window=4)
    there.push([b"m"] * 20)
    there.cut()
    for _ in range(5):
        there.link_opened()
        there.acked(here.positions(True))
        for frame in there.transmit():
            here.arrived(frame)
        here_part, there_part = here.captured(1), there.captured(1, True)
        there, here = Outgoing.restored(B, there_part, 4), Incoming.restored(A, here_part, 4)
        assert here.received <= here.processed + here.window


def test_a_restored_sender_needs_frames_without_a_gap() -> None:
    first, second = frames(1, 1)
    with pytest.raises(ChannelBroken, match="frame 2 follows 0"):
        Outgoing.restored(B, OutPart(2, 0, 0, (second,)))
    with pytest.raises(ChannelBroken, match="ends at 1, its mark is 2"):
        Outgoing.restored(B, OutPart(2, 0, 0, (first,)))


# -- both ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 13, 64])
@pytest.mark.parametrize("burst", [1, 2, 7, 100])
def test_the_two_ends_never_wait_for_each_other(window: int, burst: int) -> None:
    out, into = sender(window=window), Incoming(A, window=window)
    for _ in range(40):
        out.push([b"m"] * burst)
        rounds = 0
        while out.pending or out.transmitted < out.sent or into.frames:
            rounds += 1
            assert rounds < 400, f"stuck at {out.transmitted} of {out.sent}, limit {out.limit}"
            out.flush()
            for frame in out.transmit():
                into.arrived(frame)
            now = into.positions(True)
            if now.limit - into.acked.limit >= window // 4 or now.received != into.acked.received:
                into.acked = now
                out.acked(now)
            if into.frames:
                into.consumed()
            assert into.received <= into.processed + window
    assert into.processed == out.sent == 40 * burst
