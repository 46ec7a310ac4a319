"""Output at the coordinator, packet by packet: order, horizon, recoveries, take-overs, limits of patience."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator import cli
from cutline.coordinator import outlet as pauses
from cutline.coordinator import output as module
from cutline.coordinator.effects import Effects
from cutline.coordinator.outlet import opened_sinks
from cutline.coordinator.telling import lines_about
from cutline.errors import StorageError, SystemHalted
from cutline.storage import Store
from cutline.storage.effects import BLOCK, LIVE
from cutline.storage.sinks import FileSink, Origin
from tests.coordinator.test_cli_store import run
from tests.system.living import until

from .city import City


@pytest.fixture
def sinks(tmp_path: Path) -> dict[str, Any]:
    return {"lines": FileSink(tmp_path / "lines").to_doc(), "ears": {"kind": "call", "function": "m:hear"}}


@pytest.fixture
def city(store: Store, tmp_path: Path, sinks: dict[str, Any]) -> Iterator[City]:
    """A driver and a and b, with one cut of all."""
    made = City(store, tmp_path, sinks=sinks)
    made.c.output.take(opened_sinks(sinks))
    made.open_for_business("a", "b")
    yield made
    made.c.output.close()


def cut(city: City, **emits: dict[str, int]) -> int:
    """A committed checkpoint in which participants had emitted so much for sinks."""
    city.request(99)
    city.prepare(city.c.newest, "driver")
    for name in ("a", "b"):
        city.prepare(city.c.newest, name, **({"emits": emits[name]} if name in emits else {}))
    return city.c.committed


def wanted(city: City, who: str, kind: str = "emit_want") -> dict[str, Any]:
    return city.lines[who].last(kind)


def silent(city: City, who: str) -> bool:
    return not [doc for doc in city.lines[who].heard if doc["kind"] in ("emit_want", "emit_give")]


def have(city: City, who: str, *numbers: int, more: bool = False, lineage: str = "") -> None:
    doc = wanted(city, who)
    rows = [[n, city.c.committed, lineage or city.lineage, f"{who} {n}\n".encode()] for n in numbers]
    city.lines[who].heard.clear()
    city.say(who, "emit_have", sink="lines", round=doc["round"], records=rows, more=more)
    written(city)


def written(city: City) -> None:
    """The sink's thread has done what it was given, and the coordinator has heard of it."""
    outlet = city.c.output.outlets["lines"]

    def is_idle() -> bool:
        city.step()
        return outlet.phase not in ("publishing", "opening")

    until(is_idle, "the sink's thread")


def lines(tmp_path: Path) -> list[str]:
    return (tmp_path / "lines").read_text().splitlines()


def notices(city: City, what: str) -> list[dict[str, Any]]:
    return [doc for doc in city.lines["driver"].heard if doc["kind"] == "notice" and doc["what"] == what]


def test_in_the_order_of_checkpoints_and_numbers(city: City, tmp_path: Path) -> None:
    first = cut(city, a={"lines": 2}, b={"lines": 1})
    assert (wanted(city, "a")["upto"], wanted(city, "a")["after"]) == (2, {}) and silent(city, "b")
    # The horizon is raised before anything is asked for.
    assert city.store.catalog.horizon(city.lineage) == first
    cut(city, a={"lines": 3}, b={"lines": 1})
    assert len([doc for doc in city.lines["a"].heard if doc["kind"] == "emit_want"]) == 1
    have(city, "a", 1, more=True)
    assert wanted(city, "a")["after"] == {city.lineage: 1}
    have(city, "a", 2)
    assert city.lines["a"].last("emit_done")["after"] == {city.lineage: 2}
    # b's of the older checkpoint come before a's of the newer one.
    have(city, "b", 1)
    have(city, "a", 3)
    assert lines(tmp_path) == ["a 1", "a 2", "b 1", "a 3"]
    found = city.store.catalog.output([city.lineage])
    assert found == {
        ("lines", Origin(city.lineage, name, city.c.roster.seats[name].member.birth)): number
        for name, number in (("a", 3), ("b", 1))
    }
    # Nothing new, but a's image still had what is published by now: it hears that again.
    city.lines["a"].heard.clear()
    cut(city, a={"lines": 3})
    assert city.lines["a"].last("emit_done")["after"] == {city.lineage: 3} and silent(city, "a")


def test_answers_of_another_round_or_epoch_are_not_heard(city: City, tmp_path: Path) -> None:
    cut(city, a={"lines": 1})
    number = wanted(city, "a")["round"]
    row = [1, 1, city.lineage, b"wrong\n"]
    for round_, epoch in ((number - 1, city.c.epoch), (number, city.c.epoch - 1)):
        city.say("a", "emit_have", sink="lines", round=round_, records=[row], more=False, epoch=epoch)
    city.say("a", "emit_have", sink="none", round=number, records=[row], more=False)
    assert city.c.output.outlets["lines"].phase == "asking"
    have(city, "a", 1)
    assert lines(tmp_path) == ["a 1"]


