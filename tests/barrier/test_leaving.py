"""A participant's automaton when it leaves, and when somebody else has left."""

from __future__ import annotations

import pytest

from cutline.barrier import (
    ChannelBroken,
    ChannelTable,
    Endpoint,
    InPart,
    LocalSnapshot,
    Mark,
    Member,
    Open,
    OutPart,
    Positions,
    Spawn,
    Stamp,
    endpoint,
)
from cutline.barrier.actions import AskBirth, Capture, Depart, Heed, SendAck, SendFrame, Undelivered
from cutline.barrier.events import (
    AckArrived,
    AtBoundary,
    CoordinatorOpened,
    Flush,
    FrameArrived,
    Gone,
    Initiated,
    Leave,
    LinkOpened,
    MarkerArrived,
    Released,
    Settled,
    SpawnAnswered,
    Spawned,
    Told,
)

from .ends import frames

A, B, C = Member("A", 1), Member("B", 2), Member("C", 3)
TO_A = Stamp("run", 1, B, A)


def end() -> Endpoint:
    return Endpoint(A, "run", 1, LocalSnapshot(0, 0, None))


def handle_all(a: Endpoint) -> None:
    while a.head is not None:
        a.head.processed = a.head.frames[0].last
        a.consumed()


def departures(a: Endpoint) -> list[Depart]:
    return [action for action in a.handle(Flush()) if isinstance(action, Depart)]


# -- leaving -------------------------------------------------------------------------------------------


def test_who_has_nothing_under_way_departs_at_once_and_says_it_once() -> None:
    a = end()
    assert departures(a) == []
    a.handle(Leave())
    assert departures(a) == [Depart(ChannelTable({}, {}))]
    assert departures(a) == []
    assert a.handle(CoordinatorOpened()) == [Depart(ChannelTable({}, {}))]


def test_what_is_in_the_mailbox_is_handled_first() -> None:
    a = end()
    a.handle(FrameArrived(TO_A, (), 0, frames(2)[0]))
    a.handle(Leave())
    assert departures(a) == []
    handle_all(a)
    (depart,) = departures(a)
    assert depart.channels == ChannelTable({B: InPart(2, 2, frames(2)[0].digest, ())}, {})


def test_what_was_sent_is_released_first() -> None:
    a = end()
    a.handle(LinkOpened(B))
    a.handle(Released(B, [b"m"]))
    a.handle(Leave())
    assert departures(a) == []
    stamp = Stamp("run", 1, B, A)
    a.handle(AckArrived(stamp, Positions(1, 0, 9)))
    assert departures(a) == []
    a.handle(AckArrived(stamp, Positions(1, 1, 9)))
    (depart,) = departures(a)
    assert depart.channels == ChannelTable({}, {B: OutPart(1, 1, a.outgoing[B].digest, ())})


def test_what_is_not_in_a_frame_yet_is_sent_first() -> None:
    a = end()
    a.handle(Leave())
    a.handle(Released(B, [b"m"]))
    assert departures(a) == []


def test_a_checkpoint_that_is_open_is_decided_first() -> None:
    a = end()
    a.handle(Leave())
    a.handle(Initiated(1, (Open(1, False),), 1, 0))
    assert departures(a) == []
    a.handle(AtBoundary())
    assert departures(a) == []
    a.handle(Settled(1, 1, True))
    assert len(departures(a)) == 1


def test_a_spawn_is_answered_and_a_word_heeded_first() -> None:
    a = end()
    assert a.handle(Spawned(Spawn(1, "C", None))) == [AskBirth(Spawn(1, "C", None))]
    a.handle(Leave())
    assert departures(a) == []
    a.handle(Told(1, (), 0, 0, "word"))
    a.handle(SpawnAnswered(1))
    assert departures(a) == []
    assert a.handle(AtBoundary()) == [Heed("word")]
    assert len(departures(a)) == 1


def test_the_channel_to_oneself_is_nobody_elses_business() -> None:
    a = end()
    a.handle(Released(A, [b"m"]))
    handle_all(a)
    a.handle(Leave())
    assert departures(a) == [Depart(ChannelTable({}, {}))]


def departed() -> Endpoint:
    a = end()
    a.handle(LinkOpened(B))
    a.handle(FrameArrived(TO_A, (), 0, frames(2)[0]))
    handle_all(a)
    a.handle(Leave())
    assert len(departures(a)) == 1
    return a


def test_who_has_departed_takes_no_frame_and_acks_none() -> None:
    a = departed()
    before = a.incoming[B].received
    assert a.handle(FrameArrived(TO_A, (), 0, frames(2, 1)[1])) == []
    assert a.incoming[B].received == before and a.head is None
    assert not [action for action in a.handle(Flush()) if isinstance(action, SendAck)]


def test_who_has_departed_sends_nothing() -> None:
    with pytest.raises(AssertionError, match="has departed"):
        departed().handle(Released(B, [b"m"]))


def test_who_has_departed_captures_what_it_may_still_be_in_the_roster_of_and_always_in_full() -> None:
    a = departed()
    a.snapshot.base = 4
    a.handle(Initiated(1, (Open(5, False),), 5, 4))
    (capture,) = [action for action in a.handle(AtBoundary()) if isinstance(action, Capture)]
    assert capture.checkpoint == 5 and capture.against is None
    assert capture.channels.incoming[B].processed == 2


# -- somebody else has left ----------------------------------------------------------------------------


