"""Handlers and programs that fork, raise what cannot be told, and raise when they are ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import CutlineError, Misuse, RemoteError

from .living import again, comes_to, kill, until


class Mute(Exception):
    """Cannot say what it is, and does not travel either."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise ValueError("no text")


@cutline.actor(on_error="dead_letter")
class Rude:
    """Does what nobody should."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def fork(self, how: str) -> tuple[int, int]:
        """The number of this call and, in the parent, the child."""
        self.count += 1
        child = os.fork()
        if not child and how == "raises":
            raise ValueError("in the child")
        if not child and how == "exits":
            sys.exit(0)
        return self.count, child

    def mute(self) -> None:
        raise Mute

    def each(self) -> Any:
        self.count += 1
        yield self.count

    async def waits(self) -> None:
        try:
            await cutline.sleep(1000)
        finally:
            raise KeyError("its clean-up")


@pytest.fixture
def rude(tmp_path: Path) -> Any:
    with cutline.start(tmp_path / "store", runtime="process", interval=None, quiet=True) as system:
        yield system, system.spawn("rude", Rude)


def test_a_handler_that_forks_and_comes_back_twice_is_one_participant(rude: Any) -> None:
    system, actor = rude
    for number, how in enumerate(("returns", "raises", "exits"), 1):
        told, child = actor.fork.remote(how).result(60)
        assert told == number
        until(partial(_has_ended, child), f"the child that {how} to end", 60)
    assert actor.add.remote().result(60) == 4
    assert system.checkpoint() > 0


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def _of_a_child(deed: Callable[[], object]) -> int:
    """The exit status of a fork of this process that does it, within a minute."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        status = 1
        try:
            deed()
            status = 0
        except Misuse as error:
            status = 7 if "was forked from the program" in str(error) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_of_the_program_is_told_that_it_has_no_system_and_leaves_it_alone(rude: Any) -> None:
    system, actor = rude
    ref = actor.add.remote()
    for call in (
        lambda: actor.add.remote(),
        lambda: actor.add.tell(),
        lambda: ref.result(),
        lambda: system.status(),
        lambda: system.checkpoint(),
        lambda: system.spawn("other", Rude),
        lambda: system.loop("loop", 1, lambda _step: None),
    ):
        assert _of_a_child(call) == 7
    assert _of_a_child(system.stop) == 0
    assert _of_a_child(lambda: system.__exit__(None, None, None)) == 0
    assert ref.result(60) == 1
    assert actor.add.remote().result(60) == 2


def test_what_cannot_be_told_is_told_as_that_and_halts_nobody(rude: Any) -> None:
    system, actor = rude
    with pytest.raises(RemoteError, match="Mute in participant 'rude': .its __str__ raised ValueError"):
        actor.mute.remote().result(60)
    with pytest.raises(Misuse, match=r"rude\.each is a generator"):
        actor.each.remote().result(60)
    assert actor.add.remote().result(60) == 1
    system.checkpoint()
    actor.mute.tell()
    actor.each.tell()
    comes_to(lambda: again(lambda: _add(actor)) >= 2, True, "the dead letters to be put aside", 60)


def _add(actor: Any) -> int:
    try:
        return int(actor.add.remote().result(60))
    except CutlineError as error:
        if isinstance(error, cutline.errors.RolledBack):
            raise
        raise AssertionError(f"the system did not go on: {error}") from error


def test_a_clean_up_that_raises_does_not_break_a_rollback(rude: Any) -> None:
    system, actor = rude
    other = system.spawn("other", Rude)
    before = actor.pid.remote().result(60)
    actor.waits.remote()
    assert actor.add.remote().result(60) == 1
    system.checkpoint()
    kill(system, "other")
    assert again(lambda: actor.add.remote().result(60)) == 2
    # Brought back in place, not ended after the grace of a rollback.
    assert again(lambda: actor.pid.remote().result(60)) == before
    assert again(lambda: other.add.remote().result(60)) == 1
