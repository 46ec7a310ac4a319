"""Systems that are suspended while they wait, timers, and clocks that jump."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator import people
from cutline.coordinator.begin import lineage_to_run
from cutline.coordinator.cli import app
from cutline.coordinator.people import asked
from cutline.errors import (
    CutlineError,
    DuplicateLabel,
    Misuse,
    QuestionAnswered,
    QuestionUnknown,
    StoreInUse,
    SystemStopped,
)
from cutline.participant.clock import CLOCK
from cutline.storage import open_store
from cutline.storage.owners import Owner
from tests.system.approvals import Approver, Verdict, thorough
from tests.system.living import MARK, again, comes_to, kill, marked, until

MONTH = 30 * 86400.0


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that says by how much the clock of every process is ahead."""
    path = tmp_path / "clock"
    path.write_text("0")
    monkeypatch.setenv(CLOCK, str(path))
    yield path


def move(path: Path, seconds: float) -> None:
    """All at once: whoever reads it meanwhile sees one of the two."""
    beside = path.with_suffix(".new")
    beside.write_text(str(seconds))
    beside.rename(path)


def started(folder: Path, name: str = "store", **options: Any) -> cutline.System:
    return cutline.start(folder / name, interval=None, quiet=True, **options)


def got(approver: cutline.Handle) -> Any:
    return again(lambda: approver.all_got.remote().result())


def nobody_left() -> None:
    until(lambda: not marked(os.environ[MARK]), "the end of all processes")


def gated(folder: Path, topics: list[str], gate: Any) -> dict[str, Any]:
    """Everybody's state when all topics went through the gate; ``gate`` says how an answer comes."""
    with started(folder) as system:
        printer = system.spawn("printer", Approver)
        writer = system.spawn("writer", Approver, printer)
        for topic in topics:
            writer.publish.tell(topic)
        gate(system)
    with started(folder, "copy" if (folder / "copy").exists() else "store") as system:
        printer, writer = system.spawn("printer", Approver), system.spawn("writer", Approver, None)
        until(lambda: len(got(writer)) == len(topics), "all topics")
        # In whatever order the answers came.
        return {"printer": sorted(got(printer)), "writer": sorted(got(writer), key=str)}


def open_and_die(folder: str) -> None:
    """A lineage goes on from what was imported, and has no checkpoint of its own."""
    spec = {"take_over": False, "restore": None, "fresh": False, "effects": None}
    with open_store(folder, create=False) as store:
        lease = store.catalog.acquire_lease("default", Owner.here("a test"), 60.0, time.time())
        lineage, _ = lineage_to_run(store, lease, "default", spec)
        store.catalog.opened(lease, lineage)
        store.catalog.release_lease(lease)


def opens_first(folder: str) -> Callable[..., None]:
    """In the place of a look that `answer` takes before it records, and after: the first one opens a copy."""
    looks: list[str] = []

    def look(*_given: Any) -> None:
        if not looks:
            open_and_die(folder)
        looks.append("")

    return look


def said(topic: str) -> Verdict:
    return Verdict("tea" in topic, f"about {topic[:20]}")


