"""A participant that leaves, and those who have had to do with it, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import cutline
from cutline.barrier import Member
from cutline.barrier.messages import Positions
from cutline.errors import ParticipantLeft
from cutline.participant.messages import unpack_error
from cutline.participant.runner import Runner

from .test_runner import Counter, heard, tell, two
from .town import Town


class Leaver(Counter):
    """Leaves when it is told to."""

    def leave(self, what: Any) -> Any:
        self.heard.append(what)
        cutline.leave()
        self.other.hear.tell("bye")
        return what

    def leave_and_raise(self) -> None:
        cutline.leave()
        raise ValueError("no")

    async def wait(self) -> str:
        await asyncio.sleep(100)
        return "never"

    async def leave_and_wait(self) -> str:
        cutline.leave()
        await asyncio.sleep(100)
        return "never"


@pytest.fixture
def town() -> Iterator[Town]:
    """An empty town."""
    made = Town()
    yield made
    made.close()


def step_as(runner: Runner, times: int = 1) -> None:
    """Steps a runner with its module functions bound, as on a thread of its own."""
    runner._bind()
    try:
        for _ in range(times):
            runner.step(0.0)
    finally:
        runner._unbind()
        runner._unbind = lambda: None


def settle(town: Town) -> None:
    """Like `Town.settle`, each on a thread of its own, so to speak."""
    for _ in range(60):
        for runner in list(town.runners.values()):
            if runner.peers.acks:
                town.clock.now = max(town.clock.now, runner.peers.ack_at)
            if runner.ended is None:
                step_as(runner)


def ask(runner: Runner, target: str, method: str, *args: Any) -> int:
    """Asks from a runner as one of its handlers would; returns the question's number."""
    number: int = runner.desk._ask(target, method, list(args)).number
    runner._release()
    return number


def answer_of(runner: Runner, number: int) -> Any:
    """An answer that has come: a value, or an error."""
    ok, packed = runner.desk.answers[number]
    return packed[0] if ok else unpack_error(packed, participant="test", live={})


def departed(town: Town) -> list[tuple[str, dict[str, Any]]]:
    """Who has said that it has nothing left to do."""
    return town.said("departed")


def say_left(town: Town, who: Runner, *to: str) -> None:
    """The coordinator says that somebody has left, having taken what it has."""
    doc = departed(town)[-1][1]
    taken = {name: processed for name, _birth, processed, _upto, _digest in doc["claims"]["incoming"]}
    for name in to:
        fields = {"name": who.me.name, "birth": who.me.birth, "last": taken.get(name, 0)}
        town.say(name, "left", **fields, **town.view())


def test_what_the_handler_sent_is_sent_and_its_answer_given(town: Town) -> None:
    a, b = two(town, Leaver)
    number = ask(a, "b", "leave", 5)
    settle(town)
    assert answer_of(a, number) == 5 and heard(a) == ["bye"]
    (who, doc), *more = departed(town)
    assert who == "b" and not more and doc["unhandled"] == 0
    assert [(name, processed) for name, _, processed, _, _ in doc["claims"]["incoming"]] == [("a", 1)]


def test_nothing_is_handled_afterwards(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "hear", 1)
    tell(a, "b", "leave", 2)
    tell(a, "b", "hear", 3)
    number = ask(a, "b", "double", 4)
    settle(town)
    assert heard(b) == [1, 2]
    assert isinstance(answer_of(a, number), ParticipantLeft)
    assert [entry[-1] for entry in b.desk.dead_letters] == ["hear"]
    assert departed(town)[-1][1]["unhandled"] == 1


def test_its_peers_are_named_and_later_ones_too(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 2)
    settle(town)
    assert [doc["peers"] for _, doc in town.said("leaving")] == [[["a", 1]]]


def test_suspended_handlers_end_with_an_error_for_whoever_waits(town: Town) -> None:
    a, b = two(town, Leaver)
    number = ask(a, "b", "wait")
    settle(town)
    assert b.desk.calls
    tell(a, "b", "leave", 1)
    settle(town)
    assert isinstance(answer_of(a, number), ParticipantLeft) and not b.desk.calls
    assert departed(town)


def test_an_async_handler_that_leaves_goes_no_further_than_its_next_await(town: Town) -> None:
    a, b = two(town, Leaver)
    number = ask(a, "b", "leave_and_wait")
    settle(town)
    assert isinstance(answer_of(a, number), ParticipantLeft) and departed(town)


