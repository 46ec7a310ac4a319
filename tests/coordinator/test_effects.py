"""Effects at the coordinator, packet by packet: early checkpoints, claims, outcomes, losses, take-overs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from cutline.barrier import Member
from cutline.coordinator import effects as module
from cutline.coordinator import moving
from cutline.coordinator.effect_rows import forgotten
from cutline.coordinator.questions import outcome_row
from cutline.coordinator.telling import lines_about
from cutline.errors import Corrupt, EffectUnknown, StorageError
from cutline.participant.effect_request import EffectRequest
from cutline.participant.messages import unpack_error
from cutline.participant.places import machine_id
from cutline.participant.processes import process_started
from cutline.storage import Store
from cutline.storage.effects import LIVE, PERSON, EffectRow

from .city import City

ALIVE = {"pid": os.getpid(), "started": process_started(os.getpid()), "machine": machine_id()}
GONE = {**ALIVE, "started": 0.5}


@pytest.fixture
def city(store: Store, tmp_path: Path) -> City:
    """A driver and a and b, with one cut of all."""
    made = City(store, tmp_path)
    made.open_for_business("a", "b")
    return made


def claim(city: City, who: str = "a", **changes: Any) -> None:
    fields = {
        "key": "r:k", "number": 1, "function": "m:pay", "digest": b"d", "repeatable": False,
        "checkpoint": city.c.committed, "since": 1, "executor": ALIVE, "after": 0, "timeout": None,
    }  # fmt: skip
    city.say(who, "effect_claim", **{**fields, **changes})


def ending(city: City, who: str = "a", **changes: Any) -> None:
    fields = {"key": "r:k", "attempt": 1, "state": "done", "answer": b"\x91\x07", "blob": None, "by": ""}
    city.say(who, "effect_ending", **{**fields, **changes})


def verdict(city: City, who: str = "a") -> tuple[str, int]:
    said = city.lines[who].last("effect_verdict")
    return said["verdict"], said["attempt"]


def silence(city: City, who: str = "a") -> bool:
    return "effect_verdict" not in [doc["kind"] for doc in city.lines[who].heard]


def states(city: City) -> list[str]:
    return [row.state for row in city.store.catalog.effects(city.lineage)]


def test_an_early_checkpoint_is_shared_and_its_sweep_waits_for_the_claims(
    city: City, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []
    monkeypatch.setattr(city.c, "_sweep", lambda: swept.append(city.c.committed))
    before = city.c.newest
    city.say("a", "effect_cut")
    city.say("b", "effect_cut")
    assert city.c.newest == before + 1
    city.prepare(city.c.newest, "driver", "a", "b")
    assert city.c.committed == before + 1 and not swept
    claim(city)
    assert verdict(city) == ("granted", 1) and swept == [before + 1]
    (row,) = [row for row in city.store.catalog.checkpoints("city") if row.checkpoint == before + 1]
    assert row.summary["early"] is True
    # Without a claim it waits for a moment only.
    city.step(1.0)
    city.say("a", "effect_cut")
    city.prepare(city.c.newest, "driver", "a", "b")
    assert len(swept) == 1
    city.step(module.PUT_OFF)
    assert len(swept) == 2


def test_an_outcome_is_recorded_before_it_is_confirmed(city: City) -> None:
    claim(city)
    assert city.store.catalog.horizon(city.lineage) == city.c.committed
    ending(city)
    assert states(city) == ["done"]
    assert city.lines["a"].last("effect_confirmed")["final"] == 1
    claim(city)
    said = city.lines["a"].last("effect_verdict")
    assert (said["verdict"], said["ok"], said["answer"]) == ("recorded", True, b"\x91\x07")


def test_a_claim_of_another_epoch_is_not_heard_and_an_outcome_is(city: City) -> None:
    claim(city)
    city.dies("b")
    claim(city, key="r:late", epoch=city.c.epoch - 1)
    assert [row.key for row in city.store.catalog.effects(city.lineage)] == ["r:k"]
    ending(city, epoch=city.c.epoch - 1)
    assert states(city) == ["done"]


def test_another_process_waits_until_the_older_one_is_surely_gone(city: City) -> None:
    claim(city, executor=ALIVE)
    claim(city, "b")
    city.step(10 * module.POLL)
    assert silence(city, "b")
    # The system that runs it says so.
    city.c.effects.process_ended(city.c.roster.seats["a"].launch)
    city.step(module.POLL)
    assert verdict(city, "b") == ("unknown", 1)
    claim(city, "b", after=1)
    assert verdict(city, "b") == ("granted", 2)
    assert states(city) == ["unknown", ""]
    # The older one was only slow: what it has done counts.
    ending(city)
    city.lines["b"].heard.clear()
    claim(city, "b")
    assert verdict(city, "b") == ("recorded", 1)


def test_the_kernel_or_the_deadline_says_so_too(city: City) -> None:
    claim(city, executor=GONE)
    claim(city, "b")
    assert verdict(city, "b") == ("unknown", 1)
    claim(city, key="r:timed", timeout=5.0, executor={**ALIVE, "machine": "elsewhere"})
    city.lines["b"].heard.clear()
    claim(city, "b", key="r:timed")
    city.step(10.0)
    assert silence(city, "b")
    city.step(5.0 + module.MARGIN + module.POLL)
    assert verdict(city, "b") == ("unknown", 1)


def test_a_clock_that_is_set_ahead_ends_no_deadline(city: City) -> None:
    """Nor one that is set back: who calls measures time by another clock."""
    shift = [0.0]
    city.c.wall = lambda: city.clock() + shift[0]
    claim(city, key="r:timed", timeout=5.0, executor={**ALIVE, "machine": "elsewhere"})
    claim(city, "b", key="r:timed")
    for days in (30, 60, -30, 20):
        shift[0] = days * 86400.0
        city.step(module.POLL)
        assert silence(city, "b")
    # That was not begun, and is granted again: it has its time anew.
    city.step(12.0)
    claim(city, key="r:timed", timeout=5.0, executor={**ALIVE, "machine": "elsewhere"})
    city.step(12.0)
    assert silence(city, "b")
    city.step(5.0 + module.MARGIN)
    assert verdict(city, "b") == ("unknown", 1)
    # What is claimed afterwards goes by the clock as it is now.
    city.lines["b"].heard.clear()
    claim(city, key="r:later", timeout=5.0, executor={**ALIVE, "machine": "elsewhere"})
    claim(city, "b", key="r:later")
    city.step(10.0)
    assert silence(city, "b")
    city.step(5.0 + module.MARGIN + module.POLL)
    said = {doc["key"]: doc["verdict"] for doc in city.lines["b"].heard if doc["kind"] == "effect_verdict"}
    assert said["r:later"] == "unknown"


def test_what_only_a_person_can_end_is_told_once(city: City) -> None:
    claim(city, executor={**ALIVE, "machine": "elsewhere"})
    claim(city, "b")
    kinds = [doc["what"] for doc in city.lines["driver"].heard if doc["kind"] == "notice"]
    assert "effect_waits" not in kinds
    # The seat has another process now, and nothing says what became of the older one.
    city.c.roster.seats["a"].launch = "another"
    city.step(60.0)
    city.step(60.0)
    told = [doc for doc in city.lines["driver"].heard if doc.get("what") == "effect_waits"]
    assert len(told) == 1 and silence(city, "b")
    (line,) = lines_about(told[0])
    assert "a#1 m:pay (attempt 1)" in line and line.endswith("--resolve a#1`")
    city.call_on("person", "resolve_effect", effect="a#1")
    city.step(module.POLL)
    assert verdict(city, "b") == ("granted", 2)


def test_a_stopped_process_of_this_machine_is_ended_whatever_its_deadline(
    city: City, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(module, "ProcessLauncher", type(city.pad))
    monkeypatch.setattr(city.pad, "end", lambda seat: ended.append(seat.pid))
    claim(city, timeout=5.0)
    # No seat knows that process any more.
    city.c.roster.seats["a"].launch = "another"
    city.step(60.0)
    city.lines["a"].heard.clear()
    claim(city)
    assert silence(city) and ended == [os.getpid()]
    monkeypatch.setattr(module, "process_alive", lambda *_process: False)
    city.step(module.POLL)
    assert verdict(city) == ("unknown", 1)


def test_a_coordinator_that_takes_over_gives_the_lost_answer_again(city: City, tmp_path: Path) -> None:
    claim(city)
    city.store.catalog.release_lease(city.lease)
    after = City(city.store, tmp_path, city.lineage)
    after.pad.living = set(city.pad.living)
    after.c.recoverer.take_over()
    for name in ("driver", "a", "b"):
        after.hello(name, "running", after.c.epoch)
    claim(after)
    assert verdict(after) == ("granted", 1)
    # The older one wakes up, and neither grants nor records anything.
    claim(city, key="r:other")
    ending(city)
    assert (city.c.ended or "").startswith("fenced") and states(after) == [""]


def test_a_catalog_that_does_not_answer_is_asked_again(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_given: Any) -> Any:
        raise StorageError("away")

    with monkeypatch.context() as patch:
        patch.setattr(city.c.catalog, "journal", away)
        claim(city)
        city.step(module.POLL)
        assert silence(city)
    city.step(module.POLL)
    assert verdict(city) == ("granted", 1)


def test_all_who_speak_of_one_attempt_are_answered(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_given: Any) -> Any:
        raise StorageError("away")

    claim(city, key="u:k")
    with monkeypatch.context() as patch:
        patch.setattr(city.c.catalog, "journal", away)
        ending(city, key="u:k")
        # It has asked the world, because the other one's deadline had passed.
        ending(city, "b", key="u:k", by="reconcile")
    city.step(module.POLL)
    assert [city.lines[who].last("effect_confirmed")["final"] for who in "ab"] == [1, 1]


def damage(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows under one of the keys cannot be read any more."""
    whole = city.c.catalog.journal

    def damaged(lease: Any, lineage: str, endings: Any, claims: Any, *rest: Any) -> Any:
        if any(each.key == "r:k" for each in (*endings, *claims)):
            raise Corrupt("effect r:k is damaged")
        return whole(lease, lineage, endings, claims, *rest)

    monkeypatch.setattr(city.c.catalog, "journal", damaged)


