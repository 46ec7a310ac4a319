"""Those who leave, packet by packet: when, who hears of it, what another coordinator and a recovery know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutline.errors import StoreFull
from cutline.storage import Store

from .city import City
from .test_recover import confirm, take_over


@pytest.fixture
def city(store: Store, tmp_path: Path) -> City:
    """A driver and a, b and c, with one cut of all."""
    made = City(store, tmp_path)
    made.open_for_business("a", "b", "c")
    return made


def member_of(city: City, name: str) -> list[Any]:
    """Name and birth."""
    seat = city.c.roster.get(name)
    assert seat is not None
    return list(seat.member)


def departs(city: City, name: str, *taken: tuple[str, int]) -> list[Any]:
    """A participant has drained; it had taken so many messages of each of these. Returns name and birth."""
    who = member_of(city, name)
    incoming = [[*member_of(city, other), number, number, 0] for other, number in taken]
    claims = {"incoming": incoming, "outgoing": [], "spawns": []}
    city.say(name, "departed", claims=claims, unhandled=0)
    return who


def told(city: City, name: str, kind: str) -> list[tuple[Any, ...]]:
    """What a participant was told of those who leave."""
    docs = [doc for doc in city.lines[name].heard if doc["kind"] == kind]
    return [(doc["name"], doc["birth"], *([doc["last"]] if kind == "left" else [])) for doc in docs]


def rows(store: Store, city: City) -> list[str]:
    """The names of the catalog's rows of members."""
    return sorted(store.catalog.members(city.lineage))


def test_the_peers_of_a_leaver_are_to_ask_anew_and_nobody_gets_its_name(city: City) -> None:
    who = member_of(city, "a")
    city.say("a", "leaving", peers=[member_of(city, "b"), ["c", 99]])
    assert told(city, "b", "leaving") == [tuple(who)] and told(city, "c", "leaving") == []
    city.say("b", "resolve", name="a", births=[who[1]])
    answer = city.lines["b"].last("resolved")
    assert answer["birth"] is None and answer["left"] and answer["gone"] == []


def test_who_has_departed_is_stopped_and_its_peers_hear_what_it_took(city: City, store: Store) -> None:
    who = departs(city, "a", ("b", 4))
    assert city.lines["a"].kinds()[-1] == "stop"
    assert told(city, "b", "left") == [(*who, 4)] and told(city, "c", "left") == []
    assert city.c.roster.get("a") is None
    assert rows(store, city) == [f"@left/{who[1]}/a", "b", "c", "driver"]
    city.request(7)
    assert [member.name for member in city.c.commit.waiting_for(city.c.newest)] == ["driver", "b", "c"]


def test_who_is_in_an_open_checkpoint_stays_until_it_is_decided(city: City) -> None:
    city.request(7)
    departs(city, "a", ("b", 4))
    assert told(city, "b", "left") and "stop" not in city.lines["a"].kinds()
    city.request(8, what="savepoint", label="x")
    assert [member.name for member in city.c.commit.waiting_for(city.c.newest)] == ["driver", "b", "c"]
    city.spawn("a", number=5)
    city.step()
    assert [entry[:2] for entry in city.pad.launched].count(("a", "born")) == 1
    city.prepare(city.c.newest - 1, "driver", "a", "b", "c")
    assert city.lines["a"].kinds()[-1] == "stop"
    city.step()
    assert [entry[:2] for entry in city.pad.launched].count(("a", "born")) == 2


def test_a_checkpoint_whose_leaver_has_died_is_given_up_and_nobody_goes_back(city: City) -> None:
    city.request(7)
    departs(city, "a")
    epoch = city.c.epoch
    city.dies("a")
    assert city.c.epoch == epoch and city.c.flowing and not city.c.commit.undecided
    assert city.c.roster.get("a") is None