def test_a_gate_of_a_month_changes_nothing(
    tmp_path: Path, moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ["tea", "coffee", "tea and cake"]

    def at_once(system: cutline.System) -> None:
        until(lambda: len(system.pending()) == len(topics), "all questions")
        for question in system.pending():
            system.answer(question.id, said(question.text))
        system.suspend_when_waiting(60)

    def a_month_later(system: cutline.System) -> None:
        suspended = system.suspend_when_waiting(60)
        assert [each.participant for each in suspended.questions] == ["writer"] * 3
        assert suspended.next_timer is None and suspended.label == "suspended-1"
        nobody_left()
        with pytest.raises(SystemStopped):
            system.checkpoint()
        move(moved, MONTH)
        store, packed, copy = (str(folder / name) for name in ("store", "packed", "copy"))
        # One is answered before it is carried away, the others in the copy that goes on in its place.
        first, *rest = cutline.pending(store)
        cutline.answer(store, first.id, said(first.text))
        verb("export", suspended.label, packed, "-s", store)
        verb("import", packed, "-s", copy, "--claim", "--source", store)
        with pytest.raises(StoreInUse, match="goes on in a copy that has claimed it"):
            cutline.answer(store, rest[0].id, said(rest[0].text))
        here = cutline.pending(copy)
        assert [each.text for each in here] == [each.text for each in rest]
        *others, last = here
        for question in others:
            cutline.answer(copy, question.id, said(question.text))
        # While the last one is answered somebody opens it, who dies before he does anything: nothing is asked
        # again.
        with monkeypatch.context() as patch:
            patch.setattr(people, "_need_unclaimed", opens_first(copy))
            cutline.answer(copy, last.id, said(last.text))
        assert cutline.pending(copy) == [] and not marked(os.environ[MARK])
        with open_store(copy, create=False) as there:
            head = there.catalog.head_lineage("default")
            assert head is not None and len(there.catalog.effects(head)) == 1
        again_asked = cutline.pending(copy, "newest")
        for question in again_asked:
            with pytest.raises(QuestionUnknown):
                cutline.answer(copy, question.id, said("no"))
        with open_store(copy, create=False) as there:
            ids = [each.id for each in asked(there, "default")]
        assert len(ids) == len(topics) and not {each.id for each in again_asked} & set(ids)
        for identity in ids:
            with pytest.raises(QuestionAnswered):
                cutline.answer(copy, identity, said("no"))

    folder = tmp_path / "gated"
    folder.mkdir()
    with_gate = gated(folder, topics, a_month_later)
    without = tmp_path / "free"
    without.mkdir()
    assert gated(without, topics, at_once) == with_gate
    assert with_gate["writer"][0][1].comment.startswith("about publish")


def verb(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("outside", [False, pytest.param(True, marks=thorough)])
def test_what_was_acknowledged_is_in_the_savepoint(tmp_path: Path, outside: bool) -> None:
    """Also elsewhere, where nobody has the log of what was sent."""
    acked: list[str] = []
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)

        def send() -> None:
            with suppress(SystemStopped):
                while True:
                    approver.note.options(acked=True).tell(str(len(acked)))
                    acked.append(str(len(acked)))

        sending = threading.Thread(target=send)
        sending.start()
        until(lambda: len(acked) > 50, "input")
        if outside:
            verb("suspend", "-s", str(tmp_path / "store"))
        else:
            system.suspend()
        sending.join(30)
        assert not sending.is_alive()
    store, packed, copy = (str(tmp_path / name) for name in ("store", "packed", "copy"))
    verb("export", "suspended-1", packed, "-s", store)
    verb("import", packed, "-s", copy, "--claim", "--source", store)
    with started(tmp_path, "copy") as system:
        approver = system.spawn("approver", Approver)
        comes_to(lambda: got(approver), acked, "all that was acknowledged")


def test_a_restore_that_fails_changes_nothing_of_where_it_goes_on(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        system.savepoint("early")
        approver.note.tell("later")
    for options in ({"restore": "early"}, {"fresh": True, "effects": "recorded"}):
        with pytest.raises(CutlineError):
            started(tmp_path, allow=["nothing.of.this"], **options)
    with started(tmp_path) as again_started:
        assert again_started.lineage == system.lineage
        approver = again_started.spawn("approver", Approver)
        comes_to(lambda: got(approver), ["later"], "what was there before")
    with started(tmp_path, restore="early") as restored:
        approver = restored.spawn("approver", Approver)
        assert got(approver) == []
        os.kill(restored.coordinator_pid, signal.SIGKILL)
        until(lambda: restored.coordinator_deaths, "another coordinator")
        assert again(restored.status)["lineage"] == restored.lineage
    # That one has come up: it goes on there.
    with started(tmp_path) as last:
        assert last.lineage == restored.lineage
    told = verb("tree", str(tmp_path / "store"))
    assert told.count("never came up") == 2 and told.count("goes on") == 1


@thorough
def test_a_system_is_suspended_and_goes_on(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        system.savepoint("mine")
        approver.ask.tell("go on?")
        with pytest.raises(DuplicateLabel):
            system.suspend("mine")
        with pytest.raises(Misuse, match="inside a loop's body"):
            system.loop("once", 1, lambda step: system.suspend())
        # It goes on.
        approver.note.tell("more")
        comes_to(lambda: got(approver), ["more"], "the note")
        suspended = system.suspend("then")
        nobody_left()
        assert suspended.label == "then"
    with started(tmp_path) as system:
        assert system.resumed == suspended.checkpoint
        approver = system.spawn("approver", Approver)
        # Timers that are due soon are waited for.
        approver.remind.tell(1.0, "soon")
        approver.remind.tell(3600.0, "late")
        before = time.time()
        second = system.suspend_when_waiting(60)
        assert second.label == "suspended-1" and second.next_timer is not None
        assert 3500 < second.next_timer - before < 3700
    (question,) = cutline.pending(tmp_path / "store")
    assert question.text == "go on?"
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        assert got(approver) == ["more", "soon"]
        with pytest.raises(TimeoutError, match="still does something else"):
            system.suspend_when_waiting(2, sooner=7200)


@thorough
def test_a_system_is_suspended_from_outside(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("go on?")
        approver.remind.tell(0.5, "soon")
        said = verb("suspend", "--when-waiting", "--timeout", "60", "-s", str(tmp_path / "store"))
        assert said.endswith(", savepoint suspended-1\n")
        nobody_left()
        with pytest.raises(SystemStopped):
            got(approver)
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        assert got(approver) == ["soon"] and len(system.pending()) == 1


@thorough
def test_an_answer_that_comes_after_the_export_is_not_lost(tmp_path: Path) -> None:
    """The copy takes it along when it claims its source; so does a copy of the copy."""
    with started(tmp_path) as system:
        system.spawn("approver", Approver).ask.tell("go on?")
        until(lambda: system.pending(), "the question")
        suspended = system.suspend_when_waiting(60)
    first, second, copy = (str(tmp_path / name) for name in ("store", "between", "copy"))
    packed, again_packed = str(tmp_path / "packed"), str(tmp_path / "again")
    verb("export", suspended.label, packed, "-s", first)
    cutline.answer(first, suspended.questions[0].id, Verdict(True, "late"))
    verb("import", packed, "-s", second, "--claim", "--source", first)
    assert cutline.pending(second) == []
    verb("export", suspended.label, again_packed, "-s", second)
    verb("import", again_packed, "-s", copy, "--claim", "--source", second)
    assert cutline.pending(copy) == []
    with started(tmp_path, "copy") as system:
        approver = system.spawn("approver", Approver)
        comes_to(lambda: got(approver), [("go on?", Verdict(True, "late"))], "the answer")


@thorough
def test_timers_fire_once_whatever_the_clock_says(tmp_path: Path, moved: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        # Set back by a day: it is waited as long as was asked for, no longer.
        approver.remind.tell(1.5, "first")
        system.checkpoint()
        move(moved, -86400.0)
        comes_to(lambda: got(approver), ["first"], "a timer under a clock that was set back")
        # Undone by a loss, and restored with the clock behind: once more, in the history that remains.
        kill(system, "approver")
        comes_to(lambda: got(approver), ["first"], "the same once more")
        for seconds, what in ((2 * MONTH, "third"), (MONTH / 2, "second"), (10 * MONTH, "never")):
            approver.remind.tell(seconds, what)
        approver.nap.tell(MONTH / 4)
        system.checkpoint()
        move(moved, MONTH)
        wanted = ["first", f"slept {MONTH / 4}", "second"]
        comes_to(lambda: got(approver), wanted, "what came due in a month")
        system.suspend()
    move(moved, 3 * MONTH)
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        wanted.append("third")
        comes_to(lambda: got(approver), wanted, "what came due while nothing ran")
        # A cut with all of it as past: nothing fires again.
        system.checkpoint()
        kill(system, "approver")
        approver.note.tell("end")
        comes_to(lambda: got(approver), [*wanted, "end"], "each of them once")


@thorough
def test_a_deadline_is_a_date(tmp_path: Path, moved: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("within a week?", 7 * 86400.0)
        until(lambda: system.pending(), "the question")
        system.suspend()
    move(moved, MONTH)
    assert cutline.pending(tmp_path / "store") == []
    # By a clock that was wrong, and is put right, it has not passed yet.
    move(moved, 0)
    assert len(cutline.pending(tmp_path / "store")) == 1
    move(moved, MONTH)
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        comes_to(lambda: got(approver), [("within a week?", "DeadlinePassed")], "the end of the deadline")
        # It is recorded: no clock takes that back.
        move(moved, 0)
        assert system.pending() == []
