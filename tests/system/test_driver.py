"""The driver's semantics under losses: loops, answers, keys, handles, Refs, purity of async handlers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import Misuse, ReplayMismatch, RolledBack, StateChangedBeforeAwait
from tests.system.actors import Answerer, Counter, Patient, Shared, Sloppy
from tests.system.living import again, comes_to, kill, pid_of, recoveries, until

STEPS = 12


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, mark: str) -> Iterator[cutline.System]:
    with cutline.start(tmp_path_factory.mktemp("store"), interval=None, quiet=True) as system:
        yield system


@pytest.fixture(autouse=True)
def told(system: cutline.System) -> None:
    """What earlier tests had undone is told, once, before this one."""
    again(system.status)


def ask(call: Any) -> Any:
    """The answer of a question that may have to be put again."""
    return again(lambda: call().result())


# -- loops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint_before", [False, True])
def test_a_loop_rewinds_and_doubles_nothing(system: cutline.System, checkpoint_before: bool) -> None:
    label = f"loop {checkpoint_before}"
    counters = [system.spawn(f"{label} {k}", Counter) for k in range(3)]
    again(system.checkpoint)
    runs: list[int] = []
    killed: list[int] = []

    def body(step: int) -> None:
        runs.append(step)
        cutline.get([counter.add.remote(step) for counter in counters])
        if step in (4, 8) and step not in killed:
            killed.append(step)
            if checkpoint_before:
                # The step's first calls are in the cut: they are not sent again.
                system.checkpoint()
            os.kill(pid_of(system, f"{label} 1"), signal.SIGKILL)
        cutline.get([counter.note.remote(step) for counter in counters])

    system.loop(label, STEPS, body)
    assert len(runs) > STEPS and sorted(set(runs)) == list(range(STEPS))
    for counter in counters:
        assert ask(lambda counter=counter: counter.add.remote(0)) == sum(range(STEPS))
        assert ask(lambda counter=counter: counter.notes.remote()) == list(range(STEPS))
    # Through is through: the body does not run again.
    runs.clear()
    system.loop(label, STEPS, body)
    assert runs == []


def test_a_loop_whose_coordinator_is_lost(system: cutline.System) -> None:
    counter = system.spawn("looped", Counter)
    again(system.checkpoint)
    lost: list[int] = []

    def body(step: int) -> None:
        counter.add.remote(1).result()
        if step == 5 and not lost:
            lost.append(system.coordinator_pid)
            os.kill(system.coordinator_pid, signal.SIGKILL)

    system.loop("orphaned", STEPS, body)
    assert ask(lambda: counter.add.remote(0)) == STEPS
    assert system.coordinator_pid not in lost


def test_a_body_that_does_something_else_is_told(system: cutline.System) -> None:
    counter = system.spawn("fickle", Counter)
    runs: list[int] = []

    def body(step: int) -> None:
        runs.append(step)
        counter.add.remote(len(runs)).result()
        if len(runs) == 1:
            system.checkpoint()
            kill(system, "fickle")
            counter.add.remote(0).result()

    with pytest.raises(ReplayMismatch, match="'fickle loop', step 0"):
        system.loop("fickle loop", 2, body)


def test_a_loop_in_a_loop_is_refused(system: cutline.System) -> None:
    with pytest.raises(Misuse, match="inside another loop"):
        system.loop("outer", 1, lambda _step: system.loop("inner", 1, lambda _inner: None))


# -- answers -------------------------------------------------------------------------------------------


def test_an_undone_answer_is_told_once(system: cutline.System) -> None:
    counter = system.spawn("undone", Counter)
    kept = again(system.checkpoint)
    assert counter.add.remote(5).result() == 5
    kill(system, "undone")
    with pytest.raises(RolledBack) as caught:
        counter.add.remote(1)
    assert caught.value.facts["checkpoint"] == kept
    # The input was logged, so it happens again; it is told once and then life goes on.
    assert counter.add.remote(1).result() == 6


def test_a_committed_answer_is_not_undone(system: cutline.System) -> None:
    counter = system.spawn("stable", Counter)
    before = again(system.checkpoint)
    assert again(lambda: counter.add.remote(7).result(committed=True)) == 7
    assert system.checkpoints()[-1].checkpoint > before
    kill(system, "stable")
    assert counter.add.remote(0).result() == 7


def test_a_question_waits_through_a_loss(system: cutline.System, tmp_path: Path) -> None:
    patient = system.spawn("patient", Patient)
    again(system.checkpoint)
    answer = patient.work.remote(0.5, str(tmp_path / "begun"))
    until((tmp_path / "begun").exists, "the handler")
    kill(system, "patient")
    assert again(lambda: answer.result(timeout=30)) == 1


def test_one_key_is_one_input(system: cutline.System, tmp_path: Path) -> None:
    counter = system.spawn("keyed", Counter)
    again(system.checkpoint)
    first = counter.add.options(key="charge 1").remote(10).result()
    assert counter.add.options(key="charge 1").remote(10).result() == first == 10
    kill(system, "keyed")
    assert ask(lambda: counter.add.options(key="charge 1").remote(10)) == 10
    counter.add.options(key="charge 2").tell(1)
    again(lambda: counter.add.options(key="charge 2").tell(1))
    assert ask(lambda: counter.add.remote(0)) == 11


def test_a_read_is_not_replayed(system: cutline.System, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    answerer = system.spawn("read", Answerer, str(path))
    again(system.checkpoint)
    assert answerer.question.options(durable=False).remote(1).result() == 10
    kill(system, "read")
    assert ask(lambda: answerer.questions.remote()) == []
    assert path.read_text().split() == ["1"]


def test_inputs_keep_their_order_and_wait_for_what_they_follow(system: cutline.System) -> None:
    first, second = system.spawn("cause", Patient), system.spawn("effect", Shared, system.handle("cause"))
    again(system.checkpoint)
    # The driver asks the second only after the first has answered; at the replay it must be so too.
    assert first.work.remote(0.3).result() == 1
    second.ask_done.tell()
    comes_to(lambda: ask(lambda: second.answers.remote()), [1], "the answer")
    kill(system, "cause", "effect")
    comes_to(lambda: ask(lambda: second.answers.remote()), [1], "the replay")


def test_wait_and_get(system: cutline.System) -> None:
    quick, slow = system.spawn("quick", Patient), system.spawn("slow", Patient)
    refs = [slow.work.remote(0.6), quick.work.remote(0.0)]
    ready, rest = cutline.wait(refs, num_returns=1, timeout=20)
    assert ready == [refs[1]] and rest == [refs[0]]
    assert cutline.wait([refs[0]], timeout=0.0) == ([], [refs[0]])
    with pytest.raises(TimeoutError):
        cutline.get(refs, timeout=0.01)
    assert cutline.get(refs) == [1, 1] and cutline.get(refs[0]) == 1
    with pytest.raises(Misuse):
        cutline.get(3)


def test_threads_of_the_driver(system: cutline.System) -> None:
    counter = system.spawn("shared counter", Counter)
    answers: list[int] = []

    def add() -> None:
        for _ in range(20):
            answers.append(ask(lambda: counter.add.remote(1)))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(1, 81))


# -- handles and Refs ----------------------------------------------------------------------------------


def test_handles_and_refs_live_in_states_and_messages(system: cutline.System) -> None:
    counter = system.spawn("lent", Counter)
    one, two = system.spawn("lender", Shared, counter), system.spawn("borrower", Shared, counter)
    for number in (1, 2, 3):
        one.ask.remote(number).result()
    again(system.checkpoint)
    kill(system, "lender", "borrower", "lent")
    # All of it comes out of the images now: handles, Refs, the answers behind them.
    again(lambda: one.follow.tell())
    comes_to(lambda: ask(lambda: one.answers.remote()), [(0, 1), (1, 3), (2, 6)], "continuations")
    one.lend.remote(two).result()
    comes_to(lambda: ask(lambda: two.answers.remote()), [("borrowed", [1, 3, 6], 6)], "borrowing")
    again(system.checkpoint)
    kill(system, "borrower")
    assert ask(lambda: two.answers.remote()) == [("borrowed", [1, 3, 6], 6)]


def test_a_handle_out_of_a_handler(system: cutline.System) -> None:
    shared = system.spawn("myself", Shared, system.handle("nobody at all"))
    for _ in range(2):
        me = ask(lambda: shared.myself.remote())
        assert me == shared and ask(lambda me=me: me.answers.remote()) == []
        # After a rollback in place the module's function must not mean the desk of before.
        kill(system, system.spawn(f"bystander {_}", Counter)._cutline_name)


# -- handlers ------------------------------------------------------------------------------------------


def test_state_changed_before_an_await_is_found(system: cutline.System) -> None:
    counter, sloppy = system.spawn("asked", Counter), system.spawn("sloppy", Sloppy)
    with pytest.raises(StateChangedBeforeAwait, match=r"sloppy\.bad"):
        again(lambda: sloppy.bad.remote(counter).result())
    # What the faulty one had sent was sent, as with any exception.
    for number in range(2, 7):
        assert ask(lambda: sloppy.good.remote(counter)) == number
    assert ask(lambda: sloppy.total.remote()) == 6


def test_only_the_first_calls_are_checked_and_only_small_states(system: cutline.System) -> None:
    counter, sloppy = system.spawn("asked 2", Counter), system.spawn("sloppy 2", Sloppy)
    for _ in range(3):
        ask(lambda: sloppy.late.remote(counter, False))
    ask(lambda: sloppy.late.remote(counter, True))
    large = system.spawn("sloppy 3", Sloppy)
    ask(lambda: large.load.remote(2 * 1024 * 1024))
    ask(lambda: large.bad.remote(counter))


def test_a_long_handler_is_warned_of_and_loses_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with cutline.start(tmp_path, interval=None, checkpoint_timeout=2.0, quiet=True) as own:
        patient, counter = own.spawn("ponderous", Patient), own.spawn("waiting", Counter)
        answer = patient.work.remote(3.5)
        counter.add.tell(1)
        # Time inside a handler is no time out.
        assert own.checkpoint() > 0
        assert answer.result() == 1 and counter.add.remote(1).result() == 2
        assert recoveries(own) == []
    assert "participant 'ponderous': handler 'work' has run for more than 1 s" in capfd.readouterr().err
