"""Effects whose functions do what no function should: end the loop or the thread, fork, never answer."""

from __future__ import annotations

import asyncio
import os
import queue
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import ResultNotStored
from cutline.participant.effect_book import RECONCILE_SECONDS, Act, Outcome
from cutline.participant.effect_calls import Calls, Storage, read_answer, reconciled
from cutline.participant.messages import unpack_error, unpack_value
from cutline.storage import MemoryBlobs
from tests.participant.test_effects import Mute, asked, committed


class Leaver:
    """Has the process end when it is pickled."""

    def __reduce__(self) -> Any:
        raise SystemExit(Mute())


@pytest.mark.parametrize("value", [Leaver(), [Mute()]])
def test_a_call_that_returned_is_over_whatever_it_returned(value: Any) -> None:
    storage = Storage(MemoryBlobs(), "ann", ("city", "ann", 1))
    outcome = storage.done("m:pay", 1, value)
    error = unpack_error(read_answer(storage.blobs, outcome.answer, None), participant="ann", live={})
    assert isinstance(error, ResultNotStored) and "has happened" in str(error)


def leaves(key: str) -> Any:
    raise SystemExit(key)


def mutters(key: str) -> Any:
    return Muttering()


class Muttering:
    def __repr__(self) -> str:
        raise SystemExit


async def looks(key: str) -> cutline.Done:
    return cutline.Done(key)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (leaves, "its reconcile function raised SystemExit: k"),
        (mutters, "must return cutline.Done(result) or cutline.NotDone(), not a Muttering that cannot"),
        (looks, ""),
    ],
)
def test_a_reconcile_function_that_is_heard_whatever_it_does(function: Any, said: str) -> None:
    storage = Storage(MemoryBlobs(), "ann", ("city", "ann", 1))
    outcome, trouble = reconciled(lambda: function("k"), storage, "m:pay", 1, lambda _seconds: None)
    assert said in trouble and bool(said) == bool(trouble)
    if outcome is not None:
        answer = read_answer(storage.blobs, outcome.answer, None)
        assert unpack_value(answer, participant="ann", live={}) == "k"


async def leave_the_loop(number: int) -> int:
    if number == 1:
        raise SystemExit(number)
    return number


async def cancel_itself(number: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return number


def test_an_async_call_that_ends_the_loop_takes_no_other_with_it() -> None:
    calls, heard = Calls(), queue.SimpleQueue[Any]()

    def run(function: Any, number: int) -> Any:
        calls.run(
            function, [number], {}, lambda: True, lambda *said: heard.put(said), lambda: heard.put("skipped")
        )
        return heard.get(timeout=60)

    assert isinstance(run(leave_the_loop, 1)[1], SystemExit)
    assert isinstance(run(cancel_itself, 1)[1], asyncio.CancelledError)
    assert run(leave_the_loop, 2) == (2, None)


def fork(path: str) -> str:
    """Both come out of it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return "child" if child == 0 else "parent"


async def fork_async(path: str) -> str:
    return fork(path)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("function", [fork, fork_async])
def test_a_copy_of_the_process_that_a_call_makes_has_no_outcome(tmp_path: Path, function: Any) -> None:
    finished, path = queue.SimpleQueue[Any](), tmp_path / "finished"

    def finish(value: Any, error: BaseException | None) -> None:
        with path.open("a") as file:
            file.write(f"{value}\n")
        finished.put((value, error))

    Calls().run(function, [str(path)], {}, lambda: True, finish, lambda: finish("skipped", None))
    assert finished.get(timeout=60) == ("parent", None)
    assert path.read_text() == "parent\n"


def test_a_reconcile_function_that_never_answers_is_told_of() -> None:
    book = committed(asked(on_unknown="m:look"))
    list(book.start(0.0))
    assert book.unknown("r:k", 1, 5.0) == Act("reconcile", "r:k", 1)
    due = 5.0 + RECONCILE_SECONDS
    assert book.next_due == due and list(book.overdue(due - 1.0)) == []
    assert list(book.overdue(due)) == [Act("halt", "r:k", 1)]
    assert "reconcile function has said nothing for 300 s" in book.entries["r:k"].trouble
    assert book.next_due is None and list(book.overdue(due + 1.0)) == []
    # However late: what it finds out counts, and that it has surely not happened does not by then.
    assert book.judged("r:k", 1, None, due + 2.0) is None and book.entries["r:k"].phase == "halting"
    book.judged("r:k", 1, Outcome("done", b"x", None, "reconcile"), due + 3.0)
    assert ("r:k", 1) in book.outcomes


@pytest.mark.parametrize("said", [None, Outcome("done", b"x")])
def test_a_reconcile_function_that_has_answered_is_waited_for_no_more(said: Outcome | None) -> None:
    book = committed(asked(on_unknown="m:look"))
    list(book.start(0.0))
    book.unknown("r:k", 1, 0.0)
    book.judged("r:k", 1, said, 1.0)
    assert book.next_due is None and list(book.overdue(RECONCILE_SECONDS)) == []
