"""Questions to people: what may be asked, what an answer must be like, what an image holds."""

from __future__ import annotations

import asyncio
import gc
import re
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import pytest

import cutline
from cutline.errors import ClassMissing, Misuse, OutsideHandler, ReplayMismatch
from cutline.participant.answer_form import built, fault_of, form_of, plain, read_text, shown
from cutline.participant.classes import Classes
from cutline.participant.clock import CLOCK, Clock, wall
from cutline.participant.effect_book import Act, Book
from cutline.participant.effect_request import rekeyed
from cutline.participant.person import asked_of, id_of, withdraw
from tests.participant import desks
from tests.participant.desks import ME, Bench, bound


@dataclass
class Item:
    name: str
    cents: int | None = None


@dataclass
class Order:
    approved: bool
    items: list[Item] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)


@dataclass
class Endless:
    more: Endless | None = None


@dataclass
class Nowhere:
    what: Missing  # type: ignore[name-defined]  # noqa: F821


class Unheard:
    """No schema."""


class Asker:
    def __init__(self) -> None:
        self.got: list[Any] = []

    def sync(self, question: Any = "go on?", schema: Any = bool, **options: Any) -> None:
        cutline.ask_person(question, schema, **options).then(self.on_answer, "own")

    async def straight(self, question: str = "go on?") -> Any:
        first = await cutline.ask_person(question, bool, deadline=60)
        second = await cutline.ask_person(f"{question} {first}", Order)
        return first, second

    def on_answer(self, answer: Any, own: str) -> None:
        self.got.append((answer, own))


@contextmanager
def benched(clock: desks.Clock | None = None) -> Iterator[Bench]:
    bench = Bench(Asker, clock)
    bench.desk.lineage = "line"
    with bound(bench):
        yield bench


def answered(bench: Bench, number: int, value: Any) -> None:
    bench.desk.effects.pop(number)
    bench.desk.answered(number, True, [value])
    bench.desk.drain()
    bench.collect()


def test_a_question_is_kept_until_its_answer_is_delivered() -> None:
    with benched() as bench:
        bench.tell("sync")
        (request,) = bench.desk.effects.values()
        assert asked_of(request) == ("go on?", {"type": "boolean"}, None) and request.is_question
        assert bench.desk.fresh_effects == [request] and not bench.sent
        other = bench.restored()
        assert list(other.desk.effects.values()) == [request] and other.desk.fresh_effects == []
        answered(other, request.number, True)
        assert other.desk.instance.got == [(True, "own")]  # type: ignore[attr-defined]
        assert not other.desk.effects and not other.desk.asks


def test_an_async_handler_asks_the_same_questions_again() -> None:
    with benched() as bench:
        bench.ask(1, "straight")
        (request,) = bench.desk.effects.values()
        due = asked_of(request).due
        assert due is not None and 0 < due - wall() <= 60
        other = bench.restored()
    with bound(other):
        # The deadline stands, whenever it is run again.
        assert list(other.desk.effects.values()) == [request]
        answered(other, request.number, False)
        (request,) = other.desk.effects.values()
        assert asked_of(request).text == "go on? False"
        third = other.restored()
    with bound(third):
        answered(third, request.number, {"approved": True})
        assert third.answers_out() == {1: (False, {"approved": True})}


def test_another_question_in_a_re_run_is_found_out() -> None:
    class Other(Asker):
        async def straight(self, question: str = "go on?") -> Any:
            return await cutline.ask_person(f"please: {question}", bool, deadline=60)

    with benched() as bench:
        bench.ask(1, "straight")
        other = bench.restored(Other)
    assert isinstance(other.answers_out()[1], ReplayMismatch)


def test_the_id_names_who_asks_and_the_lineage() -> None:
    ids = set()
    for lineage, text, times in (("line", "a", 1), ("other", "a", 1), ("line", "b", 1), ("line", "a", 2)):
        with benched() as bench:
            bench.desk.lineage = lineage
            for _ in range(times):
                bench.tell("sync", text)
            request = bench.desk.fresh_effects[-1]
            ids.add(id_of(request, lineage, ME))
            assert id_of(request, lineage, ME).startswith(f"me#{times}.")
            assert id_of(rekeyed(request, "line", ME), "line", ME) == id_of(request, "line", ME)
    assert len(ids) == 4