def test_who_is_busy_is_not_asked_again_and_who_dials_again_is(city: City) -> None:
    cut(city, a={"lines": 1})
    city.lines["a"].heard.clear()
    city.step(10 * module.ASK_AGAIN)
    assert silent(city, "a")
    city.hang_up("a")
    city.hello("a", "running", epoch=city.c.epoch)
    city.step(module.ASK_AGAIN)
    assert wanted(city, "a")["upto"] == 1
    have(city, "a", 1)


def test_after_a_recovery_nothing_goes_on_before_everybody_has_said_what_is_owed(
    city: City, tmp_path: Path
) -> None:
    before = city.c.committed
    newest = cut(city, a={"lines": 2}, b={"lines": 5})
    have(city, "a", 1, 2)
    recover(city, "b")
    assert silent(city, "a") and silent(city, "b")
    assert {name for name in "ab" if "emit_owed" in [d["kind"] for d in city.lines[name].heard]} == {"a", "b"}
    # b's were captured in an older checkpoint, some of them.
    city.say("a", "emit_owes", owed={"lines": [[newest, 2]]})
    assert silent(city, "a")
    city.say("b", "emit_owes", owed={"lines": [[before, 4], [newest, 5]]})
    have(city, "b", 4)
    # a's were published before the loss: it is told so when it is asked.
    assert wanted(city, "a")["after"] == {city.lineage: 2}
    have(city, "a")
    have(city, "b", 5)
    assert lines(tmp_path) == ["a 1", "a 2", "b 4", "b 5"]
    # Asked again, for its answer may be lost with a link; what it says twice changes nothing.
    city.say("b", "emit_owes", owed={"lines": [[newest, 9]]})
    assert not city.c.output.outlets["lines"].entries


def reborn(city: City, who: str) -> None:
    """It has left, and somebody else has its name."""
    seat = city.c.roster.seats[who]
    seat.member = seat.member._replace(birth=seat.member.birth + 50)


def test_who_comes_under_the_name_of_one_that_has_left_counts_anew(city: City, tmp_path: Path) -> None:
    cut(city, a={"lines": 3})
    have(city, "a", 1, 2, 3)
    reborn(city, "a")
    cut(city, a={"lines": 1})
    assert (wanted(city, "a")["upto"], wanted(city, "a")["after"]) == (1, {})
    have(city, "a", 1)
    assert lines(tmp_path) == ["a 1", "a 2", "a 3", "a 1"]


@pytest.mark.parametrize("asked", [False, True])
def test_who_has_left_has_nothing_to_say_and_keeps_nobody_waiting(
    city: City, tmp_path: Path, asked: bool
) -> None:
    """Neither does another one under its name give what no checkpoint holds."""
    if not asked:
        city.c.output.outlets["lines"].again_at = city.c.now() + 5.0
    cut(city, a={"lines": 2}, b={"lines": 1})
    assert silent(city, "a") is not asked
    city.lines["a"].heard.clear()
    reborn(city, "a")
    for _ in range(2):
        city.step(10 * module.ASK_AGAIN)
    assert silent(city, "a")
    have(city, "b", 1)
    assert lines(tmp_path) == ["b 1"] and not city.c.output.outlets["lines"].entries


def test_what_is_owed_of_an_older_checkpoint_keeps_its_place(city: City, tmp_path: Path) -> None:
    """Also where another checkpoint commits before all have said what they owe."""
    older = cut(city, a={"lines": 2}, b={"lines": 2})
    recover(city, "b")
    newest = cut(city, a={"lines": 3}, b={"lines": 3})
    city.say("a", "emit_owes", owed={"lines": [[older, 2], [newest, 3]]})
    city.say("b", "emit_owes", owed={"lines": [[older, 2]]})
    for who, number in (("a", 2), ("b", 2), ("a", 3), ("b", 3)):
        assert wanted(city, who)["upto"] == number
        have(city, who, number)
    assert lines(tmp_path) == ["a 2", "b 2", "a 3", "b 3"]


def test_who_has_not_heard_of_the_newest_commit_is_asked_for_what_it_holds(
    city: City, tmp_path: Path
) -> None:
    """The coordinator died between the row and its announcement."""
    cut(city, a={"lines": 2})
    recover(city, "b")
    city.say("a", "emit_owes", owed={})
    assert wanted(city, "a")["upto"] == 2
    have(city, "a", 1, 2)
    assert lines(tmp_path) == ["a 1", "a 2"]


