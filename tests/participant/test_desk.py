"""The desk: one message is one step; answers find who waits for them; what is suspended survives an image."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.errors import (
    AnswerForgotten,
    BlockingInHandler,
    Misuse,
    RemoteError,
    ReplayMismatch,
    UnknownMethod,
)
from cutline.participant.desk import HandlerRaised
from cutline.participant.messages import encode_chase

from .desks import PEER, Bench

NAMES: Any = "buy"


class Plain:
    """Sync handlers."""

    peer: Any

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.held: Any = None

    def double(self, x: int) -> int:
        return 2 * x

    def fail(self) -> None:
        raise ValueError("no")

    def stop(self) -> None:
        raise StopIteration("none")

    def name_of_file(self) -> str:
        return "caf\udce9"

    def forward(self, x: int) -> None:
        self.peer.double.remote(x).then(self.on_double, x, error=self.on_error)

    def forward_bare(self, x: int) -> None:
        self.peer.double.remote(x).then(self.on_double, x)

    def hold(self) -> None:
        self.held = self.peer.double.remote(1)

    def use(self) -> None:
        self.held.then(self.on_double, 0)

    def on_double(self, answer: int, x: int) -> None:
        self.seen.append((x, answer))

    def on_error(self, error: Exception, x: int) -> None:
        self.seen.append((x, type(error).__name__))

    def block(self) -> None:
        self.peer.double.remote(1).result()


def test_an_ask_is_answered_with_the_value_or_the_exception() -> None:
    bench = Bench(Plain)
    bench.ask(1, "double", 4)
    bench.ask(2, "fail")
    bench.ask(3, "nothing_of_that_name")
    bench.ask(4, "double", 1, 2, 3)
    answers = bench.answers_out()
    assert answers[1] == 8
    assert isinstance(answers[2], ValueError)
    assert isinstance(answers[3], UnknownMethod)
    assert isinstance(answers[4], TypeError)


def test_a_tell_that_raises_is_nobodys_answer() -> None:
    with pytest.raises(HandlerRaised, match="fail"):
        Bench(Plain).tell("fail")


def test_text_that_utf8_cannot_hold_travels() -> None:
    bench = Bench(Plain)
    bench.ask(1, "name_of_file")
    assert bench.answers_out() == {1: "caf\udce9"}


def test_blocking_is_refused_by_name() -> None:
    bench = Bench(Plain)
    bench.ask(1, "block")
    assert isinstance(bench.answers_out()[1], BlockingInHandler)


def test_continuations_survive_an_image_and_run_once() -> None:
    bench = Bench(Plain)
    bench.tell("forward", 5)
    bench.tell("forward", 6)
    after = bench.restored()
    after.answer(2, 12)
    after.answer(1, ValueError("x"))
    after.answer(1, 10)
    assert after.desk.instance.seen == [(6, 12), (5, "ValueError")]  # type: ignore[attr-defined]


def test_an_error_without_an_error_method_is_raised_here() -> None:
    bench = Bench(Plain)
    bench.tell("forward_bare", 5)
    with pytest.raises(HandlerRaised):
        bench.answer(1, KeyError("x"))


def test_an_answer_that_was_there_before_its_continuation() -> None:
    bench = Bench(Plain)
    bench.tell("hold")
    bench.answer(1, 7)
    bench.desk.sweep()
    bench.tell("use")
    assert bench.desk.instance.seen == [(0, 7)]  # type: ignore[attr-defined]


def test_answers_whose_refs_are_gone_are_swept_and_others_are_not() -> None:
    bench = Bench(Plain)
    bench.tell("hold")
    bench.tell("forward", 1)
    bench.answer(1, 7)
    bench.answer(2, 8)
    bench.desk.sweep()
    assert set(bench.desk.answers) == {1}
    bench.desk.instance.held = None  # type: ignore[attr-defined]
    bench.desk.sweep()
    assert not bench.desk.answers


def test_a_chase_is_answered_now_later_or_with_forgotten() -> None:
    bench = Bench(Plain)
    bench.tell("hold")
    for theirs, owned in ((11, 1), (12, 99)):
        bench._step(PEER, encode_chase(theirs, owned))
    assert isinstance(bench.answers_out().pop(12), AnswerForgotten)
    after = bench.restored()
    after.answer(1, 42)
    after._step(PEER, encode_chase(13, 1))
    assert after.answers_out() == {11: 42, 13: 42} or isinstance(after.answers_out()[13], AnswerForgotten)
    assert after.answers_out()[11] == 42


class Agent:
    """Async handlers."""

    peer: Any

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.side = NAMES

    async def one(self, x: int) -> int:
        return int(await self.peer.double.remote(x)) + 1

    async def both(self) -> Any:
        return await asyncio.gather(*[self.peer.f.remote(k) for k in range(4)], return_exceptions=True)

    async def first(self) -> list[int]:
        tasks = [asyncio.ensure_future(self._value(k)) for k in range(4)]
        order = []
        for nearest in asyncio.as_completed(tasks):
            order.append(await nearest)
        return order

    async def _value(self, k: int) -> int:
        return int(await self.peer.f.remote(k))

    async def chain(self, depth: int) -> int:
        total = 0
        for k in range(depth):
            total += await self.peer.f.remote(total)
            self.peer.note.tell(k, total)
        return total

    async def told(self) -> None:
        await self.peer.f.remote(0)
        raise ValueError("late")

    async def loadless(self) -> str:
        try:
            await self.peer.f.remote(0)
        except Exception as error:
            return type(error).__name__
        return "no error"

    async def labelled(self) -> Any:
        return await self.peer.place.remote({"side": "buy", "mine": self.side})

    async def random(self) -> Any:
        await self.peer.f.remote(random.random())
        return await self.peer.f.remote(0)

    async def patient(self) -> str:
        done, _ = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(10, "slept")), self._timed()])
        return ",".join(sorted(task.result() for task in done))

    def _timed(self) -> Any:
        async def timed() -> str:
            await self.peer.f.remote(1)
            try:
                await asyncio.wait_for(self._value(2), 5)
            except asyncio.TimeoutError:
                return f"timed out at {asyncio.get_running_loop().time():.0f}"
            return "answered"

        return asyncio.ensure_future(timed())

    async def naps(self) -> list[str]:
        order: list[str] = []

        async def nap(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        async def late() -> None:
            await self.peer.f.remote(1)
            await nap("late", 5)

        await asyncio.gather(nap("long", 10), late())
        return order

    async def cancels(self) -> str:
        task = asyncio.ensure_future(self._value(1))
        await self.peer.f.remote(2)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "no"


def test_an_async_handler_answers_after_its_await() -> None:
    bench = Bench(Agent)
    bench.ask(7, "one", 20)
    assert bench.answers_out() == {}
    bench.answer(1, 40)
    assert bench.answers_out() == {7: 41} and not bench.desk.calls


def test_arguments_that_do_not_fit_an_async_handler_leave_nothing_behind() -> None:
    bench = Bench(Agent)
    bench.ask(1, "one")
    assert isinstance(bench.answers_out()[1], TypeError)
    assert not bench.desk.calls
    bench.restored()


def test_an_awaited_stopiteration_is_an_error_of_the_awaiter() -> None:
    bench = Bench(Agent)
    bench.ask(1, "one", 1)
    bench.answer(1, StopIteration("none"))
    assert isinstance(bench.answers_out()[1], RemoteError)


def test_an_answer_that_does_not_load_is_an_error_of_the_awaiter() -> None:
    bench = Bench(Agent)
    bench.ask(1, "loadless")
    bench.desk.handle(PEER, [3, 1, True, b"\x80\x05cno_such_module\nThing\n."])
    bench.collect()
    assert bench.answers_out() == {1: "CannotRestore"}


def test_a_request_with_shared_text_is_the_same_request_after_a_restore() -> None:
    bench = Bench(Agent)
    bench.ask(1, "labelled")

    class Restored(Agent):
        def __init__(self) -> None:
            super().__init__()
            self.side = "".join(("b", "uy"))

    after = bench.restored(Restored)
    after.answer(1, "ok")
    assert after.answers_out() == {1: "ok"}


def test_a_handler_that_differs_in_its_rerun_is_named() -> None:
    bench = Bench(Agent)
    bench.ask(1, "random")
    after = bench.restored()
    assert isinstance(after.answers_out()[1], ReplayMismatch)
    assert not after.desk.calls


def test_a_told_async_handler_that_raises_later() -> None:
    bench = Bench(Agent)
    bench.tell("told")
    with pytest.raises(HandlerRaised, match="late"):
        bench.restored().answer(1, 0)


def test_then_is_refused_in_an_async_handler() -> None:
    class Wrong(Agent):
        async def one(self, x: int) -> int:
            self.peer.double.remote(x).then(self.one)
            return 0

    bench = Bench(Wrong)
    bench.ask(1, "one", 1)
    assert isinstance(bench.answers_out()[1], Misuse)


def test_loop_time_follows_the_clock_between_steps() -> None:
    bench = Bench(Agent)
    bench.ask(1, "naps")
    bench.tick(9)
    bench.answer(1, 0)
    bench = bench.restored()
    bench.tick(1)
    bench = bench.restored()
    assert bench.answers_out() == {}
    bench.tick(4)
    assert bench.answers_out() == {1: ["long", "late"]}


@pytest.mark.parametrize("images", [False, True])
def test_a_timeout_set_late_is_due_late(images: bool) -> None:
    bench = Bench(Agent)
    bench.ask(1, "patient")
    bench.tick(7)
    bench.answer(1, 0)
    for seconds in (3, 1.5, 0.5):
        if images:
            bench = bench.restored()
        assert bench.answers_out() == {}
        bench.tick(seconds)
    assert bench.answers_out() == {1: "slept,timed out at 12"}


def test_timers_that_came_due_while_nothing_ran_fire_at_once() -> None:
    bench = Bench(Agent)
    bench.ask(1, "naps")
    bench.answer(1, 0)
    bench.clock.now += 86_400
    after = bench.restored()
    after.tick(0)
    assert after.answers_out() == {1: ["late", "long"]}


def test_a_cancelled_task_and_its_late_answer() -> None:
    bench = Bench(Agent)
    bench.ask(1, "cancels")
    after = bench.restored()
    after.answer(1, 0)
    assert after.answers_out() == {1: "cancelled"}
    after.answer(2, 5)
    assert after.answers_out() == {1: "cancelled"}


def _play(method: str, order: list[int], images: set[int], errors: set[int]) -> tuple[Any, list[Any]]:
    """Runs a handler that asks questions 1 to 4, answered in this order, through images on the way."""
    bench = Bench(Agent)
    bench.ask(99, method)
    sent = list(bench.sent)
    for step, number in enumerate(order):
        if step in images:
            bench = bench.restored()
            sent += bench.sent
        before = len(bench.sent)
        bench.answer(number, ValueError(str(number)) if number in errors else 10 * number)
        sent += bench.sent[before:]
    answer = next(message for _, message in sent if message[0] == 3)
    return answer[:3] + [repr(bench.answers_out()[99])], sent


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["both", "first"]),
    st.permutations([1, 2, 3, 4]),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(1, 4), max_size=2),
)
def test_images_on_the_way_change_nothing(
    method: str, order: list[int], images: set[int], errors: set[int]
) -> None:
    if method == "first":
        errors = set()
    assert _play(method, order, images, errors) == _play(method, order, set(), errors)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.sets(st.integers(0, 6)))
def test_a_rerun_sends_nothing_twice(depth: int, images: set[int]) -> None:
    bench = Bench(Agent)
    bench.ask(99, "chain", depth)
    sent = list(bench.sent)
    for step in range(depth):
        if step in images:
            bench = bench.restored()
            assert bench.sent == []
        before = len(bench.sent)
        bench.answer(step + 1, step)
        sent += bench.sent[before:]
    kinds = [message[0] for _, message in sent]
    assert kinds == [1] + [2, 1] * (depth - 1) + [2, 3]
    assert bench.answers_out() == {99: sum(range(depth))}
