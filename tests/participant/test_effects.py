"""A participant's effects: what may be asked for, what an image holds, and what is done when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

import cutline
from cutline.errors import CannotCapture, Misuse, OutsideHandler, UnknownMethod
from cutline.participant.desk_image import desk_to_doc, load_desk, rerun
from cutline.participant.effect_book import ASK_AGAIN, TIMEOUTS, Act, Book, Outcome
from cutline.participant.effect_calls import Storage, read_answer
from cutline.participant.effect_request import EffectRequest, bound_to, rekeyed
from cutline.participant.effecting import Effecting
from cutline.participant.messages import unpack_error
from cutline.participant.runner import Runner
from cutline.storage import MemoryBlobs
from tests.participant.desks import ME, Bench, bound


def pay(card: str, amount: int, key: str) -> int:
    return amount


def keyless(card: str) -> None: ...


def look(key: str, card: str) -> cutline.NotDone:
    return cutline.NotDone()


async def slowly(card: str, *, key: str = "") -> None: ...


class Payer:
    """Asks for effects, and keeps what came back."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def sync(self, amount: int, **options: Any) -> None:
        cutline.effect(pay, "ann", amount, **options).then(self.on_paid, error=self.on_paid)

    def keyed(self, amount: int, key: str) -> None:
        self.sync(amount, key=key)

    async def straight(self) -> int:
        first: int = await cutline.effect(pay, "ann", 1)
        second: int = await cutline.effect(pay, "ann", first + 1)
        return first + second

    def on_paid(self, value: Any) -> None:
        self.got.append(value)

    def call(self, *args: Any, **options: Any) -> None:
        cutline.effect(*args, **options)

    def own(self) -> None: ...


@contextmanager
def benched() -> Iterator[Bench]:
    bench = Bench(Payer)
    bench.desk.lineage = "line"
    with bound(bench):
        yield bench


def test_a_request_is_kept_until_its_outcome_is_delivered() -> None:
    with benched() as bench:
        bench.tell("sync", 5)
        (request,) = bench.desk.effects.values()
        assert (request.function, request.on_unknown, request.arguments) == (
            f"{__name__}:pay", "retry", ["ann", 5]
        )  # fmt: skip
        assert bench.desk.fresh_effects == [request] and not bench.sent
        bench.desk.answered(request.number, True, [7])
        bench.desk.drain()
        assert bench.desk.instance.got == [7]  # type: ignore[attr-defined]


def test_the_key_is_fixed_by_who_asks_for_what_and_when() -> None:
    keys = set()
    for lineage, amount, times in (("line", 5, 1), ("other", 5, 1), ("line", 6, 1), ("line", 5, 2)):
        with benched() as bench:
            bench.desk.lineage = lineage
            for _ in range(times):
                bench.tell("sync", amount)
            keys.add(bench.desk.fresh_effects[-1].key)
    assert len(keys) == 4
    with benched() as bench:
        bench.tell("sync", 5)
        (request,) = bench.desk.fresh_effects
        assert request.key in keys
        there = rekeyed(request, "other", ME)
        assert there.key in keys and there.key != request.key
        assert rekeyed(there, "line", ME) == request


def test_a_key_of_the_users_own_stays_in_every_lineage() -> None:
    with benched() as bench:
        bench.tell("call", pay, "ann", 1)
        bench.desk.instance.call(pay, "ann", 1, key="order 7")  # type: ignore[attr-defined]
        request = bench.desk.fresh_effects[-1]
        assert request.handed_key == rekeyed(request, "other", ME).handed_key == "order 7"


def nested() -> Any:
    def inner() -> None: ...

    return inner


UNTRAVELLED = (each for each in "")
WRONG = [
    pytest.param((lambda: None,), {}, Misuse, "has under its own name", id="a lambda"),
    pytest.param((nested(),), {}, Misuse, "has under its own name", id="a local function"),
    pytest.param((Bench(Payer).desk.ask,), {}, Misuse, "has under its own name", id="not its own method"),
    pytest.param((7,), {}, Misuse, "Got 7", id="no function"),
    pytest.param(("nobody",), {}, UnknownMethod, "no method 'nobody'", id="a method that is not there"),
    pytest.param((pay, "ann"), {}, Misuse, "does not take these arguments", id="an argument is missing"),
    pytest.param((keyless, "ann", 2), {}, Misuse, "does not take these arguments", id="one too many"),
    pytest.param((keyless, UNTRAVELLED), {}, CannotCapture, "argument", id="an argument that cannot travel"),
    pytest.param((keyless, "a"), {"on_unknown": "perhaps"}, Misuse, "on_unknown is", id="no such policy"),
    pytest.param((keyless, "a"), {"on_unknown": nested()}, Misuse, "own name", id="a policy without a name"),
    pytest.param((keyless, "a"), {"timeout": 0}, Misuse, "timeout", id="no time at all"),
    pytest.param((keyless, "a"), {"retries": -1}, Misuse, "retries", id="less than no retries"),
    pytest.param((keyless, "a"), {"key": ""}, Misuse, "key of effect", id="an empty key"),
]


