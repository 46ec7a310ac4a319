"""A participant's automaton: spawns that wait in its outbox, and the coordinator's words on who there is."""

from __future__ import annotations

from cutline.barrier import ChannelTable, Endpoint, LocalSnapshot, Member, Open, Spawn
from cutline.barrier.actions import AskBirth, Capture, EndpointAction, Heed
from cutline.barrier.events import AtBoundary, Initiated, SpawnAnswered, Spawned, Told

A = Member("A", 1)
FIRST, SECOND = Spawn(1, "B", b"record of B"), Spawn(2, "C", b"record of C")


def endpoint(channels: ChannelTable | None = None) -> Endpoint:
    return Endpoint(A, "run", 1, LocalSnapshot(0, 0, None), channels=channels)


def told(word: str, *undecided: int, epoch: int = 1) -> Told:
    opens = tuple(Open(n, False) for n in undecided)
    return Told(epoch, opens, max(undecided, default=0), 0, word)


def cut(end: Endpoint, checkpoint: int) -> ChannelTable:
    end.handle(Initiated(1, (Open(checkpoint, False),), checkpoint, 0))
    (capture,) = [action for action in end.handle(AtBoundary()) if isinstance(action, Capture)]
    return capture.channels


def test_a_spawn_asks_for_a_birth() -> None:
    assert endpoint().handle(Spawned(FIRST)) == [AskBirth(FIRST)]


def test_a_spawn_is_in_every_cut_until_it_is_answered() -> None:
    end = endpoint()
    assert cut(end, 1).spawns == ()
    end.handle(Spawned(FIRST))
    end.handle(Spawned(SECOND))
    assert cut(end, 2).spawns == (FIRST, SECOND)
    assert end.handle(SpawnAnswered(1)) == []
    assert cut(end, 3).spawns == (SECOND,)


def test_a_spawn_that_is_answered_twice_is_answered() -> None:
    end = endpoint()
    end.handle(Spawned(FIRST))
    end.handle(SpawnAnswered(1))
    assert end.handle(SpawnAnswered(1)) == [] and end.spawns == {}


def test_a_restored_endpoint_has_the_spawns_of_its_cut() -> None:
    end = endpoint(ChannelTable({}, {}, (FIRST, SECOND)))
    assert cut(end, 1).spawns == (FIRST, SECOND)


def test_a_word_is_heeded_once_at_the_next_boundary() -> None:
    end = endpoint()
    assert end.handle(told("B is there")) == [] and end.due
    assert end.handle(AtBoundary()) == [Heed("B is there")]
    assert not end.due and end.handle(AtBoundary()) == []


def test_words_are_heeded_in_order() -> None:
    end = endpoint()
    end.handle(told("B is there"))
    end.handle(told("C is there"))
    assert end.handle(AtBoundary()) == [Heed("B is there"), Heed("C is there")]


def test_a_word_is_heeded_after_what_was_undecided_when_it_was_said_is_captured() -> None:
    end = endpoint()
    end.handle(told("B is there", 1, 2))
    found: list[EndpointAction] = end.handle(AtBoundary())
    assert [action.checkpoint for action in found if isinstance(action, Capture)] == [1, 2]
    assert found[-1] == Heed("B is there") and len(found) == 3


def test_a_word_of_another_epoch_is_neither_heeded_nor_captured_for() -> None:
    end = endpoint()
    assert end.handle(told("B is there", 1, epoch=0)) == []
    assert end.handle(told("B is there", 1, epoch=2)) == []
    assert not end.due and end.handle(AtBoundary()) == []
