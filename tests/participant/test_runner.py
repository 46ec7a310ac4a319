"""The shell: links that break, coordinators that change, cuts and recoveries, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cutline
from cutline.barrier.events import Flush
from cutline.participant.handle import Handle, bound_port
from cutline.participant.messages import encode_tell
from cutline.participant.runner import Runner

from .town import Town


class Counter:
    """Notes what it hears; passes on what it is told to."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.other: Any = None

    def hear(self, what: Any) -> None:
        self.heard.append(what)

    def pass_on(self, what: Any) -> None:
        self.heard.append(what)
        self.other.hear.tell(what)

    def fail(self) -> None:
        raise ValueError("no")

    def note_me(self, what: Any) -> None:
        cutline.me().hear.tell(what)

    def double(self, x: int) -> int:
        return 2 * x

    async def gather(self, count: int) -> None:
        answers = await asyncio.gather(*[self.other.double.remote(k) for k in range(count)])
        self.heard.append(answers)

    async def nap(self) -> None:
        await asyncio.sleep(5)
        self.heard.append("awake")


class Shy(Counter):
    """Does not load when it is told not to."""

    broken = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        if Shy.broken:
            raise KeyError("not today")
        self.__dict__.update(state)


@pytest.fixture
def town() -> Iterator[Town]:
    """An empty town."""
    made = Town()
    yield made
    made.close()


def heard(runner: Runner) -> list[Any]:
    """What a counter has heard."""
    instance: Any = runner.instance
    return list(instance.heard)


def tell(runner: Runner, target: str, method: str, *args: Any) -> None:
    """Sends from a runner as one of its handlers would."""
    runner.desk.out.append((target, encode_tell(method, list(args))))
    runner._release()


def two(town: Town, kind: type = Counter) -> tuple[Runner, Runner]:
    """Two that know each other."""
    a, b = town.add("a", kind), town.add("b", kind)
    for runner, other in ((a, "b"), (b, "a")):
        instance: Any = runner.instance
        instance.other = Handle(other, "", runner.desk)
    town.start()
    return a, b


def peer_links(runner: Runner) -> list[Any]:
    """All links to peers."""
    return [link for links in runner.peers.links.values() for link in links]


def test_what_a_newborn_hears_before_it_is_born_is_not_lost(town: Town) -> None:
    a, b = town.add("a", Counter), town.add("b", Counter)
    town.start("a")
    tell(a, "b", "hear", 1)
    town.settle()
    assert heard(b) == [] and b.early
    town.start("b")
    tell(a, "b", "hear", 2)
    town.settle()
    assert heard(b) == [1, 2]
    assert not a.endpoint or a.endpoint.outbox_bytes == 0


def test_a_broken_link_loses_and_doubles_nothing(town: Town) -> None:
    a, b = two(town)
    tell(a, "b", "hear", 0)
    town.settle()
    for k in range(1, 6):
        tell(a, "b", "hear", k)
        a.step(0.0)
        for link in peer_links(a):
            link.sever()
        town.settle()
        town.clock.now += 1
        town.settle()
    assert heard(b) == list(range(6))


def test_both_dial_at_once_and_either_link_may_break(town: Town) -> None:
    a, b = two(town)
    tell(a, "b", "hear", 1)
    tell(b, "a", "hear", 2)
    town.settle()
    for which in (0, -1):
        peer_links(a)[which].sever()
        tell(a, "b", "hear", 3)
        tell(b, "a", "hear", 4)
        town.settle()
        town.clock.now += 1
        town.settle()
    assert heard(b) == [1, 3, 3] and heard(a) == [2, 4, 4]


def test_a_recovery_in_place_brings_back_state_and_messages_under_way(town: Town) -> None:
    a, b = two(town)
    tell(a, "b", "hear", 1)
    town.settle()
    tell(a, "b", "hear", 2)
    number = town.begin()
    a.step(0.0)
    tell(a, "b", "hear", 3)
    town.settle()
    town.decide(number, True)
    town.settle()
    assert heard(b) == [1, 2, 3]
    town.recover(number)
    assert heard(b) == [1, 2]
    tell(a, "b", "hear", 4)
    town.settle()
    assert heard(b) == [1, 2, 4]


