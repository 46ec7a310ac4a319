"""What a capture changes in the interpreter meanwhile is as it was when it is over, whoever forks in it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from cutline.participant.undisturbed import undisturbed


@pytest.fixture
def usual() -> Iterator[tuple[float, bool]]:
    before = sys.getswitchinterval(), gc.isenabled()
    yield before
    assert (sys.getswitchinterval(), gc.isenabled()) == before


def now() -> tuple[float, bool]:
    return sys.getswitchinterval(), gc.isenabled()


@pytest.mark.parametrize("micros", (15, 19, 99, 100, 5000))
def test_the_switch_interval_does_not_wear_away(micros: int, usual: tuple[float, bool]) -> None:
    """Python keeps whole microseconds, and what it says of some of them is a little less."""
    try:
        sys.setswitchinterval(micros * 1e-6 + 5e-7)
        before = now()
        for _ in range(3):
            with undisturbed():
                assert sys.getswitchinterval() < before[0] or micros < 20
        assert now() == before
    finally:
        sys.setswitchinterval(usual[0] + 5e-7)


@contextlib.contextmanager
def somebody_else_inside() -> Iterator[None]:
    entered, leave = threading.Event(), threading.Event()

    def capture() -> None:
        with undisturbed():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=capture)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_an_error_inside(usual: tuple[float, bool]) -> None:
    with pytest.raises(ValueError, match="x"), undisturbed():
        assert now()[0] < usual[0] and not gc.isenabled()
        raise ValueError("x")
    assert now() == usual


def test_the_last_one_puts_back(usual: tuple[float, bool]) -> None:
    with somebody_else_inside():
        with undisturbed():
            pass
        assert now()[0] < usual[0] and not gc.isenabled()
    assert now() == usual


def test_collections_that_were_off_stay_off(usual: tuple[float, bool]) -> None:
    gc.disable()
    try:
        with undisturbed():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_forked_meanwhile(usual: tuple[float, bool]) -> None:
    """The thread that would have put everything back is not there."""
    with somebody_else_inside():
        pid = os.fork()
        if not pid:
            code = 1
            try:
                as_usual = now() == usual
                with undisturbed():
                    inside = now() != usual
                code = 0 if as_usual and inside and now() == usual else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_forked_by_the_one_inside(usual: tuple[float, bool]) -> None:
    with undisturbed():
        pid = os.fork()
    if not pid:
        os._exit(0 if now() == usual else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