WRONG = [
    pytest.param("", bool, {}, "is a text", id="no question"),
    pytest.param(7, bool, {}, "is a text, not 7", id="no text"),
    pytest.param("q" * 70_000, bool, {}, "at most 64 KiB", id="too long"),
    pytest.param("q", Unheard, {}, "schema is bool, int", id="a class that is no schema"),
    pytest.param("q", set, {}, "schema is bool, int", id="what JSON has not"),
    pytest.param("q", dict[int, str], {}, "schema is bool, int", id="an object with numbers for names"),
    pytest.param("q", Endless, {}, "contains itself", id="a schema without end"),
    pytest.param("q", Nowhere, {}, "cannot be told: name 'Missing'", id="a type that is not there"),
    pytest.param("q", {"type": "decimal"}, {}, "'type' cannot be", id="no type of JSON"),
    pytest.param("q", {"pattern": "a+"}, {}, "'pattern' is not supported", id="a keyword that nobody checks"),
    pytest.param("q", {"items": {"oneOf": []}}, {}, "schema.items: keyword 'oneOf'", id="one further down"),
    pytest.param("q", {"enum": []}, {}, "'enum' cannot be", id="nothing fits"),
    pytest.param("q", {"minimum": "1"}, {}, "'minimum' cannot be", id="no number"),
    pytest.param("q", bool, {"deadline": 0}, "deadline is seconds", id="no time at all"),
    pytest.param("q", bool, {"deadline": True}, "deadline is seconds", id="no seconds"),
    pytest.param("q", bool, {"deadline": float("inf")}, "deadline is seconds", id="endless"),
    pytest.param("q", bool, {"deadline": datetime(2030, 1, 1)}, "time zone", id="a date of nowhere"),
]


@pytest.mark.parametrize(("question", "schema", "options", "text"), WRONG)
def test_what_cannot_be_asked_is_refused(question: Any, schema: Any, options: Any, text: str) -> None:
    with benched() as bench, pytest.raises(Misuse, match=text):
        bench.desk.instance.sync(question, schema, **options)  # type: ignore[attr-defined]


def test_outside_of_a_handler_nobody_asks() -> None:
    with pytest.raises(OutsideHandler, match="no handler runs here"):
        cutline.ask_person("anybody there?")


def test_deadlines_are_dates() -> None:
    then = datetime(2040, 5, 6, tzinfo=timezone.utc)
    with benched() as bench:
        for deadline in (then, timedelta(days=2)):
            bench.desk.instance.sync(deadline=deadline)  # type: ignore[attr-defined]
        first, second = (asked_of(each).due for each in bench.desk.effects.values())
    assert first == then.timestamp() and second is not None
    assert 0 <= 2 * 86400 - (second - wall()) < 3600


# -- what an answer must be like -----------------------------------------------------------------


FITS: list[tuple[Any, list[Any], list[tuple[Any, str]]]] = [
    (None, [None, 1, "x", {"a": [1]}], []),
    (bool, [True, False], [(1, "answer is 1 where true or false is wanted"), ("true", "true or false")]),
    (int, [3, -1], [(True, "an integer"), (3.0, "an integer"), ("3", "an integer")]),
    (float, [3, 0.5], [(True, "a number"), (None, "a number")]),
    (str, ["", "x"], [(3, "a text")]),
    (list[int], [[], [1, 2]], [([1, "x"], r"answer\[1\] is \"x\""), ({}, "a list")]),
    (dict[str, int], [{}, {"a": 1}], [({"a": "x"}, "answer.a is"), ([], "an object")]),
    (int | None, [3, None], [("x", "an integer is wanted; or: .* null is wanted")]),
    (Literal["yes", "no"], ["yes"], [("maybe", 'none of "yes", "no"')]),
    (Literal[1, True], [1, True], [(2, "none of 1, true")]),
    (
        Order,
        [{"approved": True}, {"approved": False, "items": [{"name": "x"}], "notes": {"n": 1.5}}],
        [
            ({}, "answer lacks 'approved'"),
            ({"approved": 1}, "answer.approved is 1"),
            ({"approved": True, "by": "ann"}, "answer has 'by', and may have 'approved', 'items', 'notes'"),
            ({"approved": True, "items": [{"name": 1}]}, r"answer.items\[0\].name is 1"),
        ],
    ),
    (
        {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 3}},
            "title": "t",
        },
        [{}, {"n": 1}, {"n": 3, "m": 0}],
        [({"n": 0}, "answer.n is 0, against minimum 1"), ({"n": 4}, "maximum 3")],
    ),
    (
        {"type": ["string", "array"], "minLength": 2, "maxLength": 3, "minItems": 1, "maxItems": 2},
        ["ab", [1]],
        [("a", "minLength 2"), ("abcd", "maxLength 3"), ([], "minItems 1"), ([1, 2, 3], "maxItems 2")],
    ),
    ({"const": {"a": 1}}, [{"a": 1}, {"a": 1.0}], [({"a": True}, 'where {"a": 1} is wanted')]),
    ({"enum": [[1, None]]}, [[1.0, None]], [([1], "none of"), ([True, None], "none of"), ({}, "none of")]),
    (typing.List, [[], [1, "x"]], [({}, "a list")]),  # noqa: UP006
    (typing.Dict, [{}, {"a": [1]}], [([], "an object")]),  # noqa: UP006
]