def test_a_row_that_cannot_be_read_halts_and_what_others_have_done_is_recorded(
    city: City, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(city, "b", key="r:other")
    damage(city, monkeypatch)
    claim(city)
    halt = city.lines["a"].last("halt")
    assert isinstance(unpack_error(halt["error"], participant="test", live={}), Corrupt) and silence(city)
    city.step(module.POLL)
    ending(city, "b", key="r:other")
    assert states(city) == ["done"]


def test_what_nobody_knows_halts_and_then_nothing_is_granted(city: City) -> None:
    claim(city)
    city.say("a", "effect_unknown", key="r:k", text="a#1 m:pay (attempt 1)")
    city.step()
    halt = city.lines["a"].last("halt")
    assert isinstance(unpack_error(halt["error"], participant="test", live={}), EffectUnknown)
    assert "a#1 m:pay (attempt 1)" in halt["text"]
    claim(city, "b", key="r:other")
    assert silence(city, "b")
    ending(city)
    assert states(city) == ["done"]


def test_a_rest_waits_for_calls_and_grants_nothing(city: City) -> None:
    claim(city)
    city.request(7, "rest_effects", seconds=5.0)
    claim(city, "b", key="r:other")
    assert silence(city, "b") and city.lines["driver"].last("reply")["number"] != 7
    ending(city)
    said = city.lines["driver"].last("reply")
    assert (said["number"], said["value"]) == (7, {"under_way": 0})
    city.step(module.QUIET)
    city.step(module.POLL)
    assert verdict(city, "b") == ("granted", 1)


def test_a_last_checkpoint_that_takes_long_is_rested_for(city: City) -> None:
    """What it holds is asked for when it has committed: that would begin, and be cut off by the end."""
    city.request(7, "rest_effects", seconds=5.0)
    assert city.lines["driver"].last("reply")["number"] == 7
    city.request(8)
    for _ in range(4):
        city.step(module.QUIET / 2)
    city.prepare(city.c.newest, "driver", "a", "b")
    claim(city)
    city.step(module.POLL)
    assert silence(city)
    # If no end comes, it is granted.
    city.step(module.QUIET)
    assert verdict(city) == ("granted", 1)


def test_questions_that_were_withdrawn_are_looked_for_no_more(city: City) -> None:
    questions = city.c.effects.questions
    for number in (1, 2, 3):
        key = f"r:{number}"
        said: list[Any] = ["go on?", {}, None]
        request = EffectRequest(number, PERSON, said, key, b"d", "halt", False, None, 0, city.lineage, 1)
        city.say("a", "effect_watch", request=request.to_doc(), launch="")
    city.say("b", "effect_done", checkpoint=city.c.committed, below=9, pending=[])
    assert len(questions.open) == 3
    # The third was asked after that checkpoint.
    city.say("a", "effect_done", checkpoint=city.c.committed, below=3, pending=[2])
    assert sorted(questions.open) == [("a", "r:2"), ("a", "r:3")]


def test_who_says_that_there_is_an_answer_does_not_wait_for_the_next_look(city: City) -> None:
    said: list[Any] = ["go on?", {}, None]
    request = EffectRequest(1, PERSON, said, "r:1", b"d", "halt", False, None, 0, city.lineage, 1)
    city.say("a", "effect_watch", request=request.to_doc(), launch="")
    city.step()
    seat = city.c.roster.seats["a"]
    made = outcome_row(city.lineage, seat.member, request, 1, "done", ["yes"], "person", city.c.wall())
    city.c.catalog.settle("city", made)
    city.step()
    assert not [doc for doc in city.lines["a"].heard if doc["kind"] == "effect_verdict"]
    # Whatever epoch he knows of.
    city.say("driver", "effect_answered", epoch=-1)
    city.step()
    assert city.lines["a"].last("effect_verdict")["verdict"] == "recorded"


def test_nothing_is_granted_to_who_is_being_moved(city: City) -> None:
    launch = city.c.roster.seats["a"].launch
    city.c.mover.ending[launch] = None
    claim(city)
    claim(city, "b", key="r:other")
    assert silence(city) and verdict(city, "b") == ("granted", 1)
    assert [row.key for row in city.store.catalog.effects(city.lineage)] == ["r:other"]
    del city.c.mover.ending[launch]
    city.step()
    assert verdict(city) == ("granted", 1)


def test_a_forks_effects_are_blocked_and_can_be_allowed(city: City, tmp_path: Path) -> None:
    fork = city.store.catalog.create_lineage(city.lease, (city.lineage, city.c.committed))
    city.store.catalog.release_lease(city.lease)
    there = City(city.store, tmp_path, fork)
    there.open_for_business("a")
    claim(there)
    claim(there, key="r:read", repeatable=True, checkpoint=0)
    assert [doc["key"] for doc in there.lines["a"].heard if doc["kind"] == "effect_verdict"] == ["r:read"]
    assert there.lines["driver"].last("notice")["what"] == "effects_blocked"
    there.call_on("person", "allow_effects")
    there.step()
    assert there.lines["a"].last("effect_verdict")["key"] == "r:k"
    assert there.store.catalog.effects_rule(fork) == LIVE


def test_rows_go_when_no_cut_can_ask_for_them(city: City) -> None:
    claim(city, since=city.c.committed)
    ending(city)
    last = city.cut("driver", "a", "b")
    city.say("a", "effect_done", checkpoint=last, below=2, pending=[])
    city.step(module.TIDY)
    # The cut before still has it pending.
    assert [row.done for row in city.store.catalog.effects(city.lineage)] == [last]
    for number in (1, 2):
        city.store.delete_cut(city.lease, city.lineage, number)
    city.step(module.TIDY)
    city.step(module.TIDY)
    assert city.store.catalog.effects(city.lineage) == []


def test_rows_stay_for_an_older_checkpoint_that_may_yet_be_committed(city: City) -> None:
    city.request(98)
    older = city.c.newest
    claim(city, since=older)
    ending(city)
    last = city.cut("driver", "a", "b")
    assert last == older + 1 and older in city.c.open
    city.say("a", "effect_done", checkpoint=last, below=2, pending=[])
    city.step(module.TIDY)
    assert states(city) == ["done"]
    city.prepare(older, "driver", "a", "b")
    city.step(module.TIDY)
    assert states(city) == ["done"]


def test_outcomes_under_other_keys_are_recorded_beside_a_damaged_row(
    city: City, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("r:k", "r:other", "r:third"):
        claim(city, key=key)
    damage(city, monkeypatch)
    # All that came in one round.
    for key in ("r:k", "r:other", "r:third"):
        seat = city.c.roster.seats["a"]
        about = {"key": key, "attempt": 1, "state": "done", "answer": b"\x91\x07", "blob": None, "by": ""}
        city.c.effects.heard(seat, "effect_ending", about)
    city.step()
    assert states(city) == ["", "done", "done"] and not city.c.effects.endings
    assert city.c.halted is not None and "r:k is damaged" in city.c.halted["text"]
    confirmed = [doc["key"] for doc in city.lines["a"].heard if doc["kind"] == "effect_confirmed"]
    assert confirmed == ["r:other", "r:third"]


@pytest.mark.parametrize("returns", [True, False])
def test_who_moves_ends_when_its_calls_are_over(city: City, returns: bool) -> None:
    city.c.roster.seats["a"].node = "node"
    claim(city)
    assert verdict(city) == ("granted", 1)
    city.c.mover.drain("node")
    city.prepare(city.c.newest, "driver", "a", "b")
    city.step()
    # Nothing more is granted to it, and it goes on.
    claim(city, key="r:other")
    assert states(city) == [""] and city.pad.killed == []
    if returns:
        ending(city)
    else:
        city.step(moving._REST)
    city.step()
    assert city.pad.killed == ["a"]
    # One without calls ends at once.
    city.c.roster.seats["b"].node = "other"
    city.c.mover.drain("other")
    city.prepare(city.c.newest, "driver", "a", "b")
    assert city.pad.killed[-1] == "b"


def test_who_was_to_move_when_the_system_halted_stays(city: City) -> None:
    city.c.roster.seats["a"].node = "node"
    claim(city)
    city.c.mover.drain("node")
    city.prepare(city.c.newest, "driver", "a", "b")
    city.c.halt("a reason.", b"")
    city.step(2 * moving._REST)
    assert city.pad.killed == [] and not city.c.mover.ending


def test_rows_of_a_fork_are_not_kept_for_the_cut_that_it_began_with() -> None:
    fields: dict[str, Any] = {name: 0 for name in EffectRow.__dataclass_fields__}
    row = EffectRow(
        **{**fields, "key": "r:k", "participant": "a", "birth": 1, "number": 5, "state": "done", "done": None}
    )
    done = {Member("a", 1): (12, 6, frozenset[int]())}
    # Asked for in the fork, and claimed before any cut had it: the origin's cut, 9, has it not.
    assert forgotten([row], done, [9, 12], 0.0, 9) == ([], [row])
    # It was pending there, and may be asked for again as long as the fork may go back to it.
    pending = dataclasses.replace(row, since=8)
    assert forgotten([pending], done, [9, 12], 0.0, 9) == ([("r:k", 12)], [])
    assert forgotten([pending], done, [12], 0.0, 9) == ([], [pending])
    # Without an origin, any older cut may have it.
    assert forgotten([row], done, [9, 12], 0.0) == ([("r:k", 12)], [])