def test_a_departure_that_comes_while_everybody_goes_back_counts_for_nothing(city: City) -> None:
    city.dies("b")
    city.say("a", "departed", epoch=city.c.epoch - 1, claims={"incoming": [], "outgoing": []}, unhandled=0)
    confirm(city, "a", "c", "driver")
    city.hello("b", "restored", city.c.epoch)
    city.step(1.0)
    assert city.c.roster.members("running") and city.c.roster.get("a") is not None


def cut(city: City, *names: str) -> int:
    """A committed cut of these."""
    city.request(99)
    city.prepare(city.c.newest, *names)
    return city.c.committed


def test_who_left_is_forgotten_with_a_cut_that_does_not_speak_of_it(city: City, store: Store) -> None:
    departs(city, "a", ("b", 4))
    cut(city, "driver", "b", "c")
    assert rows(store, city) == ["b", "c", "driver"] and not city.c.departures.docs


def speaks(city: City, name: str, of: list[Any], sent: int) -> None:
    """A participant prepares the newest checkpoint, with a channel to somebody."""
    city.claims = {name: {"incoming": [], "outgoing": [[*of, sent, sent, [[sent, 0]]]], "spawns": []}}
    city.prepare(city.c.newest, name)
    city.claims = {}


def test_a_cut_that_speaks_of_who_left_says_so_and_going_back_to_it_restores_that(
    city: City, store: Store
) -> None:
    who = departs(city, "a", ("b", 4))
    city.request(99)
    city.prepare(city.c.newest, "driver", "c")
    speaks(city, "b", who, 4)
    row = store.catalog.checkpoints("city")[-1]
    (kept,) = store.read_manifest(row).channels["departed"]
    assert kept[0] == who[1] and kept[1]["name"] == "a"
    cut(city, "driver", "b", "c")
    assert not city.c.departures.docs
    city.c.store._broken.clear()
    city.dies("c")
    confirm(city, "b", "driver")
    city.hello("c", "restored", city.c.epoch)
    assert city.lines["b"].last("resume")["left"] == []


def test_going_back_to_before_a_departure_brings_it_back(city: City, store: Store) -> None:
    who = departs(city, "a", ("b", 4))
    city.dies("c")
    assert ("a", "restore") in [entry[:2] for entry in city.pad.launched]
    assert member_of(city, "a") == who and not city.c.departures.docs
    confirm(city, "b", "driver")
    for name in ("a", "c"):
        city.hello(name, "restored", city.c.epoch)
    assert city.c.flowing and rows(store, city) == ["a", "b", "c", "driver"]
    assert city.lines["b"].last("resume")["left"] == []