@pytest.mark.parametrize(("args", "options", "kind", "text"), WRONG)
def test_what_cannot_be_asked_for(args: Any, options: Any, kind: type[Exception], text: str) -> None:
    with benched() as bench, pytest.raises(kind, match=text):
        bench.desk.instance.call(*args, **options)  # type: ignore[attr-defined]
    assert not bench.desk.effects and not bench.desk.asks


def test_outside_a_handler_nothing_is_asked_for() -> None:
    with pytest.raises(OutsideHandler, match="no handler runs here"):
        cutline.effect(pay, "ann", 1)


def test_methods_go_by_name() -> None:
    with benched() as bench:
        instance: Any = bench.desk.instance
        instance.call("own")
        instance.call(instance.own)
        assert [each.function for each in bench.desk.effects.values()] == [".own", ".own"]
        assert [each.on_unknown for each in bench.desk.effects.values()] == ["halt", "halt"]


def test_the_key_is_handed_to_who_leaves_it_free() -> None:
    assert bound_to(pay, ["ann", 1], "k") == {"key": "k"}
    assert bound_to(pay, ["ann", 1, "own"], "k") == {}
    assert bound_to(keyless, ["ann"], "k") == {}
    assert bound_to(slowly, ["ann"], "k") == {"key": "k"}
    assert asyncio.iscoroutinefunction(slowly)


def test_an_async_handler_awaits_and_is_run_again_with_what_it_got() -> None:
    with benched() as bench:
        bench.ask(1, "straight")
        (first,) = bench.desk.fresh_effects
        bench.desk.effects.pop(first.number)
        bench.desk.answered(first.number, True, [10])
        bench.desk.drain()
        second = bench.desk.fresh_effects[-1]
        assert second.arguments == ["ann", 11]
        image = msgpack.packb(desk_to_doc(bench.desk))
    with benched() as again:
        load_desk(again.desk, msgpack.unpackb(image, strict_map_key=False))
        rerun(again.desk)
        assert list(again.desk.effects.values()) == [second]
        assert again.desk.fresh_effects == []
        again.desk.answered(second.number, True, [11])
        again.desk.drain()
        again.collect()
        assert again.answers_out() == {1: 21}


# -- the book -------------------------------------------------------------------------------------


def asked(number: int = 1, key: str = "r:k", **changes: Any) -> EffectRequest:
    fields: dict[str, Any] = {
        "number": number, "function": "m:pay", "arguments": [], "key": key, "digest": b"d",
        "on_unknown": "retry", "repeatable": False, "timeout": None, "retries": 0, "lineage": "line",
    }  # fmt: skip
    return EffectRequest(**{**fields, **changes})


def committed(*requests: EffectRequest, most: int = 16) -> Book:
    book = Book(most)
    for request in requests:
        book.ask(request)
    book.captured(1, 100)
    book.settled(1, True)
    return book


def test_nothing_is_claimed_before_a_cut_with_it_has_committed() -> None:
    book = Book()
    book.captured(1, 1)
    book.ask(asked(1))
    assert book.wants_cut(0.0) and not book.wants_cut(0.5)
    book.settled(1, True)
    assert list(book.start(0.0)) == []
    book.captured(2, 2)
    assert not book.wants_cut(0.5)
    book.settled(2, False)
    assert list(book.start(0.0)) == [] and book.wants_cut(0.5)
    book.captured(3, 2)
    book.settled(3, True)
    assert list(book.start(0.0)) == [Act("claim", "r:k")]
    assert book.entries["r:k"].checkpoint == 3
    assert list(book.start(0.0)) == []


def test_a_checkpoint_that_nobody_hears_of_is_asked_for_again() -> None:
    book = Book()
    book.ask(asked(1))
    # It was begun, and aborted before it was captured here.
    assert book.wants_cut(1.0) and not book.wants_cut(1.5)
    assert book.wants_cut(1.0 + ASK_AGAIN) and not book.wants_cut(1.0 + ASK_AGAIN)


@contextmanager
def restoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bench, Effecting]]:
    """A participant whose desk is as an image left it; the rest of it is missing."""
    monkeypatch.setattr(Runner, "be_restored", lambda *_given: None)
    with benched() as bench:
        runner = object.__new__(Effecting)
        runner.setup = SimpleNamespace(run="line")  # type: ignore[assignment]
        runner.me, runner.desk, runner.book = ME, bench.desk, Book()
        yield bench, runner


