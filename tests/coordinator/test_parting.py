"""Drivers that leave, are killed, and come: packet by packet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cutline.errors import DriverConnected, Misuse, StoreInUse, SystemHalted
from cutline.participant.leaving import RESTS
from cutline.participant.messages import unpack_error
from cutline.participant.processes import process_started
from cutline.participant.program import take_main
from cutline.storage import Store

from .city import City, Line


@pytest.fixture
def city(store: Store, tmp_path: Path) -> City:
    """On a cluster: a driver and a and b, with one cut of all."""
    made = City(store, tmp_path, driver_grace=30.0)
    made.pad.program = {"argv": [], "path": ["old"], "cwd": "", "main": b"old"}
    made.c.parting.spec = {"token": "t"}
    made.open_for_business("a", "b")
    assert made.c.committed == 2
    return made


def leave(city: City) -> int:
    """The driver comes to rest, is captured, and is gone."""
    city.request(7, "park", asked="n-7")
    city.prepare(city.c.newest, "driver", **{RESTS: True})
    city.prepare(city.c.newest, "a", "b")
    reply = city.lines["driver"].last("reply")["value"]
    assert reply["parked"] and reply["checkpoint"] == city.c.committed
    city.hang_up("driver")
    return city.c.committed


def connect(city: City, name: str = "visitor") -> Line:
    """Another program asks to be let in."""
    return city.call_on(name, "connect", pid=77, path=["new", "old"])


def refusal(line: Line) -> BaseException:
    """The error that a program was sent away with."""
    reply = line.last("reply")
    assert not reply["ok"]
    return unpack_error(reply["value"], participant="test", live={})


def come(city: City) -> Line:
    """The program that was let in greets as the driver."""
    return city.hello("driver", "born", pid=77)


# -- leaving -------------------------------------------------------------------------------------------


def test_checkpoints_go_on_with_what_the_driver_left(city: City, store: Store) -> None:
    left = leave(city)
    city.step(10 * 30.0)
    assert city.c.ended is None
    for _ in range(2):
        city.call_on("command line", "checkpoint")
        assert "initiate" in city.lines["a"].kinds()
        city.prepare(city.c.newest, "a", "b")
    assert city.c.committed == left + 2
    rows = {row.checkpoint: row for row in store.catalog.checkpoints("city")}
    before, after = (store.read_manifest(rows[number]).images for number in (left, left + 2))
    assert after["driver"] == before["driver"] and after["a"] != before["a"]


def test_a_checkpoint_of_a_driver_that_does_not_rest_parks_nobody(city: City) -> None:
    city.request(7, "park", asked="n-7")
    city.prepare(city.c.newest, "driver", "a", "b")
    assert city.lines["driver"].last("reply")["value"]["parked"] is False
    city.hang_up("driver")
    city.step(31.0)
    assert city.c.ended == "the driver has been gone for 30 s"


def test_a_driver_whose_checkpoint_aborts_stays(city: City) -> None:
    city.request(7, "park", asked="n-7")
    number = city.c.newest
    city.prepare(number, "driver", **{RESTS: True})
    city.say("a", "complained", checkpoint=number, reason="no space left")
    assert "no space left" in str(refusal(city.lines["driver"]))
    assert city.c.parting.parked is None
    # The next one that it asks for is the one that it leaves with.
    assert leave(city) == number + 1


def test_what_else_is_undecided_when_it_leaves(city: City) -> None:
    city.request(5)
    older = city.c.newest
    city.request(7, "park", asked="n-7")
    city.prepare(city.c.newest, "driver", **{RESTS: True})
    city.prepare(city.c.newest, "a", "b")
    city.hang_up("driver")
    assert city.c.committed == older + 1
    # Nobody will ever hear of the driver's image for the older one.
    assert city.c.catalog.fate(city.lineage, older) == "aborted"
    # A younger one that was begun before the driver was parked is answered for it.
    assert city.c.commit.undecided == []


def test_a_younger_checkpoint_that_was_begun_before_it_left(city: City) -> None:
    city.request(7, "park", asked="n-7")
    parting = city.c.newest
    city.call_on("command line", "savepoint", label="x")
    assert city.c.newest == parting + 1
    city.prepare(parting, "driver", **{RESTS: True})
    city.prepare(parting, "a", "b")
    city.hang_up("driver")
    city.prepare(parting + 1, "a", "b")
    assert city.c.committed == parting + 1


def test_a_driver_that_stays_after_all_speaks_for_itself(city: City) -> None:
    city.request(7, "park", asked="n-7")
    city.prepare(city.c.newest, "driver", **{RESTS: True})
    city.prepare(city.c.newest, "a", "b")
    city.request(8, "stay", asked="n-8")
    assert city.lines["driver"].last("reply")["ok"]
    city.request(9)
    city.prepare(city.c.newest, "a", "b")
    assert city.c.commit.undecided
    city.prepare(city.c.newest, "driver")
    assert city.c.committed == city.c.newest


def test_one_that_did_not_hear_that_it_may_go_is_back(city: City) -> None:
    leave(city)
    city.hello("driver", "running", city.c.epoch)
    assert city.c.parting.parked is None
    city.request(9)
    city.prepare(city.c.newest, "a", "b")
    assert city.c.commit.undecided


def test_on_plain_processes_nobody_leaves(store: Store, tmp_path: Path) -> None:
    city = City(store, tmp_path)
    city.open_for_business("a")
    city.request(7, "park")
    assert isinstance(refusal(city.lines["driver"]), Misuse)
    error = refusal(connect(city))
    assert isinstance(error, Misuse) and "plain processes" in str(error) and "process 1" in str(error)


# -- losses while nobody is connected ------------------------------------------------------------------


def test_a_participant_that_is_lost_comes_back_without_the_driver(city: City) -> None:
    leave(city)
    city.dies("a")
    assert city.pad.launched[-1][:2] == ("a", "restore")
    city.say("b", "restored", checkpoint=city.c.committed)
    city.hello("a", "restored", city.c.epoch)
    assert city.c.flowing and city.c.roster.seats["driver"].phase == "parked"
    # Nobody else can be expected: it had heard of all that it spawned.
    city.say("b", "resolve", name="nobody", births=[])
    for name in ("a", "b"):
        city.say(name, "told_of_spawns", name="nobody")
    assert city.lines["b"].last("resolved")["birth"] is None
    # Whoever has an answer for it waits until it dials.
    city.say("b", "resolve", name="driver", births=[])
    assert (city.lines["b"].last("resolved")["birth"], city.lines["b"].last("resolved")["address"]) == (0, "")
    city.call_on("command line", "checkpoint")
    city.prepare(city.c.newest, "a", "b")
    assert city.c.committed == city.c.newest


def test_a_participant_that_leaves_meanwhile_is_in_no_later_cut(city: City) -> None:
    left = leave(city)
    city.say("a", "departed", claims={"incoming": [], "outgoing": [], "spawns": []}, unhandled=0)
    city.call_on("command line", "checkpoint")
    city.prepare(city.c.newest, "b")
    assert city.c.committed == left + 1 and city.c.roster.get("a") is None
    connect(city)
    line = come(city)
    city.prepare(city.c.newest, "b")
    city.step()
    for name in ("driver", "b"):
        city.say(name, "restored", checkpoint=city.c.committed)
    assert line.last("resume")["checkpoint"] == left + 2 and city.c.flowing


def test_no_recovery_goes_behind_what_it_left(city: City, store: Store) -> None:
    left = leave(city)
    row = next(row for row in store.catalog.checkpoints("city") if row.checkpoint == left)
    store.blobs.delete(store.read_manifest(row).images["a"].ref.key)
    city.c.store._broken.clear()
    city.dies("b")
    assert city.c.halted is not None
    assert f"left this system with checkpoint {left}" in city.c.halted["text"]
    assert "cutline stop --name city" in city.c.halted["text"]
    error = refusal(connect(city))
    assert isinstance(error, SystemHalted) and "cutline.start resumes" in str(error)
    # Its program, run again, need not stop it first.
    assert city.call_on("again", "leave").last("reply")["ok"]


# -- coming --------------------------------------------------------------------------------------------


def test_one_that_comes_is_let_in_with_a_fresh_checkpoint(city: City) -> None:
    left = leave(city)
    value = connect(city).last("reply")["value"]
    assert value["lineage"] == city.lineage and value["spec"]["token"] == "t"
    line = come(city)
    assert line.kinds() == ["notice"] and city.c.newest == left + 1
    city.prepare(left + 1, "a", "b")
    city.step()
    assert line.last("roll_back")["checkpoint"] == left + 1
    for name in ("driver", "a", "b"):
        city.say(name, "restored", checkpoint=left + 1)
    assert line.last("resume")["checkpoint"] == left + 1
    assert city.c.parting.parked is None and city.c.roster.seats["driver"].phase == "running"
    city.cut("driver", "a", "b")
    assert city.c.committed == left + 2


@pytest.mark.parametrize("how", ["aborts", "is lost", "takes too long"])
def test_one_that_comes_does_not_depend_on_that_checkpoint(city: City, how: str) -> None:
    left = leave(city)
    connect(city)
    line = come(city)
    if how == "aborts":
        city.say("a", "complained", checkpoint=city.c.newest, reason="no space left")
        city.step()
    elif how == "is lost":
        city.dies("a")
    else:
        city.step(city.c.settings.checkpoint_timeout + 1)
    assert line.last("roll_back")["checkpoint"] == left


def test_one_that_comes_in_the_middle_of_a_recovery_is_waited_for(city: City) -> None:
    left = leave(city)
    city.dies("a")
    connect(city)
    line = come(city)
    assert line.last("roll_back")["checkpoint"] == left
    city.say("b", "restored", checkpoint=left)
    city.hello("a", "restored", city.c.epoch)
    assert not city.c.flowing
    city.say("driver", "restored", checkpoint=left)
    assert city.c.flowing


def test_a_killed_driver_is_replaced_at_once(city: City) -> None:
    city.hang_up("driver")
    assert connect(city).last("reply")["ok"]
    assert come(city).last("roll_back")["checkpoint"] == city.c.committed


def let_in(city: City) -> None:
    """Another program connects and is the driver; all run."""
    connect(city)
    come(city)
    city.prepare(city.c.newest, "a", "b")
    city.step()
    for name in ("driver", "a", "b"):
        city.say(name, "restored", checkpoint=city.c.committed)
    assert city.c.flowing


def test_a_system_that_was_left_goes_on_without_a_visitor_that_is_killed(city: City, store: Store) -> None:
    leave(city)
    city.step()
    let_in(city)
    cut = city.cut("driver", "a", "b")
    city.hang_up("driver")
    # Its process is gone: nobody need wait for the grace.
    city.step()
    assert city.lines["a"].last("roll_back")["checkpoint"] == cut
    for name in ("a", "b"):
        city.say(name, "restored", checkpoint=cut)
    assert city.c.flowing and city.c.roster.seats["driver"].phase == "parked"
    # It may have spawned more, which only its log knows.
    city.say("b", "resolve", name="nobody", births=[])
    assert city.lines["b"].kinds()[-1] == "wait"
    city.call_on("command line", "checkpoint")
    city.prepare(city.c.newest, "a", "b")
    assert city.c.committed == cut + 1
    city.step(100.0)
    assert city.c.ended is None
    let_in(city)
    assert city.c.committed == cut + 2


def test_one_that_was_never_left_stops_after_the_grace(city: City) -> None:
    city.hang_up("driver")
    connect(city)
    come(city)
    for name in ("driver", "a", "b"):
        city.say(name, "restored", checkpoint=city.c.committed)
    city.hang_up("driver")
    city.step(29.0)
    assert city.c.ended is None
    city.step(2.0)
    assert city.c.ended is not None


def test_a_second_driver_is_an_error_that_names_the_first(city: City) -> None:
    error = refusal(connect(city))
    assert isinstance(error, DriverConnected) and "process 1." in str(error)
    leave(city)
    assert connect(city, "first").last("reply")["ok"]
    error = refusal(connect(city, "second"))
    assert isinstance(error, DriverConnected) and "process 77 is about to connect" in str(error)
    city.hang_up("first")
    assert connect(city, "second").last("reply")["ok"]
    # A launch that was promised to somebody who has given up is nobody's.
    line = city.hello("driver", "born", launch="of the first")
    assert line.kinds() == ["stop"]


def test_a_driver_that_lives_and_has_lost_its_connection_is_expected(city: City) -> None:
    here = os.getpid()
    city.hello("driver", "running", city.c.epoch, pid=here, started=process_started(here))
    city.hang_up("driver")
    error = refusal(connect(city))
    assert isinstance(error, DriverConnected) and f"process {here} has lost its connection" in str(error)


def test_a_start_does_not_stop_what_goes_on_without_a_program(city: City) -> None:
    assert isinstance(refusal(city.call_on("again", "leave")), StoreInUse)
    leave(city)
    error = refusal(city.call_on("again", "leave"))
    assert isinstance(error, StoreInUse) and "cutline.connect('city')" in str(error)
    assert city.c.ended is None


def test_what_is_launched_after_two_programs_finds_the_classes_of_both(city: City) -> None:
    leave(city)
    connect(city)
    program = city.pad.program
    assert (program["main"], program["path"]) == (b"old", ["old", "new"])
    for main in (b"new", b"newer"):
        take_main(program, main)
        # The new program's script has grown between two spawns; the old one's is still needed.
        assert (program["before"], program["main"]) == ([b"old"], main)


# -- suspending ----------------------------------------------------------------------------------------


def told_driver(city: City) -> list[str]:
    """What the driver was told of its input."""
    notices = [doc for doc in city.lines["driver"].heard if doc["kind"] == "notice"]
    return [doc["what"] for doc in notices if doc["what"].endswith("_input")]


def test_input_is_held_until_who_asked_for_it_goes(city: City) -> None:
    line = city.call_on("command line", "hold_input")
    assert told_driver(city) == ["hold_input"] and "reply" not in line.kinds()
    city.request(3, "input_held", last=17)
    assert line.last("reply")["value"] == {"last": 17}
    # Nothing is begun that nobody asks for.
    city.c.trigger.interval = 1.0
    begun = city.c.newest
    city.step(100.0)
    city.c.trigger.want_early()
    city.step(1.0)
    assert city.c.newest == begun and city.c.trigger.next_in(city.c.now()) == 3600.0
    city.say("command line", "request", number=2, what="savepoint", label="last")
    assert city.c.newest == begun + 1
    city.prepare(begun + 1, "driver", "a", "b")
    # It is killed before it has said that the system is to end.
    city.hang_up("command line")
    assert told_driver(city) == ["hold_input", "let_input"]
    city.step(100.0)
    assert city.c.newest == begun + 2


def test_a_driver_that_has_left_takes_nothing(city: City) -> None:
    leave(city)
    assert city.call_on("command line", "hold_input").last("reply")["value"] == {"last": None}


def test_who_asked_for_it_says_that_the_system_goes_on(city: City) -> None:
    city.request(3, "hold_input", asked="n-3")
    city.request(4, "input_held", last=1)
    # Another one, who came second, changes nothing of that.
    other = city.call_on("command line", "hold_input")
    assert "being suspended already" in str(refusal(other))
    city.say("command line", "request", number=2, what="let_input")
    city.hang_up("command line")
    assert told_driver(city) == ["hold_input"] and city.c.trigger.resting
    city.request(5, "let_input", asked="n-5")
    assert told_driver(city) == ["hold_input", "let_input"] and not city.c.trigger.resting
    city.step(1.0)
    assert told_driver(city) == ["hold_input", "let_input"]