def test_a_catalog_that_is_away_only_delays_going_back(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    who = departs(city, "a", ("b", 4))

    def away(*_: Any) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(type(city.c.catalog), "remove_member", away)
        city.dies("c")
        assert city.c.recoverer.again_at is not None and not city.c.flowing
    city.step(2.0)
    assert member_of(city, "a") == who and not city.c.departures.docs
    assert ("a", "restore") in [entry[:2] for entry in city.pad.launched]


def test_one_that_has_departed_and_whose_checkpoint_is_given_up_by_a_loss_is_started_again(
    city: City,
) -> None:
    city.request(7)
    who = departs(city, "a")
    city.dies("c")
    assert city.lines["a"].kinds()[-1] == "stop" and member_of(city, "a") == who
    assert ("a", "restore") in [entry[:2] for entry in city.pad.launched]


def test_a_departure_is_taken_up_when_a_coordinator_that_took_over_has_everybody(
    city: City, tmp_path: Path
) -> None:
    after = take_over(city, tmp_path)
    after.hello("a", "running", after.c.epoch)
    who = departs(after, "a")
    for name in ("driver", "b", "c"):
        after.hello(name, "running", after.c.epoch)
    after.step()
    assert after.c.flowing and list(after.c.commit.departed) == [tuple(who)]


def test_another_coordinator_knows_who_has_left(city: City, tmp_path: Path, store: Store) -> None:
    city.request(7)
    who = departs(city, "a", ("b", 4))
    after = take_over(city, tmp_path)
    for name in ("driver", "b", "c"):
        after.hello(name, "running", after.c.epoch)
    assert after.c.flowing and after.c.roster.get("a") is None
    assert list(after.c.commit.departed) == [tuple(who)]
    # What the other one said of it may have been lost with it.
    assert told(after, "b", "left") == [(*who, 4)] and told(after, "driver", "left") == [(*who, 0)]
    after.lines["a"] = line = after.hello("a", "running", after.c.epoch)
    assert "stop" in line.kinds()
    after.hang_up("b")
    after.hello("b", "running", after.c.epoch)
    assert told(after, "b", "left") == [(*who, 4)]


def test_whoever_was_not_told_asks_where_an_incarnation_is_and_hears_that_it_is_gone(city: City) -> None:
    who = departs(city, "a", ("b", 4))
    for name, last in (("b", 4), ("c", 0)):
        city.say(name, "resolve", name="a", births=[who[1]])
        for other in ("driver", "b", "c"):
            city.say(other, "told_of_spawns", name="a")
        answer = city.lines[name].last("resolved")
        assert answer["birth"] is None and answer["gone"] == [[who[1], last]] and answer["left"]


def test_a_name_that_was_left_belongs_to_the_next_one(city: City) -> None:
    who = departs(city, "a", ("b", 4))
    city.spawn("a", "c", 3)
    city.hello("a", "born")
    assert member_of(city, "a")[1] > who[1]
    city.say("b", "resolve", name="a", births=[who[1]])
    answer = city.lines["b"].last("resolved")
    assert answer["birth"] == member_of(city, "a")[1] and answer["gone"] == [[who[1], 4]]


def test_a_spawn_of_one_that_has_left_is_not_done_again(city: City) -> None:
    city.spawn("kid", "a", 7)
    city.hello("kid", "born")
    who = departs(city, "kid", ("a", 2))
    city.lines["a"].heard.clear()
    city.spawn("kid", "a", 7)
    assert [entry[:2] for entry in city.pad.launched].count(("kid", "born")) == 1
    kinds = [doc["kind"] for doc in city.lines["a"].heard]
    assert kinds == ["spawned", "left"] and city.lines["a"].last("spawned")["birth"] == who[1]


def test_whoever_waits_for_an_end_is_answered_then(city: City) -> None:
    city.request(5, what="await_left", name="nobody")
    assert city.lines["driver"].last("reply")["value"] == {"gone": True}
    city.request(6, what="await_left", name="a")
    assert city.lines["driver"].last("reply")["number"] == 5
    departs(city, "a")
    assert city.lines["driver"].last("reply")["number"] == 6


def test_whoever_waits_for_an_end_hears_of_a_recovery(city: City) -> None:
    city.request(6, what="await_left", name="a")
    city.dies("b")
    reply = city.lines["driver"].last("reply")
    assert reply["number"] == 6 and reply["value"] == {"gone": False}


def test_who_reconnects_hears_what_it_may_have_missed(city: City) -> None:
    city.say("a", "leaving", peers=[])
    who = departs(city, "c", ("b", 1))
    city.hang_up("b")
    city.hello("b", "running", city.c.epoch)
    assert told(city, "b", "left") == [(*who, 1)]
    assert told(city, "b", "leaving") == [tuple(member_of(city, "a"))]


def test_who_departs_after_it_was_asked_of_a_name_holds_nobody_up(city: City) -> None:
    city.say("b", "resolve", name="kid", births=[])
    for name in ("b", "c", "driver"):
        city.say(name, "told_of_spawns", name="kid")
    assert "resolved" not in city.lines["b"].kinds()
    city.say("a", "leaving", peers=[])
    departs(city, "a")
    city.step(1.0)
    assert city.lines["b"].last("resolved")["birth"] is None
