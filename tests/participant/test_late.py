"""Calls whose arguments are still being made, without Ray: its ObjectRef is stood in for."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from cutline.participant.late import Gates, late_call


class FakeRef:
    """What an ObjectRef is to us: something with a future."""

    def __init__(self) -> None:
        self.made: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.made


@pytest.fixture(autouse=True)
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("ray")
    module.ObjectRef = FakeRef  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", module)


@pytest.fixture
def gates() -> Iterator[Gates]:
    made = Gates()
    yield made
    made.close()


class Log:
    """What went through, and a way to wait for it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.changed = threading.Condition()

    def note(self, what: Any) -> None:
        with self.changed:
            self.seen.append(what)
            self.changed.notify_all()

    def upto(self, count: int) -> list[Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, 10)
            return list(self.seen)


def test_plain_arguments_are_not_late() -> None:
    assert late_call((1, "a", [FakeRef()]), {"k": None}) is None


def test_outline_and_values() -> None:
    first, second = FakeRef(), FakeRef()
    call = late_call((first, 2), {"by_name": second})
    assert call is not None and not call.ready
    args, kwargs = call.outline()
    assert args[1] == 2 and args[0] == kwargs["by_name"]
    first.made.set_result("one")
    assert not call.ready
    second.made.set_result("two")
    assert call.ready and call.filled() == (("one", 2), {"by_name": "two"})


def test_a_failed_value_raises_what_made_it_fail() -> None:
    ref = FakeRef()
    call = late_call((ref,), {})
    assert call is not None
    ref.made.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        call.filled()


def test_what_is_there_goes_at_once(gates: Gates) -> None:
    log = Log()
    assert gates.through("a", None, lambda: log.note(1), log.note) is None
    assert log.seen == [1]


def test_order_to_one_receiver_and_none_between_two(gates: Gates) -> None:
    log, refs = Log(), [FakeRef(), FakeRef()]
    for number, ref in enumerate(refs):
        gates.through("a", late_call((ref,), {}), partial(log.note, ("late", number)), log.note)
        gates.through("a", None, partial(log.note, ("soon", number)), log.note)
    gates.through("b", None, lambda: log.note("other"), log.note)
    assert log.seen == ["other"]
    refs[1].made.set_result(1)
    refs[0].made.set_result(0)
    assert log.upto(5)[1:] == [("late", 0), ("soon", 0), ("late", 1), ("soon", 1)]


def test_a_failure_is_told_and_the_next_goes_on(gates: Gates) -> None:
    log, ref = Log(), FakeRef()

    def fail() -> None:
        raise ValueError("packed badly")

    gates.through("a", late_call((ref,), {}), fail, lambda error: log.note(str(error)))
    done = gates.through("a", None, lambda: log.note("after"), log.note)
    ref.made.set_result(0)
    assert log.upto(2) == ["packed badly", "after"]
    assert done is not None
    done.result(10)
    # The gate is open again.
    assert gates.through("a", None, lambda: log.note("free"), log.note) is None or log.upto(3)