def recover(city: City, who: str) -> None:
    for line in city.lines.values():
        line.heard.clear()
    city.dies(who)
    for name in ("driver", "a", "b"):
        if name == who:
            city.hello(name, "restored", epoch=city.c.epoch)
        else:
            city.say(name, "restored", checkpoint=city.c.recoverer.row.checkpoint, fit=None)
    assert city.c.flowing
    city.step()


def test_a_new_coordinator_asks_those_of_the_newest_checkpoint(
    city: City, store: Store, tmp_path: Path, sinks: dict[str, Any]
) -> None:
    cut(city, a={"lines": 2})
    # The older one still holds the file, as one that stands still would.
    store.catalog.release_lease(city.lease)
    after = City(store, tmp_path, city.lineage, sinks=sinks)
    after.pad.living = set(city.pad.living)
    after.c.recoverer.take_over()
    for name in ("driver", "a", "b"):
        after.hello(name, "running", after.c.epoch)
    assert after.c.flowing and "emit_owed" in after.lines["a"].kinds()
    assert "emit_owed" not in after.lines["b"].kinds()
    after.say("a", "emit_owes", owed={"lines": [[after.c.committed, 2]]})
    outlet = after.c.output.outlets["lines"]

    def trouble() -> str:
        after.step()
        return outlet.trouble

    assert "one at a time" in until(trouble, "the file to be held by the older one")
    assert after.c.output.left()["lines"] == outlet.trouble
    # It wakes up, and finds itself fenced when it wants to note how far it is.
    have(city, "a", 1)
    assert city.c.ended is not None and city.c.ended.startswith("fenced")
    city.c.output.outlets["lines"].close()
    after.step(pauses.LONGEST_PAUSE)
    written(after)
    # What the older one had written counts.
    assert wanted(after, "a")["after"] == {city.lineage: 1}
    have(after, "a", 2)
    assert lines(tmp_path) == ["a 1", "a 2"]


def test_a_function_is_called_by_its_participant(city: City) -> None:
    cut(city, a={"ears": 3})
    doc = wanted(city, "a", "emit_give")
    assert (doc["function"], doc["upto"], doc["after"]) == ("m:hear", 3, {})
    # It is asked again: perhaps it was busy with an older call.
    city.lines["a"].heard.clear()
    city.step(module.ASK_AGAIN)
    doc = wanted(city, "a", "emit_give")
    given = {"sink": "ears", "round": doc["round"], "numbers": {city.lineage: 2}}
    city.say("a", "emit_given", **given, error="ValueError: no")
    outlet = city.c.output.outlets["ears"]
    assert (outlet.phase, outlet.trouble) == ("idle", "function of sink 'ears', in 'a': ValueError: no")
    city.step(pauses.FIRST_PAUSE)
    doc = wanted(city, "a", "emit_give")
    assert doc["after"] == {city.lineage: 2}
    city.say("a", "emit_given", sink="ears", round=doc["round"], numbers={city.lineage: 3}, error="")
    doc = wanted(city, "a", "emit_give")
    city.say("a", "emit_have", sink="ears", round=doc["round"], records=[], more=False)
    assert city.lines["a"].last("emit_done")["after"] == {city.lineage: 3}
    assert not outlet.entries and not outlet.trouble
    assert [notice["what"] for notice in notices(city, "sink_down") + notices(city, "sink_back")] == [
        "sink_down", "sink_back"
    ]  # fmt: skip


@pytest.mark.parametrize(("sink", "asked"), [("lines", "emit_want"), ("ears", "emit_give")])
def test_values_in_another_sinks_form_hold_up_their_sink_alone(city: City, sink: str, asked: str) -> None:
    other = {"lines": "ears", "ears": "lines"}[sink]
    cut(city, a={sink: 1}, b={other: 1})
    doc = wanted(city, "a", asked)
    city.say("a", "emit_unfit", sink=sink, round=doc["round"], text=f"sink {sink!r} was something else")
    assert city.c.output.left()[sink] == f"sink {sink!r} was something else"
    assert [notice["sink"] for notice in notices(city, "sink_down")] == [sink]
    wanted(city, "b", "emit_give" if sink == "lines" else "emit_want")
    # Asked again it says so again; people are told once.
    city.lines["a"].heard.clear()
    city.step(pauses.LONGEST_PAUSE)

    def is_asked() -> bool:
        city.step()
        return not silent(city, "a")

    until(is_asked, "the next question")
    doc = wanted(city, "a", asked)
    city.say("a", "emit_unfit", sink=sink, round=doc["round"], text=f"sink {sink!r} was something else")
    assert len(notices(city, "sink_down")) == 1 and city.c.halted is None


