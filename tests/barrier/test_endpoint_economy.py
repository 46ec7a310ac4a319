"""A participant's automaton looks only at channels that have news: its work does not grow with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cutline.barrier import (
    ChannelTable,
    Endpoint,
    Incoming,
    LocalSnapshot,
    Mark,
    Member,
    Open,
    Outgoing,
    OutPart,
    Positions,
    Stamp,
)
from cutline.barrier.events import (
    AckArrived,
    Flush,
    FrameArrived,
    Initiated,
    LinkLost,
    LinkOpened,
    MarkerArrived,
    Released,
)

from .ends import frames

A, B, C = Member("A", 1), Member("B", 2), Member("C", 3)


class Looked:
    """Which channels a flush looked at: whom it might send to, and whom it might ack."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.senders: list[Member] = []
        self.receivers: list[Member] = []
        self._count(patch, Outgoing, "transmit", self.senders)
        self._count(patch, Incoming, "positions", self.receivers)

    @staticmethod
    def _count(patch: pytest.MonkeyPatch, kind: type, name: str, found: list[Member]) -> None:
        real: Callable[..., Any] = getattr(kind, name)

        def counted(self: Any, *arguments: Any) -> Any:
            found.append(self.peer)
            return real(self, *arguments)

        patch.setattr(kind, name, counted)

    def at_flush(self, end: Endpoint) -> tuple[list[Member], list[Member]]:
        self.senders.clear()
        self.receivers.clear()
        end.handle(Flush())
        return list(self.senders), list(self.receivers)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(monkeypatch)


def stamp(sender: Member) -> Stamp:
    return Stamp("run", 1, sender, A)


def busy() -> Endpoint:
    """Has sent to B and C and received of them; everything was flushed."""
    end = Endpoint(A, "run", 1, LocalSnapshot(0, 0, None))
    for peer in (B, C):
        end.handle(LinkOpened(peer))
        end.handle(Released(peer, [b"m"]))
        end.handle(FrameArrived(stamp(peer), (), 0, frames(1)[0]))
    end.handle(Flush())
    return end


def test_without_news_a_flush_looks_at_nothing(looked: Looked) -> None:
    assert looked.at_flush(busy()) == ([], [])


def test_a_flush_looks_at_the_sender_that_has_messages(looked: Looked) -> None:
    end = busy()
    end.handle(Released(C, [b"n"]))
    assert looked.at_flush(end) == ([C], [])
    assert looked.at_flush(end) == ([], [])


def test_a_flush_looks_again_at_what_the_budget_held_back(looked: Looked) -> None:
    end = busy()
    end.outgoing[B].budget = 0
    end.handle(Released(B, [b"n"]))
    assert looked.at_flush(end) == looked.at_flush(end) == ([B], [])


def test_an_ack_is_no_news_to_a_sender_that_has_nothing_to_send(looked: Looked) -> None:
    end = busy()
    end.handle(AckArrived(stamp(B), Positions(1, 1, 9)))
    assert looked.at_flush(end) == ([], [])


def test_an_ack_lets_a_sender_go_on_that_waits_for_the_limit(looked: Looked) -> None:
    end = busy()
    end.outgoing[B].limit = 1
    end.handle(Released(B, [b"n"]))
    assert looked.at_flush(end) == looked.at_flush(end) == ([B], [])
    end.handle(AckArrived(stamp(B), Positions(1, 1, 2)))
    assert looked.at_flush(end) == ([B], [])
    assert looked.at_flush(end) == ([], [])


def test_a_restored_sender_is_looked_at_once_it_is_linked(looked: Looked) -> None:
    part = OutPart(2, 0, 0, tuple(frames(2)))
    end = Endpoint(A, "run", 1, LocalSnapshot(0, 0, None), channels=ChannelTable({}, {B: part}))
    assert looked.at_flush(end) == ([], [])
    end.handle(LinkOpened(B))
    assert looked.at_flush(end) == ([B], [])
    assert looked.at_flush(end) == ([], [])


def test_a_lost_link_with_nothing_to_send_is_not_looked_at_until_it_is_back(looked: Looked) -> None:
    end = busy()
    end.handle(LinkLost(B))
    end.handle(Flush())
    assert looked.at_flush(end) == ([], [])
    end.handle(LinkOpened(B))
    assert looked.at_flush(end) == ([B], [B])


def test_a_flush_looks_at_the_receiver_that_received(looked: Looked) -> None:
    end = busy()
    end.handle(FrameArrived(stamp(B), (), 0, frames(1, 1)[1]))
    assert looked.at_flush(end) == ([], [B])
    assert looked.at_flush(end) == ([], [])


def test_credit_too_small_to_tell_is_not_looked_at_again(looked: Looked) -> None:
    end = busy()
    end.consumed()
    assert looked.at_flush(end) == ([], [B])
    assert looked.at_flush(end) == ([], [])


def test_a_full_mailbox_is_looked_at_until_there_is_room(looked: Looked) -> None:
    end = busy()
    end.mailbox_bytes = 1
    end.consumed()
    assert looked.at_flush(end) == looked.at_flush(end) == ([], [B])
    end.consumed()
    looked.at_flush(end)
    assert looked.at_flush(end) == ([], [])


def committed(end: Endpoint, checkpoint: int) -> None:
    """The fate of a checkpoint that A had no part in becomes known, and was flushed."""
    end.handle(MarkerArrived(stamp(B), (), checkpoint))
    end.handle(Flush())


@pytest.mark.parametrize(("known", "told"), [(0, 0), (5, 0), (5, 4), (5, 5)])
def test_a_packet_with_no_newer_commit_is_news_of_its_own_channel_alone(
    known: int, told: int, looked: Looked
) -> None:
    end = busy()
    committed(end, known)
    end.handle(MarkerArrived(stamp(B), (), told))
    assert looked.at_flush(end) == ([], [B])


def test_a_packet_with_a_newer_commit_is_news_of_all_channels(looked: Looked) -> None:
    end = busy()
    end.handle(MarkerArrived(stamp(B), (Mark(1, 1, False),), 5))
    assert looked.at_flush(end) == ([], [B, C])


@pytest.mark.parametrize("told", [0, 4, 5])
def test_an_initiate_with_no_newer_commit_is_no_news_of_channels(told: int, looked: Looked) -> None:
    end = busy()
    committed(end, 5)
    end.handle(Initiated(1, (Open(6, False),), 6, told))
    assert looked.at_flush(end) == ([], [])