def test_a_told_handler_that_left_and_raised_has_not_left(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave_and_raise")
    settle(town)
    assert b.tainted and not town.said("leaving") and not departed(town)


def test_a_cut_in_between_holds_that_it_leaves(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    for _ in range(3):
        step_as(a)
        step_as(b)
    number = town.begin(full=True)
    settle(town)
    town.decide(number, True)
    settle(town)
    assert departed(town)
    town.roll_back(number)
    settle(town)
    town.resume(number)
    settle(town)
    assert b.desk.leaving and len(departed(town)) == 2 and heard(a) == ["bye"]


def test_what_was_sent_to_one_that_left_and_never_taken_is_answered_here(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    settle(town)
    tell(a, "b", "hear", 2)
    number = ask(a, "b", "double", 3)
    settle(town)
    assert number not in a.desk.answers and a.endpoint is not None and a.endpoint.outbox_bytes
    say_left(town, b, "a")
    settle(town)
    assert isinstance(answer_of(a, number), ParticipantLeft)
    assert [entry[-1] for entry in a.desk.dead_letters] == ["b.hear"]
    assert b.me not in a.endpoint.outgoing and b.me not in a.endpoint.incoming
    assert "b" not in a.peers.members


def test_the_word_that_somebody_left_is_heeded_after_the_captures(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    settle(town)
    tell(a, "b", "hear", 2)
    step_as(a)
    number = town.begin(full=True)
    say_left(town, b, "a")
    settle(town)
    doc = [doc for name, doc in town.said("prepared") if name == "a" and doc["checkpoint"] == number][-1]
    assert [entry[:2] for entry in doc["claims"]["outgoing"]] == [["b", 1]]
    assert a.endpoint is not None and b.me not in a.endpoint.outgoing


def test_what_is_sent_once_somebody_leaves_is_for_whoever_has_the_name_then(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    settle(town)
    town.say("a", "leaving", name="b", birth=1)
    settle(town)
    del town.runners["b"]
    tell(a, "b", "hear", 7)
    settle(town)
    asked = town.said("resolve")[-1][1]
    assert asked["name"] == "b" and asked["births"] == [1]
    town.runners["old"] = b
    again = town.add("b", Counter, birth=5)
    settle(town)
    town.say("b", "born", base=0, skips=[], **town.view())
    fields = {"name": "b", "birth": 5, "address": again.address, "gone": [[1, 1]], "left": False}
    town.say("a", "resolved", **fields, **town.view())
    settle(town)
    assert heard(again) == [7]
    assert a.endpoint is not None and list(a.endpoint.outgoing) == [Member("b", 5)]
    assert a.endpoint.outgoing[Member("b", 5)].sent == 1


def test_a_name_that_nobody_has_any_more_is_known_to_have_been_left(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    settle(town)
    town.say("a", "leaving", name="b", birth=1)
    settle(town)
    del town.runners["b"]
    number = ask(a, "b", "double", 7)
    settle(town)
    fields = {"name": "b", "birth": None, "address": "", "gone": [[1, 1]], "left": True}
    town.say("a", "resolved", **fields, **town.view())
    settle(town)
    assert isinstance(answer_of(a, number), ParticipantLeft)


def test_who_takes_a_cuts_state_hears_who_had_left_by_then(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    settle(town)
    tell(a, "b", "hear", 2)
    number = town.begin(full=True)
    settle(town)
    town.decide(number, True)
    settle(town)
    town.roll_back(number)
    settle(town)
    town.left = [["b", 1, 1]]
    town.resume(number)
    settle(town)
    assert a.endpoint is not None and b.me not in a.endpoint.outgoing
    assert [entry[-1] for entry in a.desk.dead_letters] == ["b.hear"]


def test_a_new_coordinator_is_told_of_it_all_again(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    settle(town)
    town.lose_coordinator()
    settle(town)
    town.token += 1
    town.new_coordinator()
    town.clock.now += 1
    settle(town)
    assert len(departed(town)) == 2
    assert [doc["peers"] for _, doc in town.said("leaving")] == [[["a", 1]], [["a", 1]]]


def test_who_leaves_waits_until_its_peers_need_nothing_more_of_it(town: Town) -> None:
    a, b = two(town, Leaver)
    tell(a, "b", "leave", 1)
    settle(town)
    assert a.endpoint is not None and b.endpoint is not None
    sent = b.endpoint.outgoing[a.me]
    assert sent.sent == sent.released == 1
    assert a.endpoint.incoming[b.me].positions(True) == Positions(1, 1, 1 + a.endpoint.window)