def test_a_sink_that_fails_is_tried_ever_less_often(city: City, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.unlink()
    path.mkdir()
    cut(city, a={"lines": 1})
    outlet = city.c.output.outlets["lines"]
    have(city, "a", 1)
    # Once is nothing that people need to hear of: a connection may have been cut.
    assert outlet.phase == "closed" and not notices(city, "sink_down")
    pause = outlet.pause
    for _ in range(10):
        city.step(outlet.pause)
        written(city)
        assert outlet.pause == min(2 * pause, pauses.LONGEST_PAUSE)
        pause = outlet.pause
    assert len(notices(city, "sink_down")) == 1
    path.rmdir()
    city.step(outlet.pause)
    written(city)
    city.step()
    have(city, "a", 1)
    assert lines(tmp_path) == ["a 1"] and outlet.pause == pauses.FIRST_PAUSE
    assert len(notices(city, "sink_back")) == 1


def test_the_catalog_away(city: City, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_given: Any) -> None:
        raise StorageError("away")

    with monkeypatch.context() as patch:
        patch.setattr(city.store.catalog, "publishing", away)
        cut(city, a={"lines": 1})
        city.step(module.ASK_AGAIN)
        # Nothing is published that a recovery could go back behind.
        assert silent(city, "a") and notices(city, "catalog_unreachable")
    city.step(module.ASK_AGAIN)
    with monkeypatch.context() as patch:
        patch.setattr(city.store.catalog, "published", away)
        have(city, "a", 1)
        assert lines(tmp_path) == ["a 1"]
    assert not city.store.catalog.output([city.lineage])
    city.step(module.ASK_AGAIN)
    assert list(city.store.catalog.output([city.lineage]).values()) == [1]


def test_what_is_blocked_missing_and_left(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    city.c.effects.rule = BLOCK
    cut(city, a={"lines": 1, "gone": 1})
    assert (
        silent(city, "a") and len(notices(city, "output_blocked")) == len(notices(city, "sink_missing")) == 1
    )
    asked = city.call_on("shell", "rest_output", seconds=5.0)
    assert asked.last("reply")["value"]["left"] == {
        "lines": "output of this fork is blocked", "gone": "the program does not name it"
    }  # fmt: skip
    monkeypatch.setattr(Effects, "allow", lambda self: setattr(self, "rule", LIVE))
    city.c.effects.allow()
    city.step()
    # Now it waits until all is published, or its time is over.
    asked = city.call_on("shell", "rest_output", seconds=5.0)
    assert "reply" not in asked.kinds()
    city.step(5.0)
    assert asked.last("reply")["value"]["left"] == {"lines": "", "gone": "the program does not name it"}
    asked = city.call_on("shell", "rest_output", seconds=5.0)
    have(city, "a", 1)
    assert asked.last("reply")["value"]["left"] == {"gone": "the program does not name it"}


def test_an_early_checkpoint_on_request(city: City) -> None:
    before = city.c.newest
    city.say("a", "emit_cut")
    assert city.c.newest == before + 1


def test_what_people_are_told() -> None:
    for doc, said in (
        (
            {"what": "sink_down", "text": "table away"},
            "table away; what was emitted is kept, and tried again",
        ),
        ({"what": "sink_back", "sink": "s"}, "sink 's' takes what was emitted again"),
        ({"what": "sink_changed", "text": "somebody changed it"}, "somebody changed it"),
        ({"what": "output_blocked", "sink": "s"}, "`cutline effects --allow`"),
        ({"what": "sink_missing", "sink": "s"}, "has none of that name"),
    ):
        (line,) = lines_about(doc)
        assert said in line


class Answering:
    """A connected client whose system has published all but what a full disk has not taken."""

    def __init__(self, rest: Any) -> None:
        self.rest = rest
        self.asked: list[str] = []

    def request(self, what: str, timeout: float = 120.0, **fields: Any) -> Any:
        self.asked.append(what)
        if what != "rest_output":
            return {"checkpoint": 7}
        assert fields["seconds"] < timeout
        if isinstance(self.rest, Exception):
            raise self.rest
        return {"left": self.rest}


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ({}, ""),
        ({"lines": "the disk is full"}, "not all of lines is published (the disk is full); the next start"),
        ({"lines": ""}, "not all of lines is published (not yet)"),
        (TimeoutError("no reply"), "is published is not known (no reply)"),
        (SystemHalted("it halted"), "is published is not known (it halted)"),
    ],
    ids=["all", "trouble", "late", "no reply", "halted"],
)
def test_stop_says_what_is_not_published(rest: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Answering(rest)
    monkeypatch.setattr(cli, "connected", lambda *_place: nullcontext(client))
    told = run("stop")
    assert client.asked == ["rest_effects", "checkpoint", "rest_output", "stop"]
    assert said in told and told.endswith("stopped at checkpoint 7\n")
    assert ("published" in told) is bool(rest)