def test_me_means_the_restored_one_after_a_recovery(town: Town) -> None:
    a, b = two(town)
    a._bind()
    number = town.checkpoint()
    town.recover(number)
    undo = bound_port(b.desk, thread_only=True)
    tell(a, "b", "note_me", 7)
    town.settle()
    undo()
    assert heard(b) == [7]


def test_frames_of_an_older_epoch_count_for_nothing(town: Town) -> None:
    a, b = two(town)
    tell(a, "b", "hear", 1)
    town.settle()
    number = town.checkpoint()
    town.roll_back(number)
    tell(a, "b", "hear", 2)
    a.feed(Flush())
    # It hears of the new epoch first, and then finds what the older one has sent.
    b.step(0.0)
    town.settle()
    town.resume(number)
    town.settle()
    assert heard(b) == [1]
    assert b.endpoint is not None and b.endpoint.fenced >= 1


def test_one_that_was_declared_dead_and_lives_on_keeps_no_link_of_its_successor(town: Town) -> None:
    a, zombie = two(town)
    tell(a, "b", "hear", 1)
    tell(zombie, "a", "hear", 1)
    town.settle()
    number = town.checkpoint()
    assert peer_links(a)
    successor = town.replace("b", number)
    tell(a, "b", "hear", 2)
    town.settle()
    assert heard(successor) == [1, 2]
    # It wakes up, and looks for those it knew.
    town.runners["b, of before"] = zombie
    tell(zombie, "a", "hear", 3)
    town.settle()
    tell(a, "b", "hear", 4)
    town.settle()
    assert heard(successor) == [1, 2, 4] and heard(a) == [1]


def test_one_resumes_long_before_the_other(town: Town) -> None:
    a, b = two(town)
    number = town.checkpoint()
    town.roll_back(number)
    town.settle()
    town.say("a", "resume", checkpoint=number, roster={}, skips=[], left=[])
    for _ in range(5):
        a.step(0.0)
    tell(a, "b", "hear", 1)
    town.settle()
    assert heard(b) == []
    town.say("b", "resume", checkpoint=number, roster={}, skips=[], left=[])
    town.settle()
    assert heard(b) == [1]


def test_who_waits_to_be_resumed_does_not_spin_for_a_link_that_it_cannot_dial_yet(town: Town) -> None:
    """The coordinator may be out of reach for long; what is due in a running system must wait as well."""
    a, b = two(town)
    tell(a, "b", "hear", 1)
    town.settle()
    number = town.checkpoint()
    town.roll_back(number)
    town.settle()
    for runner, peer in ((a, b), (b, a)):
        assert runner.phase == "restored"
        runner.peers.retries[peer.me] = runner.now() - 1.0
        runner.peers.acks[peer.me] = b""
        runner.step(0.0)
        assert runner._patience() > 0.0


def test_a_restore_that_fails_leaves_nobody_running_without_a_state(town: Town) -> None:
    a, b = two(town, Shy)
    number = town.checkpoint()
    Shy.broken = True
    try:
        town.roll_back(number)
        town.settle()
        failures = town.said("restore_failed")
        assert {name for name, _ in failures} == {"a", "b"}
        assert all(doc["at"] == town.epoch and "not today" in doc["reason"] for _, doc in failures)
        assert a.phase == b.phase == "restoring"
    finally:
        Shy.broken = False
    town.recover(number)
    tell(a, "b", "hear", 1)
    town.settle()
    assert heard(b) == [1]


