"""Losses, recoveries and take-overs, packet by packet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator import together
from cutline.errors import StorageError, StoreFull
from cutline.storage import Store

from .city import City


@pytest.fixture
def city(store: Store, tmp_path: Path) -> City:
    """A driver and a and b, with one cut of all."""
    made = City(store, tmp_path)
    made.open_for_business("a", "b")
    assert made.c.committed == 2
    return made


def take_over(city: City, tmp_path: Path) -> City:
    """Another coordinator of the same system."""
    city.store.catalog.release_lease(city.lease)
    after = City(city.store, tmp_path, city.lineage)
    after.pad.living = set(city.pad.living)
    after.c.recoverer.take_over()
    after.step()
    return after


def confirm(city: City, *names: str) -> None:
    """Participants have rolled back."""
    for name in names:
        city.say(name, "restored", checkpoint=city.c.committed)


def test_a_loss_brings_everybody_back_and_data_flows_when_all_have_confirmed(city: City) -> None:
    city.dies("a")
    assert city.pad.launched[-1][:2] == ("a", "restore")
    assert "roll_back" in city.lines["b"].kinds() and not city.c.flowing
    confirm(city, "b", "driver")
    assert "resume" not in city.lines["b"].kinds()
    city.hello("a", "restored", city.c.epoch)
    assert [city.lines[name].kinds()[-1] for name in ("a", "b")] == ["resume"] * 2
    assert city.c.flowing


def test_a_second_loss_begins_the_recovery_again_in_a_newer_epoch(city: City) -> None:
    city.dies("a")
    epoch = city.c.epoch
    confirm(city, "driver")
    city.dies("b")
    assert city.c.epoch == epoch + 1
    city.say("driver", "restored", epoch=epoch, checkpoint=2)
    city.hello("b", "restored", city.c.epoch)
    city.hello("a", "restored", epoch)
    assert "roll_back" in city.lines["a"].kinds() and not city.c.flowing
    confirm(city, "a", "driver")
    assert city.c.flowing


def test_losses_that_come_together_are_one_recovery_in_one_epoch(city: City) -> None:
    epoch = city.c.epoch
    # As the operating system has it: links first, then the ends.
    city.hang_up("a")
    city.hang_up("b")
    city.dies("b")
    assert not city.c.flowing and city.c.epoch == epoch
    # What anybody confirms now is of an attempt that is overtaken.
    confirm(city, "driver")
    city.dies("a")
    assert city.c.epoch == epoch + 1
    assert sorted(entry[0] for entry in city.pad.launched if entry[1] == "restore") == ["a", "b"]
    assert {entry[2]["epoch"] for entry in city.pad.launched[-2:]} == {epoch + 1}
    confirm(city, "driver")
    for name in ("a", "b"):
        city.hello(name, "restored", city.c.epoch)
    assert city.c.flowing
    (told,) = [doc for doc in city.lines["driver"].heard if doc.get("what") == "recovered"]
    assert sorted(told["lost"]) == ["a", "b"]


def test_a_link_that_broke_by_itself_holds_up_a_recovery_for_a_moment_only(city: City) -> None:
    city.hang_up("b")
    city.dies("a")
    assert not city.c.flowing and city.pad.launched[-1][:2] != ("a", "restore")
    city.step(together.MOST)
    assert city.pad.launched[-1][:2] == ("a", "restore")
    # It dials again, and has to come along.
    city.hello("b", "running", city.c.epoch - 1)
    assert "roll_back" in city.lines["b"].kinds()


def test_nothing_is_committed_between_a_loss_and_its_recovery(city: City) -> None:
    city.request(1)
    checkpoint = city.c.newest
    city.prepare(checkpoint, "a", "b")
    city.hang_up("b")
    city.dies("a")
    city.prepare(checkpoint, "driver")
    city.request(2)
    assert city.c.committed == 2 and not city.c.open
    city.step(together.MOST)
    assert city.c.recoverer.row.checkpoint == 2


def test_one_that_is_lost_while_it_starts_is_started_again(city: City) -> None:
    city.dies("a")
    city.dies("a")
    assert [name for name, mode, _ in city.pad.launched if mode == "restore"] == ["a", "a"]


def test_a_newborn_outside_the_cut_ends_and_its_record_brings_another(city: City) -> None:
    city.spawn("late")
    city.hello("late", "born")
    line = city.lines["late"]
    city.dies("a")
    assert "stop" in line.kinds() and "late" in city.pad.killed
    assert city.c.roster.get("late") is None


def test_a_name_is_nobodys_only_after_the_driver_has_told_of_its_spawns(city: City) -> None:
    city.dies("a")
    confirm(city, "b", "driver")
    city.hello("a", "restored", city.c.epoch)
    city.say("b", "resolve", name="late", births=[])
    assert city.lines["b"].kinds()[-1] == "wait"
    city.say("driver", "spawns_told")
    city.say("b", "resolve", name="late", births=[])
    for name in ("a", "b", "driver"):
        assert city.lines[name].last("spawning")["name"] == "late"
        assert "resolved" not in [doc["kind"] for doc in city.lines["b"].heard]
        city.say(name, "told_of_spawns", name="late")
    assert city.lines["b"].last("resolved")["birth"] is None


def test_one_that_is_declared_dead_is_told_so_and_hung_up_on(city: City) -> None:
    line = city.lines["a"]
    city.dies("a")
    assert "stop" in line.kinds() and line.closed


def test_one_that_is_heard_of_between_two_attempts_comes_along(
    city: City, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = take_over(city, tmp_path)
    away = True

    def bump(*facts: Any) -> int:
        if away:
            raise StorageError("the catalog is away")
        return original(*facts)

    original = after.c.catalog.bump_epoch
    monkeypatch.setattr(after.c.catalog, "bump_epoch", bump)
    after.pad.living.discard(after.c.roster.seats["a"].launch)
    after.hello("b", "restored", 0)
    away = False
    # Out of step, and only just heard of: nobody has looked at its phase yet.
    line = after.hello("driver", "restored", 0)
    assert "roll_back" in line.kinds()


def test_who_stands_still_costs_its_process_its_life(city: City) -> None:
    city.dies("a")
    confirm(city, "driver")
    city.hello("a", "restored", city.c.epoch)
    city.step(city.c.settings.rollback_grace + 1)
    assert city.pad.killed == ["b"]


def test_an_end_that_was_missed_does_not_hold_up_a_recovery(city: City) -> None:
    city.dies("a")
    confirm(city, "driver")
    city.hello("a", "restored", city.c.epoch)
    city.pad.living.clear()
    city.step(city.c.settings.rollback_grace + 1)
    assert ("b", "restore") in [entry[:2] for entry in city.pad.launched]


def test_damage_found_at_a_restore_falls_back_once_for_all_who_find_it(city: City, store: Store) -> None:
    row = store.catalog.checkpoints("city")[-1]
    store.blobs.delete(store.read_manifest(row).images["a"].ref.key)
    city.c.store._broken.clear()
    city.dies("b")
    epoch = city.c.epoch
    city.hello("b", "failed", at=epoch, reason="Corrupt: gone", error=b"")
    for name in ("driver",):
        city.say(name, "restore_failed", epoch=epoch, at=epoch, reason="Corrupt: gone", error=b"")
    assert city.c.halted is None or "checkpoint" in city.c.halted["text"]
    assert city.c.recoverer.row.checkpoint == 1


def test_a_program_that_does_not_fit_halts(city: City) -> None:
    city.dies("a")
    city.hello("a", "failed", at=city.c.epoch, reason="ClassMissing: x:Y", error=b"\x80\x05N.")
    assert city.c.halted is not None and "ClassMissing" in city.c.halted["text"]


def test_a_failure_that_every_new_coordinator_is_told_of_counts_once(
    city: City, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        key = {"policy": "retry", "key": ["driver", 0, 1], "digest": None, "method": "m", "text": "no"}
        city.say("a", "failed", error=b"\x80\x05N.", **key)

    with monkeypatch.context() as patch:
        # As if each coordinator died before the epoch rose.
        patch.setattr(city.c.recoverer, "recover", lambda reason: None)
        for _ in range(6):
            fail()
    assert city.c.halted is None
    for _ in range(3):
        fail()
        confirm(city, "a", "b", "driver")
        assert city.c.halted is None and city.c.flowing
    fail()
    assert city.c.halted is not None and ", 4 times" in city.c.halted["text"]


def test_a_catalog_that_is_away_only_delays_a_recovery(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> int:
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(city.c.catalog, "bump_epoch", away)
        city.dies("a")
        assert city.c.halted is None and not city.c.flowing
    city.step(2.0)
    assert city.c.recovery.restoring


def test_a_fate_that_the_catalog_kept_to_itself_is_asked_for_later(
    city: City, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise StorageError("away")

    city.request(5)
    number = city.c.newest
    with monkeypatch.context() as patched:
        patched.setattr(city.store, "commit_cut", away)
        patched.setattr(city.c.catalog, "fate", away)
        city.prepare(number, "driver", "a", "b")
        assert city.lines["a"].kinds()[-1] == "initiate"
    city.step(1.0)
    assert city.lines["a"].last("settled")["committed"] is False
    assert city.c.catalog.fate(city.lineage, number) == "aborted"


# -- take-over ---------------------------------------------------------------------------------------


def test_a_new_coordinator_goes_on_when_everybody_is_in_step(city: City, tmp_path: Path) -> None:
    city.request(5)
    begun = city.c.newest
    after = take_over(city, tmp_path)
    epoch = after.c.catalog.epoch(city.lineage)
    for name in ("driver", "a", "b"):
        after.hello(name, "running", epoch)
    assert after.c.flowing and after.pad.launched == []
    assert after.lines["a"].last("initiate")["undecided"] == []
    assert after.lines["a"].last("initiate")["newest"] == begun
    assert after.c.catalog.fate(city.lineage, begun) == "aborted"


def test_what_is_said_while_it_gathers_counts(city: City, tmp_path: Path) -> None:
    after = take_over(city, tmp_path)
    epoch = after.c.catalog.epoch(city.lineage)
    after.hello("driver", "running", epoch)
    after.spawn("late")
    after.hello("a", "running", epoch)
    after.say("a", "resolve", name="late", births=[])
    assert after.lines["a"].kinds()[-1] == "wait"
    after.hello("b", "running", epoch)
    after.step()
    assert [entry[:2] for entry in after.pad.launched] == [("late", "born")]


def test_one_in_the_middle_of_a_recovery_means_another_recovery(city: City, tmp_path: Path) -> None:
    city.dies("a")
    after = take_over(city, tmp_path)
    epoch = after.c.catalog.epoch(city.lineage)
    assert after.pad.launched[-1][:2] == ("a", "restore")
    after.hello("driver", "restored", epoch - 1)
    after.hello("b", "running", epoch - 2)
    after.hello("a", "restored", epoch)
    assert not after.c.flowing
    confirm(after, "driver", "b")
    assert after.c.flowing and after.c.epoch == epoch


def test_one_that_says_nothing_is_ended_after_the_grace(city: City, tmp_path: Path) -> None:
    after = take_over(city, tmp_path)
    epoch = after.c.catalog.epoch(city.lineage)
    for name in ("driver", "a"):
        after.hello(name, "running", epoch)
    after.step(11.0)
    assert after.c.recovery.restoring and after.pad.killed == []
    after.step(after.c.settings.rollback_grace + 1)
    assert "b" in after.pad.killed
    after.dies("b")
    assert after.pad.launched[-1][:2] == ("b", "restore")


@pytest.mark.parametrize("phase", ["born", "running"])
def test_a_coordinator_lost_before_the_first_cut(store: Store, tmp_path: Path, phase: str) -> None:
    city = City(store, tmp_path)
    city.hello("driver", "born")
    after = take_over(city, tmp_path)
    after.hello("driver", phase, -1 if phase == "born" else after.c.epoch)
    after.step()
    assert after.c.halted is None
    after.prepare(after.c.newest, "driver")
    assert after.c.committed == after.c.newest
    assert after.lines["driver"].last("reply")["ok"]


def test_an_unknown_process_is_sent_away(city: City) -> None:
    line = city.hello("a", "running", city.c.epoch, launch="of another time")
    assert line.kinds() == ["stop"]


# -- requests that are repeated ----------------------------------------------------------------------


def test_a_savepoint_asked_for_again_over_another_link_is_one_savepoint(city: City) -> None:
    city.request(5, "savepoint", label="x", asked="n-5")
    number = city.c.newest
    city.hang_up("driver")
    city.hello("driver", "running", city.c.epoch)
    city.request(5, "savepoint", label="x", asked="n-5")
    assert city.c.newest == number
    city.prepare(number, "driver", "a", "b")
    reply = city.lines["driver"].last("reply")
    assert reply["ok"] and reply["value"]["checkpoint"] == number


def test_a_savepoint_that_the_lost_coordinator_made_is_answered_by_the_next(
    city: City, tmp_path: Path
) -> None:
    city.request(5, "savepoint", label="x", asked="n-5")
    number = city.c.newest
    city.prepare(number, "driver", "a", "b")
    after = take_over(city, tmp_path)
    epoch = after.c.catalog.epoch(city.lineage)
    for name in ("driver", "a", "b"):
        after.hello(name, "running", epoch)
    after.request(5, "savepoint", label="x", asked="n-5")
    reply = after.lines["driver"].last("reply")
    assert reply["ok"] and reply["value"]["checkpoint"] == number
    after.request(6, "savepoint", label="x", asked="n-6")
    assert not after.lines["driver"].last("reply")["ok"]


def test_a_fork_names_what_it_follows(city: City, store: Store, tmp_path: Path) -> None:
    store.catalog.release_lease(city.lease)
    lease = store.catalog.acquire_lease("city", city.lease.owner, 1e9, 0.0)
    fork = store.catalog.create_lineage(lease, (city.lineage, 2))
    store.catalog.release_lease(lease)
    after = City(store, tmp_path, fork)
    after.c.recoverer.resume_newest()
    assert after.c.resumed == 2
    after.hello("driver", "born")
    for name in ("a", "b"):
        after.hello(name, "restored", after.c.epoch)
    confirm(after, "driver")
    assert after.c.flowing
    number = after.cut("driver", "a", "b")
    row = next(row for row in store.catalog.checkpoints("city", lineage=fork) if row.checkpoint == number)
    assert store.read_manifest(row).parent_checkpoint == (city.lineage, 2)
    assert number == 3