def test_what_a_run_again_asks_for_besides_waits_for_a_cut_that_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with restoring(monkeypatch) as (bench, runner):
        bench.tell("sync", 5)
        (held,) = bench.desk.fresh_effects
        bench.desk.fresh_effects.clear()
        bench.tell("sync", 6)
        runner.be_restored(None, 1, 4, 4)  # type: ignore[arg-type]
        (besides,) = bench.desk.fresh_effects
        runner._take_fresh()
        assert list(runner.book.start(0.0)) == [Act("claim", held.key)]
        assert runner.book.wants_cut(0.0) and runner.book.entries[besides.key].phase == "asked"
        assert [request.since for request in bench.desk.effects.values()] == [4, 0]


def test_a_request_under_anothers_key_is_refused_after_a_restore_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with restoring(monkeypatch) as (bench, runner):
        bench.tell("keyed", 5, "k")
        bench.tell("keyed", 6, "k")
        bench.desk.fresh_effects.clear()
        runner.be_restored(None, 1, 4, 4)  # type: ignore[arg-type]
        assert [request.arguments for request in bench.desk.fresh_effects] == [["ann", 6]]
        monkeypatch.setattr(runner, "step_of_answer", bench.desk.answered)
        runner._take_fresh()
        bench.desk.drain()
        (error,) = bench.desk.instance.got  # type: ignore[attr-defined]
        assert isinstance(error, Misuse) and len(bench.desk.effects) == 1


class Mute(Exception):
    """Neither its text nor itself can be had."""

    def __str__(self) -> str:
        raise AttributeError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


def test_a_call_that_raised_is_over_whatever_it_raised() -> None:
    storage = Storage(MemoryBlobs(), "ann", ("city", "ann", 1))
    outcome = storage.raised("m:pay", 1, Mute(), again=False)
    assert outcome.state == "error"
    error = unpack_error(read_answer(storage.blobs, outcome.answer, None), participant="ann", live={})
    assert str(error).startswith("Mute in participant 'ann': (its __str__ raised AttributeError)")


def test_a_repeatable_one_does_not_wait() -> None:
    book = Book()
    book.ask(asked(repeatable=True))
    assert not book.wants_cut(0.5)
    assert list(book.start(0.0)) == [Act("claim", "r:k")]


def test_a_grant_is_acted_on_once() -> None:
    book = committed(asked(retries=1))
    list(book.start(0.0))
    assert book.granted("r:k", 1, 0, 0.0) == Act("call", "r:k", 1)
    assert book.granted("r:k", 1, 0, 0.0) is None
    book.returned("r:k", 1, Outcome("again"))
    book.confirmed("r:k", 1)
    assert list(book.start(0.0)) == [Act("claim", "r:k")]
    # A double of the first answer comes late.
    assert book.granted("r:k", 1, 0, 0.0) is None
    assert book.granted("r:k", 2, 1, 0.0) == Act("call", "r:k", 2)


def test_what_this_process_has_begun_it_does_not_begin_again_after_a_rollback() -> None:
    book = committed(asked(), asked(2, "r:other"))
    list(book.start(0.0))
    book.granted("r:k", 1, 0, 0.0)
    book.restored([asked(), asked(2, "r:other")], 1)
    assert list(book.start(0.0)) == [Act("claim", "r:other")]
    book.returned("r:k", 1, Outcome("done", b"x"))
    book.restored([asked(), asked(2, "r:other")], 1)
    assert list(book.start(0.0)) == [Act("claim", "r:other")]
    # Confirmed, it asks for what was recorded.
    book.confirmed("r:k", 1)
    assert list(book.start(0.0)) == [Act("claim", "r:k")]
    assert book.recorded("r:k") and not book.recorded("r:k")
    assert book.delivered("r:k") == [1]


@pytest.mark.parametrize(
    ("policy", "act", "phase"),
    [
        ("retry", Act("claim", "r:k", 4), "claiming"),
        ("halt", Act("halt", "r:k", 4), "halting"),
        ("m:look", Act("reconcile", "r:k", 4), "judging"),
    ],
)
def test_the_policy_of_what_nobody_knows(policy: str, act: Act, phase: str) -> None:
    book = committed(asked(on_unknown=policy))
    list(book.start(0.0))
    assert book.unknown("r:k", 4, 0.0) == act
    assert book.entries["r:k"].phase == phase


def test_what_a_reconcile_function_says() -> None:
    book = committed(asked(on_unknown="m:look"))
    list(book.start(0.0))
    book.unknown("r:k", 1, 0.0)
    assert book.judged("r:k", 1, None, 0.0) == Act("claim", "r:k", 1)
    assert book.reconnected() == [Act("claim", "r:k", 1)]
    book.unknown("r:k", 2, 0.0)
    assert book.judged("r:k", 2, Outcome("done", b"x"), 0.0) is None
    assert book.entries["r:k"].phase == "recording" and ("r:k", 2) in book.outcomes


