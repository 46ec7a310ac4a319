"""A handler's spawn, step by step: in the outbox, in the image, heeded after the captures, dropped once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cutline
from cutline.barrier import Member
from cutline.barrier.events import Released
from cutline.errors import DuplicateName, SpawnFailed, UnknownParticipant
from cutline.participant.handle import Handle
from cutline.participant.messages import encode_tell, pack_error, unpack_error
from cutline.participant.runner import Runner

from .test_runner import Counter, heard, tell
from .town import Town


class Maker(Counter):
    """Spawns and speaks to what it spawned."""

    def make(self, name: str, what: int) -> None:
        kid = cutline.spawn(name, Counter)
        kid.hear.tell(what)
        kid.double.remote(what).then(self.hear, error=self.note)

    def note(self, error: Exception) -> None:
        self.heard.append(type(error).__name__)

    async def make_and_ask(self, name: str, what: int) -> None:
        kid = cutline.spawn(name, Counter)
        self.heard.append(await kid.double.remote(what))

    async def make_nameless(self) -> None:
        self.heard.append([cutline.spawn("kid", Counter)._cutline_name])

    def make_and_fail(self) -> None:
        cutline.spawn("never", Counter)
        raise ValueError("no")


@pytest.fixture
def town() -> Iterator[Town]:
    """A maker."""
    made = Town()
    maker = made.add("maker", Maker)
    made.start()
    maker._bind()
    yield made
    made.close()


def maker_of(town: Town) -> Runner:
    """The maker."""
    return town.runners["maker"]


def asked(town: Town) -> list[tuple[str, int]]:
    """The spawns that the coordinator was asked for: name and number."""
    return [(doc["name"], doc["number"]) for _, doc in town.said("spawn")]


def bring_up(town: Town, name: str, birth: int = 9) -> None:
    """The coordinator starts whom it was asked for, and says so."""
    undo = maker_of(town)._unbind
    town.add(name, Counter, birth)
    town.settle()
    undo()
    maker_of(town)._bind()
    town.say(name, "born", base=0, skips=[], **town.view())
    answer(town, name, birth)


def answer(town: Town, name: str, birth: int = 9, error: bytes | None = None) -> None:
    """The coordinator says what became of the newest spawn of a name."""
    number = [each for spawned, each in asked(town) if spawned == name][-1]
    address = town.runners[name].address if name in town.runners else ""
    town.say(
        "maker", "spawned", number=number, name=name, birth=birth, address=address, error=error, **town.view()
    )
    town.settle()


def nobody(town: Town, name: str) -> None:
    """The coordinator says that a name is nobody's."""
    fields: dict[str, Any] = {"birth": None, "address": "", "gone": [], "left": False}
    town.say("maker", "resolved", name=name, **fields, **town.view())


def test_what_is_sent_to_a_newborn_waits_until_it_is_up(town: Town) -> None:
    maker = maker_of(town)
    tell(maker, "maker", "make", "kid", 4)
    town.settle()
    assert [name for name, _ in asked(town)] == ["kid"] and heard(maker) == []
    assert not town.said("resolve")
    bring_up(town, "kid")
    assert heard(town.runners["kid"]) == [4] and heard(maker) == [8]
    assert maker.endpoint is not None and not maker.endpoint.spawns and not maker.liaison.requests


def test_who_has_a_name_is_asked_for_once_a_spawn_of_it_was_refused(town: Town) -> None:
    maker, kid = maker_of(town), Member("kid", 9)
    tell(maker, "maker", "make", "kid", 4)
    town.settle()
    bring_up(town, "kid")
    tell(maker, "maker", "make", "kid", 5)
    town.settle()
    link = maker.peers.link(kid)
    assert link is not None and maker.endpoint is not None and maker.endpoint.spawns
    maker.peers.addresses.pop(kid)
    link.close()
    town.settle()
    maker.feed(Released(kid, [encode_tell("hear", [7])]))
    town.settle()
    # It might be the newborn's name by now.
    assert maker.endpoint.pending_dials() == [kid] and not town.said("resolve")
    answer(town, "kid", error=pack_error(DuplicateName("taken"), participant="kid"))
    assert [doc["name"] for _, doc in town.said("resolve")] == ["kid"]


def test_a_spawn_is_in_every_cut_until_it_is_heeded_and_done_again_after_each(town: Town) -> None:
    maker = maker_of(town)
    tell(maker, "maker", "make", "kid", 4)
    town.settle()
    before = town.checkpoint(full=True)
    first = asked(town)[-1]
    town.recover(before)
    assert asked(town)[-1] == first and len(asked(town)) == 2
    bring_up(town, "kid")
    after = town.checkpoint()
    town.recover(after)
    assert len(asked(town)) == 2
    assert heard(town.runners["kid"]) == [4] and heard(maker) == [8]