def test_a_timer_that_cannot_fire_keeps_nobody_awake(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two(town)
    tell(a, "b", "nap")
    town.settle()
    assert b._patience() > 0
    town.clock.now += 6
    assert b._patience() == 0
    with monkeypatch.context() as patch:
        patch.setattr(b.outbox, "limit", -1)
        b.step(0.0)
        assert b.outbox.stalled and b._patience() > 0 and heard(b) == []
    tell(a, "b", "fail")
    a.step(0.0)
    with monkeypatch.context() as patch:
        # The message comes before the timer.
        patch.setattr(type(b.desk), "fire_timers", lambda desk: False)
        for _ in range(3):
            a.step(0.0)
            b.step(0.0)
    assert b.tainted and b.desk.next_timer is not None
    b.step(0.0)
    assert b.tainted and b._patience() > 0 and heard(b) == []


def test_a_failure_that_nobody_heard_is_told_to_the_next_coordinator(town: Town) -> None:
    a, b = two(town)
    town.lose_coordinator()
    tell(a, "b", "fail")
    a.step(0.0)
    a.step(0.0)
    b.step(0.0)
    town.settle()
    town.token += 1
    town.new_coordinator()
    town.clock.now += 1
    town.settle()
    assert [(name, doc["method"]) for name, doc in town.said("failed")][-1] == ("b", "fail")
    assert b.tainted


def test_a_message_of_an_older_coordinator_is_not_obeyed(town: Town) -> None:
    _, b = two(town)
    town.token = 5
    town.say("b", "initiate", **town.view())
    town.settle()
    town.say("b", "stop", token=4, reason="old")
    town.settle()
    assert b.ended is None
    town.say("b", "stop", reason="new")
    town.settle()
    assert b.ended == "new"


def test_a_fate_that_was_not_heard_is_learnt_from_the_next_initiate(town: Town) -> None:
    a, b = two(town)
    tell(a, "b", "hear", 1)
    number = town.begin()
    town.settle()
    town.decide(number, True, tell=False)
    tell(a, "b", "hear", 2)
    town.settle()
    second = town.checkpoint()
    assert b.endpoint is not None
    assert not b.endpoint.due and b.endpoint.snapshot.is_decided(number)
    town.recover(second)
    assert heard(b) == [1, 2]


def test_a_timer_fires_beside_a_mailbox_that_never_empties(town: Town) -> None:
    a, b = two(town)
    tell(a, "b", "nap")
    town.settle()
    town.clock.now += 10
    for k in range(50):
        tell(a, "b", "hear", k)
        a.step(0.0)
    while b.endpoint is not None and b.endpoint.head is None:
        b.step(0.0)
    seen = heard(b).index("awake") if "awake" in heard(b) else -1
    town.settle()
    assert 0 <= (seen if seen >= 0 else heard(b).index("awake")) < 50


def test_a_suspended_handler_and_its_answers_under_way_survive_a_recovery(town: Town) -> None:
    a, b = two(town)
    tell(b, "a", "gather", 3)
    for _ in range(3):
        b.step(0.0)
        a.step(0.0)
    number = town.begin()
    for _ in range(2):
        b.step(0.0)
    town.settle()
    town.decide(number, True)
    town.settle()
    assert heard(a) == [[0, 2, 4]]
    for _ in range(3):
        town.recover(number)
        assert heard(a) == [[0, 2, 4]]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("stcdrl"), st.integers(0, 7)), max_size=40))
def test_any_order_of_steps_breaks_cuts_and_recoveries(moves: list[tuple[str, int]]) -> None:
    town = Town()
    try:
        runners = two(town)
        sent = 0
        history: dict[int, int] = {0: 0}
        town.checkpoint(full=True)
        history[town.newest] = 0
        cuts: dict[int, int] = {town.newest: 0}
        for move, number in moves:
            if move == "t":
                sent += 1
                tell(runners[0], "b", "pass_on", sent)
            elif move == "s":
                runners[number % 2].step(0.0)
            elif move == "l":
                links = peer_links(runners[number % 2])
                if links:
                    links[number % len(links)].sever()
                town.clock.now += 1
            elif move == "c":
                cuts[town.begin(full=number > 4)] = -1
                runners[0].step(0.0)
                cuts[town.newest] = sent
                town.settle()
                town.clock.now += 1
                town.settle()
                town.decide(town.newest, True)
            elif move == "d":
                town.begin()
                town.settle()
                town.decide(town.newest, False)
            else:
                town.recover(town.committed)
                sent = cuts[town.committed]
        for _ in range(3):
            town.clock.now += 1
            town.settle()
        assert heard(runners[1]) == list(range(1, sent + 1))
        assert heard(runners[0]) == list(range(1, sent + 1))
    finally:
        town.close()