@pytest.mark.parametrize(("schema", "good", "bad"), FITS, ids=[str(each[0])[:40] for each in FITS])
def test_what_fits(schema: Any, good: list[Any], bad: list[tuple[Any, str]]) -> None:
    form = form_of(schema)
    for value in good:
        assert fault_of(value, form) == "", value
        # As a JSON Schema it says the same.
        assert fault_of(value, form_of(shown(form))) == ""
    for value, text in bad:
        assert re.search(text, fault_of(value, form)), fault_of(value, form)
        assert fault_of(value, form_of(shown(form)))


def test_an_answer_is_what_json_can_say() -> None:
    order = Order(True, [Item("x", 3)])
    said = {"approved": True, "items": [{"name": "x", "cents": 3}], "notes": {}}
    assert plain(order) == said and plain((1, 2)) == [1, 2]
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for value in (object(), float("nan"), {1: 2}, b"x", {"a": {1, 2}}, deep):
        with pytest.raises(Misuse):
            plain(value)
    assert built(said, form_of(Order), Classes().find_named) == order
    assert built({"a": None}, form_of(dict[str, Item | None]), Classes().find_named) == {"a": None}
    assert built([{"name": "y"}], form_of(list[Item]), Classes().find_named) == [Item("y")]
    assert "Item" not in str(shown(form_of(Order)))
    with pytest.raises(ClassMissing):
        built({}, {"type": "object", "x-class": "no.such:Thing"}, Classes().find_named)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("true", bool, True),
        ("true", str, "true"),
        ('"true"', str, "true"),
        ("3", int | None, 3),
        ("3", str | None, "3"),
        ("go ahead", None, "go ahead"),
        ("3", None, 3),
        ('{"name": "x"}', Item, {"name": "x"}),
        ("NaN", str, "NaN"),
    ],
)
def test_a_text_is_json_where_that_fits(text: str, schema: Any, value: Any) -> None:
    assert read_text(text, form_of(schema)) == (value, "")


def test_a_text_that_does_not_fit() -> None:
    assert "true or false" in read_text("yes", form_of(bool))[1]
    assert "true or false" in read_text("[" * 200_000, form_of(bool))[1]
    assert "a text is wanted" in read_text("3", form_of({"type": "string", "minLength": 2}))[1]
    assert "against minLength" in read_text("x", form_of({"type": "string", "minLength": 2}))[1]


class Impatient(Asker):
    async def briefly(self, keep: bool = False) -> str:
        ref = cutline.ask_person("quick?", bool) if keep else None
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_awaited(ref), 5)
        await asyncio.sleep(100)
        return "gave up"


async def _awaited(ref: Any) -> Any:
    return await (ref or cutline.ask_person("quick?", bool))


def test_a_question_that_nobody_waits_for_any_more_is_withdrawn() -> None:
    bench = Bench(Impatient)
    with bound(bench):
        bench.ask(1, "briefly")
        bench.ask(2, "briefly", keep=True)
        bench.tell("sync")
        withdraw(bench.desk)
        assert len(bench.desk.effects) == 3
        bench.tick(5)
        gc.collect()
        # The second handler could await its Ref again.
        withdraw(bench.desk)
        kept = [2, 3]
        assert list(bench.desk.effects) == [each.number for each in bench.desk.fresh_effects] == kept
        book = Book()
        for request in bench.desk.effects.values():
            book.ask(request)
        bench.tick(100)
        gc.collect()
        withdraw(bench.desk)
        book.withdrawn(bench.desk.effects)
        assert list(bench.desk.effects) == [3] and [each.numbers for each in book.entries.values()] == [[3]]
        assert bench.answers_out() == {1: "gave up", 2: "gave up"}


# -- the book ------------------------------------------------------------------------------------


def test_a_question_is_watched_when_a_committed_checkpoint_holds_it() -> None:
    with benched() as bench:
        for _ in range(3):
            bench.tell("sync")
        requests = list(bench.desk.fresh_effects)
    book = Book(most=1)
    for request in requests[:2]:
        assert book.ask(request)
    assert book.wants_cut(0.0)
    book.captured(5, requests[2].number)
    assert book.ask(requests[2])
    assert list(book.start(0.0)) == []
    book.settled(5, True)
    # They take no room in the pool.
    assert list(book.start(0.0)) == [Act("watch", each.key) for each in requests[:2]]
    assert list(book.start(0.0)) == [] and book.next_due is None
    assert book.reconnected() == [Act("watch", each.key) for each in requests[:2]]
    assert book.recorded(requests[0].key) and not book.recorded(requests[0].key)
    assert book.delivered(requests[0].key) == [requests[0].number]
    book.restored([requests[1]], 5)
    assert list(book.start(0.0)) == [Act("watch", requests[1].key)]