def test_a_newborn_is_heeded_only_after_what_was_begun_before_is_captured(town: Town) -> None:
    maker = maker_of(town)
    tell(maker, "maker", "make", "kid", 4)
    town.settle()
    number = town.begin()
    answer(town, "kid")
    assert maker.endpoint is not None and not maker.endpoint.spawns
    town.decide(number, True)
    town.settle()
    town.recover(number)
    # The cut has the spawn, not the newborn's channel.
    assert [spawn.name for spawn in maker.endpoint.spawns.values()] == ["kid"]
    assert Member("kid", 9) not in maker.endpoint.outgoing


def test_a_second_answer_changes_nothing(town: Town) -> None:
    tell(maker_of(town), "maker", "make", "kid", 4)
    town.settle()
    bring_up(town, "kid")
    answer(town, "kid", 11)
    assert maker_of(town).peers.members["kid"] == Member("kid", 9)


@pytest.mark.parametrize("error", [SpawnFailed("no"), DuplicateName("taken")])
def test_a_newborn_that_never_comes_up_answers_with_the_reason(town: Town, error: Exception) -> None:
    maker = maker_of(town)
    tell(maker, "maker", "make", "kid", 4)
    town.settle()
    answer(town, "kid", error=pack_error(error, participant="kid"))
    assert heard(maker) == [type(error).__name__] and not maker.tainted
    assert [entry[-1] for entry in maker.desk.dead_letters] == ["kid.hear"]
    assert [doc["name"] for _, doc in town.said("undelivered")] == ["kid"]


def test_a_name_that_is_taken_keeps_up_nothing_for_whoever_has_it(town: Town) -> None:
    maker = maker_of(town)
    kid = town.add("kid", Counter)
    town.start("kid")
    tell(maker, "maker", "make", "kid", 1)
    town.settle()
    answer(town, "kid", kid.me.birth)
    cut = town.checkpoint()
    assert heard(kid) == [1]
    # Where everybody is has to be asked anew, and nobody asks of a name that is to be born.
    town.recover(cut)
    maker._bind()
    tell(maker, "maker", "make", "kid", 2)
    town.settle()
    maker.feed(Released(kid.me, [encode_tell("hear", [3])]))
    town.settle()
    assert not town.said("resolve")
    answer(town, "kid", error=pack_error(DuplicateName("taken"), participant="kid"))
    where = {"birth": kid.me.birth, "address": kid.address, "gone": [], "left": False}
    assert town.said("resolve")[-1][1]["name"] == "kid"
    town.say("maker", "resolved", name="kid", **where, **town.view())
    town.settle()
    assert heard(kid) == [1, 2, 3]


def test_an_async_handler_that_is_run_again_spawns_once(town: Town) -> None:
    maker = maker_of(town)
    tell(maker, "maker", "make_and_ask", "kid", 4)
    town.settle()
    cut = town.checkpoint(full=True)
    town.recover(cut)
    assert len({number for _, number in asked(town)}) == 1
    bring_up(town, "kid")
    assert heard(maker) == [8]


def test_a_handler_that_raised_has_spawned_nobody(town: Town) -> None:
    maker = maker_of(town)
    tell(maker, "maker", "make_and_fail")
    town.settle()
    assert maker.tainted and asked(town) == []


def test_a_lost_coordinator_is_asked_again(town: Town) -> None:
    town.lose_coordinator()
    tell(maker_of(town), "maker", "make", "kid", 4)
    town.settle()
    assert asked(town) == []
    town.token += 1
    town.new_coordinator()
    town.clock.now += 1
    town.settle()
    assert [name for name, _ in asked(town)] == ["kid"]


def test_whoever_is_asked_of_a_name_has_said_before_what_it_spawned(town: Town) -> None:
    tell(maker_of(town), "maker", "make", "kid", 4)
    maker_of(town).step(0.0)
    town.say("maker", "spawning", name="kid")
    town.settle()
    kinds = [doc["kind"] for _, doc in town.heard]
    assert kinds.index("spawn") < kinds.index("told_of_spawns")


def test_a_tell_to_nobody_is_a_dead_letter_and_an_ask_an_error(town: Town) -> None:
    maker = maker_of(town)
    instance: Any = maker.instance
    instance.other = Handle("ghost", "", maker.desk)
    tell(maker, "maker", "pass_on", 1)
    town.settle()
    nobody(town, "ghost")
    town.settle()
    assert not maker.tainted and [entry[-1] for entry in maker.desk.dead_letters] == ["ghost.hear"]
    ref = maker.desk.ask("ghost", "hear", (1,), {}, Handle("ghost").hear._options)
    maker._release()
    town.settle()
    nobody(town, "ghost")
    town.settle()
    ok, packed = maker.desk.answers[ref.number]
    assert not ok
    assert isinstance(unpack_error(packed, participant="maker", live={}), UnknownParticipant)