def test_what_the_call_itself_says_goes_before_its_reconcile_function() -> None:
    book = committed(asked(on_unknown="m:look", timeout=1.0))
    list(book.start(0.0))
    book.granted("r:k", 1, 0, 0.0)
    assert list(book.overdue(1.0)) == [Act("reconcile", "r:k", 1)]
    own = Outcome("done", b"own")
    book.returned("r:k", 1, own)
    book.judged("r:k", 1, Outcome("done", b"looked up", None, "reconcile"), 2.0)
    assert book.outcomes == {("r:k", 1): own}


def test_a_reconcile_function_that_does_not_help_halts_and_a_new_coordinator_hears_of_it() -> None:
    book = committed(asked(on_unknown="m:look"))
    list(book.start(0.0))
    book.unknown("r:k", 3, 0.0)
    assert book.given_up("r:k", 3, "it raised") == Act("halt", "r:k", 3)
    assert book.reconnected() == [Act("halt", "r:k", 3)] and book.entries["r:k"].trouble == "it raised"


def test_one_that_takes_too_long_is_unknown_and_its_late_outcome_counts() -> None:
    book = committed(asked(on_unknown="m:look", timeout=2.0))
    list(book.start(0.0))
    book.granted("r:k", 1, 0, 0.0)
    assert book.next_due == 2.0 and list(book.overdue(1.9)) == []
    assert list(book.overdue(2.0)) == [Act("reconcile", "r:k", 1)]
    # It has not happened yet, and runs: no second one is begun beside it.
    assert book.judged("r:k", 1, None, 2.5) is None
    assert book.next_due == 4.5
    book.returned("r:k", 1, Outcome("done", b"x"))
    assert book.entries["r:k"].phase == "recording" and book.next_due is None


def test_the_attempt_after_one_that_took_too_long_has_its_own_time_to_begin() -> None:
    book = committed(asked(timeout=30.0))
    list(book.start(0.0))
    book.granted("r:k", 1, 0, 0.0)
    # Counted from the first claim it would never begin, and be claimed again and again.
    assert list(book.overdue(30.0)) == [Act("claim", "r:k", 1)]
    assert book.entries["r:k"].claimed_at == 30.0


def test_calls_that_hang_are_given_up_after_some_of_them() -> None:
    book = committed(asked(timeout=1.0))
    list(book.start(0.0))
    for attempt in range(1, TIMEOUTS):
        book.granted("r:k", attempt, 0, 0.0)
        assert list(book.overdue(1.0)) == [Act("claim", "r:k", attempt)]
    book.granted("r:k", TIMEOUTS, 0, 0.0)
    assert list(book.overdue(1.0)) == [Act("halt", "r:k", TIMEOUTS)]
    entry = book.entries["r:k"]
    assert entry.trouble == "it took too long 5 times, and 5 of its calls have not returned"
    assert list(book.overdue(9.0)) == [] and book.next_due is None
    # However late: if one of them says something, that counts.
    book.returned("r:k", 2, Outcome("done", b"x"))
    assert entry.phase == "recording"
    book.delivered("r:k")
    assert not book.timeouts


def test_a_call_that_hangs_and_has_surely_not_happened_is_given_up_too() -> None:
    book = committed(asked(on_unknown="m:look", timeout=1.0))
    list(book.start(0.0))
    book.granted("r:k", 1, 0, 0.0)
    now = 0.0
    for _ in range(1, TIMEOUTS):
        now += 1.0
        assert list(book.overdue(now)) == [Act("reconcile", "r:k", 1)]
        assert book.judged("r:k", 1, None, now) is None
    assert list(book.overdue(now + 1.0)) == [Act("halt", "r:k", 1)]
    assert book.entries["r:k"].trouble == "it took too long 5 times, and 1 of its calls have not returned"


def test_no_more_run_at_once_than_there_is_room_for() -> None:
    book = committed(*(asked(number, f"r:{number}") for number in range(1, 6)), most=2)
    assert [act.key for act in book.start(0.0)] == ["r:1", "r:2"]
    book.granted("r:1", 1, 0, 0.0)
    assert list(book.start(0.0)) == []
    book.returned("r:1", 1, Outcome("done", b"x"))
    assert [act.key for act in book.start(0.0)] == ["r:3"]


def test_requests_under_one_key_are_one() -> None:
    book = committed(asked(1, "u:k"), asked(2, "u:k"))
    assert not book.ask(asked(3, "u:k", digest=b"e"))
    assert list(book.start(0.0)) == [Act("claim", "u:k")]
    assert book.delivered("u:k") == [1, 2]