# -- the clock -----------------------------------------------------------------------------------


def test_a_participants_time_never_goes_back() -> None:
    read = {"wall": 1000.0, "steady": 5.0}
    clock = Clock(lambda: read["wall"], lambda: read["steady"])
    assert clock() == 1000.0
    read.update(wall=1001.0, steady=6.0)
    assert clock() == 1001.0
    # Set back by an hour: it goes on at its pace. Set ahead by a month: at once.
    read.update(wall=-2600.0, steady=7.0)
    assert clock() == 1002.0
    read.update(wall=1e7, steady=8.0)
    assert clock() == 1e7
    clock.not_before(2e7)
    assert clock() == 2e7
    clock.not_before(5.0)
    read.update(steady=9.0)
    assert clock() == 2e7 + 1


def test_the_wall_clock_can_be_moved_for_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "clock"
    monkeypatch.setenv(CLOCK, str(moved))
    with pytest.raises(Misuse, match="CUTLINE_CLOCK"):
        wall()
    moved.write_text("0")
    first = wall()
    moved.write_text("86400\n")
    assert 0 <= wall() - first - 86400 < 3600


# -- timers --------------------------------------------------------------------------------------


class Napper:
    def __init__(self) -> None:
        self.got: list[Any] = []
        self.peer: Any = None

    def remind(self, *args: Any, **kwargs: Any) -> None:
        cutline.after(10, self.note, *args, **kwargs)

    def remind_peer(self) -> None:
        cutline.after(10, self.peer.wake, "now")

    def later(self, seconds: float) -> None:
        cutline.after(seconds).then(self.on_time, seconds)

    def note(self, *args: Any, **kwargs: Any) -> None:
        self.got.append((args, kwargs))

    def on_time(self, _none: None, own: Any) -> None:
        self.got.append(own)

    async def nap(self) -> str:
        await cutline.sleep(10)
        cutline.after(5, self.note, "after")
        await asyncio.sleep(10)
        return "rested"


@contextmanager
def napping() -> Iterator[Bench]:
    bench = Bench(Napper)
    with bound(bench):
        yield bench


def got(bench: Bench) -> list[Any]:
    found: list[Any] = bench.desk.instance.got  # type: ignore[attr-defined]
    return found


def test_a_timer_fires_once() -> None:
    with napping() as bench:
        bench.tell("remind", 1)
        bench.tell("remind_peer")
        bench.tick(9.9)
        assert got(bench) == [] and bench.desk.next_timer == 1010.0
        bench.tick(0.1)
        assert got(bench) == [((1,), {})] and [target for target, _ in bench.sent] == ["peer"]
        bench.tick(1e9)
        assert len(got(bench)) == len(bench.sent) == 1 and bench.desk.next_timer is None
        assert not bench.desk.asks and not bench.desk.timers


def test_a_timer_is_part_of_the_image_and_fires_where_that_is_restored() -> None:
    with napping() as bench:
        bench.tell("remind", 1)
        bench.tell("later", 20)
        bench.tell("later", 15)
        bench.ask(1, "nap")
        bench.tick(4)
        other = bench.restored()
    with bound(other):
        other.tick(5.9)
        assert got(other) == []
        # Everything came due while nothing ran: in the order in which it was due.
        third = other.restored()
    with bound(third):
        third.clock.now += 30 * 86400
        while third.desk.fire_timers():
            third.collect()
        assert got(third)[:3] == [((1,), {}), 15, 20]
        third.tick(10)
        assert got(third)[3:] == [(("after",), {})] and third.answers_out() == {1: "rested"}


def test_a_handler_that_is_run_again_arms_no_timer_twice() -> None:
    with napping() as bench:
        bench.ask(1, "nap")
        bench.tick(10)
        assert len(bench.desk.timers) == 1
        other = bench.restored()
    with bound(other):
        assert len(other.desk.timers) == 1
        other.tick(5)
        assert got(other) == [(("after",), {})]
        other.tick(5)
        assert other.answers_out() == {1: "rested"} and len(got(other)) == 1


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((-1,), r"0 to 1e\+12; not -1"),
        ((10**400,), "not 1000"),
        (("1",), "not '1'"),
        ((True,), "not True"),
        ((float("nan"),), "not nan"),
        ((1, len), "a method of the participant itself"),
        ((1, "note"), "a method of the participant itself"),
        ((1, Napper.note), "a method of the participant itself"),
    ],
)
def test_what_is_no_timer_is_refused(args: Any, text: str) -> None:
    with napping(), pytest.raises(Misuse, match=text):
        cutline.after(*args)


def test_outside_of_a_handler_there_are_no_timers() -> None:
    for call in (cutline.after, cutline.sleep):
        with pytest.raises(OutsideHandler, match="for handlers"):
            call(1)
