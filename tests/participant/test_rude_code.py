"""User code that misbehaves where Cutline ends it or speaks of it: one participant's trouble alone."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from cutline.barrier import Member
from cutline.errors import Misuse, RemoteError
from cutline.participant.messages import pack_error, unpack_error
from cutline.participant.method_table import refuse_generator
from cutline.participant.peers import Peers
from cutline.participant.replay_loop import ReplayLoop
from cutline.participant.saying import said, shown
from cutline.participant.suspended import HandlerRaised
from cutline.participant.transport import CLOSED_HERE, LinkRefused
from cutline.participant.transport_local import LocalHub, LocalTransport

from .town import RUN, Town


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [Mute(), Mute(lambda: 1)], ids=["travels", "does not travel"])
def test_an_exception_without_a_text_is_an_answer_like_others(error: Mute) -> None:
    answer = unpack_error(pack_error(error, participant="a"), participant="b", live={})
    assert isinstance(answer, (Mute, RemoteError))
    assert said(error) == "Mute: (its __str__ raised ValueError)"
    assert str(HandlerRaised("m", error)) == "m: Mute: (its __str__ raised ValueError)"


class Leaving(Exception):
    """Ends whoever asks what it is."""

    def __str__(self) -> str:
        sys.exit(3)

    def __repr__(self) -> str:
        sys.exit(3)


def test_a_text_that_calls_exit_ends_nobody() -> None:
    assert said(Leaving()) == "Leaving: (its __str__ raised SystemExit)"
    assert shown(Leaving()) == "a Leaving that cannot be shown (SystemExit)"
    assert shown("x" * 100) == "'" + "x" * 79


async def _raise(kind: type[BaseException]) -> None:
    try:
        await asyncio.sleep(9)
    finally:
        raise kind("from its clean-up")


async def _turn(kind: type[BaseException]) -> None:
    try:
        await asyncio.sleep(9)
    except BaseException as end:
        raise kind("instead") from end


async def _await(_kind: type[BaseException]) -> None:
    try:
        await asyncio.sleep(9)
    finally:
        await asyncio.sleep(9)


@pytest.mark.parametrize("how", [_raise, _turn, _await])
@pytest.mark.parametrize("kind", [KeyError, RuntimeError, SystemExit, asyncio.CancelledError])
def test_a_suspended_handler_ends_whatever_its_clean_up_raises(
    how: Callable[[type[BaseException]], Coroutine[Any, Any, None]], kind: type[BaseException]
) -> None:
    loop, ended = ReplayLoop("a.m"), []  # type: ignore[abstract]

    async def other() -> None:
        try:
            await asyncio.sleep(9)
        finally:
            ended.append(True)

    def begin() -> None:
        for call in (how(kind), other(), how(kind)):
            loop.create_task(call)

    loop.run_ready(begin)
    # A collection at any moment must not end a task before it is closed.
    often = gc.get_threshold()
    gc.set_threshold(1)
    try:
        loop.close_tasks()
    finally:
        gc.set_threshold(*often)
    assert ended == [True]
    assert len(loop.faults) == 2
    assert loop.next_timer() is None


class _Many:
    def each(self) -> Iterator[int]:
        yield 1

    async def each_later(self) -> AsyncIterator[int]:
        yield 1

    def returns_one(self) -> Iterator[int]:
        return self.each()

    async def one(self) -> int:
        return 1


def test_a_method_of_which_a_call_runs_nothing_is_refused() -> None:
    many = _Many()
    for bound in (many.each, many.each_later):
        with pytest.raises(Misuse, match=r"a\.m is a generator: .* Return a list"):
            refuse_generator(bound, "a", "m")
    for good in (many.returns_one, many.one):
        refuse_generator(good, "a", "m")


class _Idle:
    pass


def test_one_that_cannot_read_where_the_coordinator_is_tries_again() -> None:
    town = Town()
    runner = town.add("a", _Idle)
    known, runner.liaison.address = runner.liaison.address, _out_of_descriptors
    runner.liaison.dial()
    assert runner.liaison.retry_at is not None
    assert "Too many open files" in runner.liaison.refusal
    runner.liaison.address = known
    town.clock.now += 1.0
    town.start()
    assert runner.phase == "running"
    assert runner.liaison.link is not None
    town.close()


def _out_of_descriptors() -> str:
    raise OSError(errno.EMFILE, "Too many open files")


def test_who_cannot_be_reached_for_long_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers(Member("a", 1), RUN, LocalTransport(LocalHub(), "t", print, None, "a"), lambda: 0.0)
    other = Member("b", 2)
    with caplog.at_level(logging.WARNING, "cutline"):
        for _ in range(40):
            assert peers.refused(LinkRefused(other, "Too many open files", gone=False)) is None
            assert peers.refused(LinkRefused(Member("c", 3), CLOSED_HERE, gone=False)) is None
            assert peers.refused(LinkRefused(Member("d", 4), "nobody listens", gone=True)) == ("d", 4)
    assert [record.getMessage() for record in caplog.records] == [
        "participant 'a' cannot reach 'b' and goes on trying: Too many open files"
    ]
