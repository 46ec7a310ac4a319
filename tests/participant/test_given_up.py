"""Handlers that give up what they wait for, or are refused what they ask: a re-run goes the same way."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import msgpack
import pytest

import cutline
from cutline.errors import Misuse
from cutline.participant.clock import Clock
from cutline.participant.desk_image import desk_to_doc, load_desk, rerun
from cutline.participant.person import asked_of
from tests.participant.desks import Bench, bound
from tests.participant.test_people import Asker, answered


class Waiting(Asker):
    """Gives up whatever it waits for after 5 s, and goes on."""

    async def wait_for(self, what: str) -> str:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._awaited(what), 5)
        await asyncio.sleep(100)
        return "gave up"

    async def _awaited(self, what: str) -> Any:
        if what == "a person":
            return await cutline.ask_person("quick?", bool)
        if what == "a timer":
            return await cutline.sleep(20)
        if what == "an effect":
            return await cutline.effect(len, "text")
        return await self.peer.slow.remote()  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ["a person", "a timer", "an effect", "a peer"])
@pytest.mark.parametrize("late", [False, True])
def test_what_was_given_up_is_given_up_in_a_re_run(what: str, late: bool) -> None:
    """By then nobody has the question any more, or its answer, which came too late."""
    bench = Bench(Waiting)
    with bound(bench):
        bench.ask(1, "wait_for", what)
        bench.tick(5)
        (number,) = bench.desk.asks
        if late:
            bench.desk.effects.pop(number, None)
            if what == "a timer":
                bench.desk.timers.remove(number)
            bench.desk.answered(number, True, [True])
        gc.collect()
    for _ in range(2):
        bench = bench.restored()
        assert bench.answers_out() == {} and len(bench.desk.calls) == 1
    with bound(bench):
        bench.tick(100)
        assert bench.answers_out() == {1: "gave up"}


class Late(Asker):
    async def nap(self, how: str) -> str:
        await self.peer.wake.remote()  # type: ignore[attr-defined]
        if how == "a timeout":
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.peer.never.remote(), 5)  # type: ignore[attr-defined]
        else:
            await (asyncio if how == "asyncio" else cutline).sleep(5)
        return "woke up"


@pytest.mark.parametrize("how", ["asyncio", "cutline", "a timeout"])
def test_what_begins_after_a_restore_under_a_clock_that_is_behind_takes_no_longer(how: str) -> None:
    read = {"wall": 1e9, "steady": 50.0}

    def clock() -> Any:
        return Clock(lambda: read["wall"], lambda: read["steady"])

    bench = Bench(Late, clock())
    bench.ask(1, "nap", how)
    doc = msgpack.unpackb(msgpack.packb(desk_to_doc(bench.desk)), strict_map_key=False)
    # Another process, on a machine that is a day behind.
    read.update(wall=1e9 - 86400.0, steady=7.0)
    other = Bench(Late, clock())
    with bound(other):
        load_desk(other.desk, doc)
        rerun(other.desk)
        other.answer(1, None)
        read["steady"] += 4.5
        assert not other.desk.fire_timers()
        read["steady"] += 1.0
        assert other.desk.fire_timers()
        other.collect()
    assert other.answers_out() == {1: "woke up"}


class Careful(Asker):
    """Asks something else where a question is refused."""

    async def carefully(self, question: str, schema: Any) -> Any:
        try:
            ref = cutline.ask_person(question, schema)
        except (Misuse, ValueError, OverflowError):
            ref = cutline.ask_person("in short?", bool)
        return await ref


@pytest.mark.parametrize(
    ("question", "schema"),
    [("q" * 70_000, bool), ("\ud800", bool), ("q", {"minimum": 1 << 70}), ("q", {"enum": ["x" * 70_000]})],
)
def test_what_was_refused_is_refused_in_a_re_run(question: str, schema: Any) -> None:
    bench = Bench(Careful)
    with bound(bench):
        bench.ask(1, "carefully", question, schema)
        (request,) = bench.desk.effects.values()
        assert asked_of(request).text == "in short?"
    other = bench.restored()
    with bound(other):
        answered(other, request.number, True)
        assert other.answers_out() == {1: True}