def sender(*sizes: int) -> Endpoint:
    """A with a frame of each size in its outbox for B, transmitted."""
    a = end()
    a.handle(LinkOpened(B))
    for size in sizes:
        a.handle(Released(B, [b"m"] * size))
        assert [type(action) for action in a.handle(Flush())] == [SendFrame]
    return a


def test_what_was_not_taken_comes_back() -> None:
    a = sender(2, 3)
    a.handle(Released(B, [b"p", b"q"]))
    assert a.handle(Gone(B, 2)) == [Undelivered(B, [b"mmm", b"p", b"q"])]
    assert B not in a.outgoing and a.pending_dials() == [] and a.outbox_bytes == 0
    assert a.handle(Flush()) == []


def test_nothing_comes_back_if_all_was_taken() -> None:
    a = sender(2)
    assert a.handle(Gone(B, 2)) == []
    assert end().handle(Gone(B, 0)) == []


def test_released_counts_although_the_last_ack_was_lost() -> None:
    a = sender(2, 3)
    a.handle(AckArrived(TO_A, Positions(2, 2, 99)))
    assert a.handle(Gone(B, 5)) == []


@pytest.mark.parametrize("last", [1, 3, 9])
def test_who_left_left_between_two_frames_that_were_sent(last: int) -> None:
    a = sender(2, 3)
    a.handle(AckArrived(TO_A, Positions(2, 2, 99)))
    with pytest.raises(ChannelBroken):
        a.handle(Gone(B, last))


def test_what_is_still_sent_there_comes_back_at_once() -> None:
    a = end()
    a.handle(Gone(B, 0))
    assert a.handle(Released(B, [b"m"])) == [Undelivered(B, [b"m"])]
    assert B not in a.outgoing


def test_what_it_had_sent_is_still_handled_and_then_the_channel_ends() -> None:
    a = end()
    for frame in frames(1, 1):
        a.handle(FrameArrived(TO_A, (), 0, frame))
    a.handle(Gone(B, 0))
    for left in (1, 0):
        assert a.head is not None and B in a.incoming
        a.head.processed = a.head.frames[0].last
        a.consumed()
        assert (B in a.incoming) == bool(left)
    assert not [action for action in a.handle(Flush()) if isinstance(action, SendAck)]


def test_a_channel_with_nothing_left_to_handle_ends_at_once() -> None:
    a = end()
    a.handle(FrameArrived(TO_A, (), 0, frames(1)[0]))
    handle_all(a)
    a.handle(Gone(B, 0))
    assert B not in a.incoming


def test_what_comes_late_from_there_is_nothing() -> None:
    a = end()
    a.handle(Gone(B, 0))
    assert a.handle(FrameArrived(TO_A, (), 0, frames(1)[0])) == []
    assert a.handle(MarkerArrived(TO_A, (Mark(1, 0, False),), 0)) == []
    assert a.handle(AckArrived(TO_A, Positions(0, 0, 9))) == []
    assert B not in a.incoming and not a.due and a.fenced == 0


def test_an_incarnation_of_the_same_name_is_somebody_else() -> None:
    a = sender(2)
    a.handle(Gone(B, 2))
    again = Member("B", 7)
    a.handle(LinkOpened(again))
    a.handle(Released(again, [b"m"]))
    (sent,) = [action for action in a.handle(Flush()) if isinstance(action, SendFrame)]
    assert sent.peer == again and sent.frame.first == 1
    a.handle(FrameArrived(Stamp("run", 1, again, A), (), 0, frames(1)[0]))
    assert a.incoming[again].received == 1


def test_the_oldest_of_those_who_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REMEMBERED_GONE", 1)
    a = end()
    a.handle(Gone(B, 0))
    a.handle(Gone(C, 0))
    assert a.handle(Released(C, [b"m"])) == [Undelivered(C, [b"m"])]
    assert not [action for action in a.handle(Released(B, [b"m"])) if isinstance(action, Undelivered)]


def test_who_has_left_is_known_to_be_gone_and_nobody_else() -> None:
    a = end()
    assert not a.is_gone(B)
    a.handle(Gone(B, 0))
    assert a.is_gone(B) and not a.is_gone(C) and not a.is_gone(Member("B", 9))


# -- what is heeded ------------------------------------------------------------------------------------


def test_a_word_waits_for_the_captures_it_comes_after() -> None:
    a = end()
    assert a.handle(Told(1, (Open(1, False),), 1, 0, "word")) == []
    assert a.due
    kinds = [type(action) for action in a.handle(AtBoundary())]
    assert kinds == [Capture, Heed] and not a.due


def test_a_word_of_another_epoch_is_nothing() -> None:
    a = end()
    assert a.handle(Told(2, (Open(1, False),), 1, 0, "word")) == []
    assert not a.due


def test_spawns_are_in_each_capture_until_they_are_answered() -> None:
    a = end()
    spawn = Spawn(4, "C", b"record")
    a.handle(Spawned(spawn))
    a.handle(Initiated(1, (Open(1, False),), 1, 0))
    (capture,) = [action for action in a.handle(AtBoundary()) if isinstance(action, Capture)]
    assert capture.channels.spawns == (spawn,)
    again = Endpoint(A, "run", 2, LocalSnapshot(1, 1, 1), channels=capture.channels)
    assert again.spawns == {4: spawn}
    again.handle(SpawnAnswered(4))
    again.handle(SpawnAnswered(4))
    assert again.spawns == {}
