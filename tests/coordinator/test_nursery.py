"""Who is born, once, and what a name means: packet by packet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutline.errors import DuplicateName, SpawnFailed
from cutline.participant.allowing import lift, restrict
from cutline.participant.messages import pack_error, unpack_error
from cutline.participant.program import vouched
from cutline.storage import Store
from cutline.storage.authentic import StoreKey

from .city import City


@pytest.fixture
def city(store: Store, tmp_path: Path) -> City:
    """A driver and a and b, with one cut of all."""
    made = City(store, tmp_path)
    made.open_for_business("a", "b")
    return made


def spawned(city: City, who: str) -> list[tuple[int, str, int]]:
    """Whom a participant was told of: number, name, birth."""
    docs = [doc for doc in city.lines[who].heard if doc["kind"] == "spawned"]
    return [(doc["number"], doc["name"], doc["birth"]) for doc in docs]


def error_of(doc: dict[str, Any]) -> BaseException:
    """The error of an answer."""
    return unpack_error(doc["error"], participant="test", live={})


def births(city: City, name: str) -> int:
    """How often somebody of that name was started for the first time."""
    return [entry[:2] for entry in city.pad.launched].count((name, "born"))


def test_a_spawn_that_is_asked_for_again_is_answered_and_not_done_twice(city: City) -> None:
    city.spawn("kid", "a", 7)
    city.spawn("kid", "a", 7)
    assert births(city, "kid") == 1 and spawned(city, "a") == []
    city.hello("kid", "born")
    seat = city.c.roster.get("kid")
    assert seat is not None
    assert spawned(city, "a") == [(7, "kid", seat.member.birth)]
    city.spawn("kid", "a", 7)
    assert spawned(city, "a") == [(7, "kid", seat.member.birth)] * 2 and births(city, "kid") == 1


def test_a_newborn_is_told_of_what_is_undecided_and_so_is_its_spawner(city: City) -> None:
    city.request(1)
    city.spawn("kid", "a", 7)
    city.hello("kid", "born")
    undecided = [[city.c.newest, False]]
    assert city.lines["kid"].last("born")["undecided"] == undecided
    assert city.lines["a"].last("spawned")["undecided"] == undecided
    assert "initiate" not in city.lines["kid"].kinds()


def test_a_name_that_is_taken_is_an_error_for_another_spawn(city: City) -> None:
    city.spawn("b", "a", 7)
    error = error_of(city.lines["a"].last("spawned"))
    assert isinstance(error, DuplicateName) and "'b'" in str(error) and births(city, "b") == 1
    city.spawn("b", "a", 8, get=True)
    found = city.lines["a"].last("spawned")
    assert found["error"] is None and found["number"] == 8


def test_a_spawn_of_a_name_whose_newborn_is_starting_waits_for_what_becomes_of_it(city: City) -> None:
    city.spawn("kid", "a", 7)
    city.spawn("kid", "b", 3)
    city.step()
    assert births(city, "kid") == 1 and spawned(city, "b") == []
    error = pack_error(SpawnFailed("no"), participant="kid")
    city.hello("kid", "failed", error=error)
    assert isinstance(error_of(city.lines["a"].last("spawned")), SpawnFailed)
    notice = [doc for doc in city.lines["driver"].heard if doc.get("what") == "spawn_failed"][-1]
    assert (notice["name"], notice["spawner"]) == ("kid", "a") and "SpawnFailed: no" in notice["text"]
    city.step()
    city.hello("kid", "born")
    assert births(city, "kid") == 2 and [name for _, name, _ in spawned(city, "b")] == ["kid"]


def test_a_spawner_that_was_restored_asks_again_and_gets_the_newborn_of_the_cut(city: City) -> None:
    city.spawn("kid", "a", 7)
    city.hello("kid", "born")
    first = spawned(city, "a")
    cut = city.cut("driver", "a", "b", "kid")
    city.dies("a")
    for name in ("b", "driver", "kid"):
        city.say(name, "restored", checkpoint=cut)
    city.hello("a", "restored", city.c.epoch)
    city.spawn("kid", "a", 7)
    assert spawned(city, "a") == first and births(city, "kid") == 1


def test_a_cut_says_which_spawn_somebody_came_from(city: City, store: Store) -> None:
    city.spawn("kid", "a", 7)
    city.hello("kid", "born")
    city.cut("driver", "a", "b", "kid")
    a = city.c.roster.get("a")
    assert a is not None
    row = store.catalog.checkpoints("city")[-1]
    about = store.read_manifest(row).channels["members"]["kid"]
    assert about["spawn"] == ["a", a.member.birth, 7]


def test_a_name_may_be_asked_for_before_its_spawn_has_come(city: City) -> None:
    city.say("b", "resolve", name="kid", births=[])
    city.spawn("kid", "a", 7)
    for name in ("a", "b", "driver"):
        city.say(name, "told_of_spawns", name="kid")
    kinds = city.lines["b"].kinds()
    assert kinds[-1] == "wait" and "resolved" not in kinds
    city.hello("kid", "born")
    city.say("b", "resolve", name="kid", births=[])
    assert city.lines["b"].last("resolved")["birth"] is not None


def test_who_hears_a_name_after_others_were_asked_of_it_has_everybody_asked_again(city: City) -> None:
    city.say("b", "resolve", name="kid", births=[])
    city.say("a", "told_of_spawns", name="kid")
    # Then a spawns the kid and tells the driver, which asks before the spawn has come.
    city.say("driver", "resolve", name="kid", births=[])
    for name in ("b", "driver"):
        city.say(name, "told_of_spawns", name="kid")
    assert city.lines["b"].last("resolved")["birth"] is None
    assert "resolved" not in city.lines["driver"].kinds()
    city.spawn("kid", "a", 7)
    for name in ("a", "b", "driver"):
        city.say(name, "told_of_spawns", name="kid")
    assert city.lines["driver"].kinds()[-1] == "wait" and "resolved" not in city.lines["driver"].kinds()


def test_who_was_asked_of_a_name_over_a_link_that_broke_is_asked_again(city: City) -> None:
    city.say("b", "resolve", name="kid", births=[])
    city.say("b", "told_of_spawns", name="kid")
    city.say("driver", "told_of_spawns", name="kid")
    city.hang_up("a")
    line = city.hello("a", "running", city.c.epoch)
    assert line.last("spawning")["name"] == "kid"
    city.say("a", "told_of_spawns", name="kid")
    assert city.lines["b"].last("resolved")["birth"] is None


def test_a_newborn_that_was_asked_of_a_name_with_its_birth_lost_is_asked_again(city: City) -> None:
    city.spawn("kid", "a", 7)
    city.hello("kid", "born")
    city.say("b", "resolve", name="nobody", births=[])
    for name in ("a", "b", "driver"):
        city.say(name, "told_of_spawns", name="nobody")
    # Neither `born` nor the question has reached it.
    city.hang_up("kid")
    line = city.hello("kid", "born")
    assert line.kinds()[:2] == ["born", "spawning"] and "resolved" not in city.lines["b"].kinds()
    city.say("kid", "told_of_spawns", name="nobody")
    assert city.lines["b"].last("resolved")["birth"] is None


def test_a_spawn_that_comes_while_everybody_goes_back_is_asked_for_again_by_its_spawner(city: City) -> None:
    city.dies("b")
    city.spawn("kid", "a", 7)
    assert births(city, "kid") == 0
    for name in ("a", "driver"):
        city.say(name, "restored", checkpoint=city.c.committed)
    city.hello("b", "restored", city.c.epoch)
    city.step(1.0)
    assert births(city, "kid") == 1


def test_a_newborn_whose_process_is_lost_is_started_again_and_not_for_ever(city: City) -> None:
    city.spawn("kid", "a", 7)
    for tries in (1, 2, 3):
        assert births(city, "kid") == tries and spawned(city, "a") == []
        city.dies("kid")
    assert births(city, "kid") == 3 and city.c.roster.get("kid") is None
    error = error_of(city.lines["a"].last("spawned"))
    assert isinstance(error, SpawnFailed) and "ended by SIGKILL" in str(error)
    city.spawn("kid", "a", 8)
    city.dies("kid")
    city.hello("kid", "born")
    assert [number for number, _, _ in spawned(city, "a")] == [7, 8]


def test_the_drivers_spawn_of_a_name_that_is_taken_means_whoever_has_it(city: City) -> None:
    city.spawn("a", number=55, get=True)
    found = city.lines["driver"].last("spawned")
    assert found["number"] == 55 and found["error"] is None and births(city, "a") == 1


def test_a_script_by_value_counts_where_classes_are_restricted_if_the_key_vouches_for_it(
    store: Store, city: City
) -> None:
    """A spawn may come from a store that is trusted only as far as `allow=` goes; the script is run as it is
    loaded."""
    key = store.catalog.seals.need_key()

    def asked(number: int, main: bytes, **more: Any) -> Any:
        record = {"class_name": "x:Y", "options": {}, "args": [], "main": main, "get": False, **more}
        city.say("a", "spawn", number=number, name=f"kid-{number}", record=record)
        assert births(city, f"kid-{number}") == 1
        return city.c.launcher.program.get("main")

    assert asked(1, b"first") == b"first"
    restrict("test_nursery", ["x"])
    try:
        mac = vouched(b"true", key)
        assert asked(2, b"evil") == b"first"
        assert asked(3, b"evil", vouched=mac) == b"first"
        assert asked(4, b"true", vouched=vouched(b"true", StoreKey(b"e" * 32))) == b"first"
        assert asked(5, b"true", vouched=5) == b"first"
        assert asked(6, b"true", vouched=mac) == b"true"
    finally:
        lift("test_nursery")
