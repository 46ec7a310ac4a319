"""Bad input gets a clear error, and nothing is lost. One running system for what leaves it running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cutline
from cutline.coordinator.client import Client
from cutline.errors import (
    BlockingInHandler,
    CannotCapture,
    DuplicateLabel,
    DuplicateName,
    Misuse,
    NotRunning,
    SpawnFailed,
    UnknownMethod,
    UnknownParticipant,
    WrongToken,
)
from tests.system.actors import Bouncer, Counter, Faulty, Locked, Patient, Shared
from tests.system.living import again, comes_to, kill


class Exits:
    """Its constructor ends the process."""

    def __init__(self) -> None:
        raise SystemExit(7)


class Fussy:
    """Its constructor raises unless it is told not to."""

    def __init__(self, fine: bool) -> None:
        if not fine:
            raise ValueError("not like this")

    def ok(self) -> str:
        return "ok"


class Sender:
    """Sends to a name that nobody has."""

    def __init__(self, ghost: cutline.Handle) -> None:
        self.ghost = ghost
        self.errors: list[str] = []

    async def ask(self) -> str:
        try:
            await self.ghost.add.remote(1)
        except UnknownParticipant as error:
            return str(error)
        return "no error"

    def ask_then(self) -> None:
        self.ghost.add.remote(1).then(self.fine, error=self.wrong)

    def fine(self, _answer: object) -> None:
        self.errors.append("no error")

    def wrong(self, error: Exception) -> None:
        self.errors.append(type(error).__name__)

    def heard(self) -> list[str]:
        return self.errors

    def typo(self, counter: cutline.Handle) -> None:
        counter.ad.tell(1)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, mark: str) -> Iterator[cutline.System]:
    with cutline.start(tmp_path_factory.mktemp("store"), interval=None, quiet=True) as system:
        yield system


def test_a_state_that_cannot_be_saved_is_known_at_spawn(system: cutline.System) -> None:
    with pytest.raises(CannotCapture) as caught:
        system.spawn("locked", Locked)
    assert "locked" in str(caught.value) and "self.deep['inner'][0]" in str(caught.value)
    # The name is free again, and the system takes checkpoints.
    assert system.spawn("locked", Counter).add.remote(2).result() == 2
    assert system.checkpoint() > 0


def test_a_constructor_that_raises(system: cutline.System) -> None:
    with pytest.raises(ValueError, match="not like this") as caught:
        system.spawn("fussy", Fussy, False)
    assert "in __init__" in str(caught.value.__cause__)
    assert system.spawn("fussy", Fussy, True).ok.remote().result() == "ok"


def test_a_failed_spawn_stays_failed_after_a_recovery(system: cutline.System) -> None:
    with pytest.raises(ValueError, match="not like this"):
        system.spawn("fussy 2", Fussy, False)
    system.spawn("victim", Counter)
    kill(system, "victim")
    assert "fussy 2" not in again(system.status)["participants"]
    # Whoever uses the name is told what kept it from coming up.
    with pytest.raises(ValueError, match="not like this"):
        system.handle("fussy 2").ok.tell()
    assert system.spawn("fussy 2", Fussy, True).ok.remote().result() == "ok"


def test_a_constructor_that_ends_the_process(system: cutline.System) -> None:
    with pytest.raises(SpawnFailed, match=r"'exits'.*exit status 7"):
        system.spawn("exits", Exits)


def test_what_is_no_participant(system: cutline.System) -> None:
    with pytest.raises(Misuse, match="takes a class"):
        system.spawn("function", len)
    for name in ("", "driver", "@coordinator"):
        with pytest.raises(Misuse, match="no name for a participant"):
            system.spawn(name, Counter)


def test_two_of_one_name(system: cutline.System) -> None:
    system.spawn("twin", Counter)
    with pytest.raises(DuplicateName, match="'twin'"):
        system.spawn("twin", Counter)


def test_two_savepoints_of_one_label(system: cutline.System) -> None:
    system.savepoint("once")
    with pytest.raises(DuplicateLabel, match="'once'"):
        system.savepoint("once")


def test_an_asked_handler_that_raises_answers_with_it(system: cutline.System) -> None:
    failing = system.spawn("failing", Counter)
    with pytest.raises(ValueError, match="ouch") as caught:
        failing.fail.remote("ouch").result()
    assert "raise ValueError(text)" in str(caught.value.__cause__)
    # As on Ray: the state stands as the handler left it.
    assert failing.add.remote(1).result() == 101


def test_nobody_of_that_name_in_the_driver(system: cutline.System) -> None:
    ghost = system.handle("ghost")
    with pytest.raises(UnknownParticipant, match="'ghost'"):
        ghost.add.remote(1)
    with pytest.raises(UnknownParticipant, match="'ghost'"):
        ghost.add.tell(1)


def test_nobody_of_that_name_in_a_handler(system: cutline.System) -> None:
    sender = system.spawn("sender", Sender, system.handle("nobody"))
    assert "'nobody'" in sender.ask.remote().result(timeout=20)
    sender.ask_then.tell()
    comes_to(lambda: sender.heard.remote().result(), ["UnknownParticipant"], "the error")


def test_a_typo_fails_at_the_caller(system: cutline.System) -> None:
    counter = system.spawn("typed", Counter)
    with pytest.raises(UnknownMethod, match="did you mean 'add'"):
        counter.ad.remote(1)
    with pytest.raises(UnknownMethod, match="did you mean 'notes'"):
        counter.nots.tell()
    with pytest.raises(TypeError, match=r"\.add\.remote"):
        counter.add(1)
    sender = system.spawn("typist", Sender, counter)
    with pytest.raises(UnknownMethod, match="did you mean 'add'"):
        sender.typo.remote(counter).result()


def test_blocking_inside_a_handler_is_refused(system: cutline.System) -> None:
    counter = system.spawn("blocked on", Counter)
    patient = system.spawn("blocker", Patient)
    for method in (patient.block, patient.get):
        with pytest.raises(BlockingInHandler, match=r"blocker\.\w+ .*blocked on\.add.*await"):
            method.remote(counter).result()
    assert patient.work.remote(0).result() == 1


def test_an_argument_or_an_answer_that_cannot_travel(system: cutline.System) -> None:
    import threading

    counter = system.spawn("choosy", Counter)
    with pytest.raises(CannotCapture, match=r"choosy\.note"):
        counter.note.tell({"here": threading.Lock()})
    with pytest.raises(CannotCapture, match=r"<lambda>|lambda"):
        counter.note.remote([lambda: 1])
    assert counter.add.remote(1).result() == 1


def test_a_wrong_token(system: cutline.System) -> None:
    with pytest.raises(WrongToken, match="token"):
        Client(system.folder, system.name, token="00" * 16)
    with Client(system.folder, system.name) as client:
        assert client.request("status")["flowing"]


def test_no_such_system(system: cutline.System, tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="'other'"):
        Client(system.folder, "other")
    with pytest.raises(NotRunning, match="elsewhere"):
        Client(tmp_path / "elsewhere", system.name)


def test_plain_processes_cannot_be_left(system: cutline.System) -> None:
    with pytest.raises(Misuse, match="cannot go on without this program: plain processes"):
        system.detach()


def test_a_system_that_does_not_matter_is_not_disturbed(system: cutline.System) -> None:
    # After all of the above.
    for name, kind in (("late", Counter), ("later", Faulty), ("latest", Bouncer)):
        system.spawn(name, kind)
    shared = system.spawn("shared", Shared, system.handle("late"))
    assert shared.answers.remote().result() == []
    assert system.status()["halted"] is None
    assert system.checkpoint() > 0
