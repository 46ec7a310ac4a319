"""Questions to people: asked once, answered once, by the cut; whoever dies, and whatever else is said."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator.cli import app
from cutline.errors import (
    AnswerRefused,
    AnswerTooLate,
    AnswerUnfit,
    BelowHorizon,
    CheckpointNotFound,
    Corrupt,
    NotAStore,
    QuestionAnswered,
    QuestionUnknown,
    SystemHalted,
)
from cutline.storage import open_store
from tests.storage.servers import Postgres
from tests.system.approvals import Approver, Verdict, thorough
from tests.system.living import ROOT, again, comes_to, kill, until


def started(folder: Path, **options: Any) -> cutline.System:
    return cutline.start(folder / "store", interval=None, quiet=True, **options)


def asked(folder: Path, count: int = 1, **options: Any) -> list[cutline.Question]:
    """The open questions, when there are so many."""
    found: list[cutline.Question] = []

    def there() -> bool:
        found[:] = cutline.pending(folder / "store", **options)
        return len(found) == count

    until(there, f"{count} questions")
    return found


def got(approver: cutline.Handle) -> Any:
    return again(lambda: approver.all_got.remote().result())


def verb(folder: Path, *words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, words), "-s", str(folder / "store")])
    return done.exit_code, done.output


def test_a_question_is_asked_answered_and_delivered(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("go on?")
        (question,) = asked(tmp_path)
        assert (question.participant, question.text, question.state) == ("approver", "go on?", "open")
        assert question.schema["required"] == ["approved"] and question.deadline is None
        assert system.pending() == [question]
        assert "approver" in verb(tmp_path, "pending")[1]
        # Nothing that does not count is recorded.
        for value, text in (("yes", "an object is wanted"), ({"approved": 1}, "true or false is wanted")):
            with pytest.raises(AnswerUnfit, match=text):
                cutline.answer(tmp_path / "store", question.id, value)
        answered = cutline.answer(tmp_path / "store", question.id, Verdict(True, "fine"))
        assert answered.state == "answered"
        comes_to(lambda: got(approver), [("go on?", Verdict(True, "fine"))], "the answer")
        with pytest.raises(QuestionAnswered, match="the first one counts"):
            system.answer(question.id, Verdict(False))
        assert system.pending() == []
        # Awaited, and two at once; the command line takes them as JSON.
        one, two = approver.ask_and_wait.remote("really?"), approver.both.remote()
        ids = {each.text: each.id for each in asked(tmp_path, 3)}
        assert verb(tmp_path, "answer", ids["b?"], "7") == (0, f"{ids['b?']} is answered\n")
        assert verb(tmp_path, "answer", tmp_path / "store", ids["a?"], "6")[0] == 0
        status, output = verb(tmp_path, "answer", ids["really?"], '{"approved": false}', "--json")
        assert status == 0 and json.loads(output)["state"] == "answered"
        assert two.result(timeout=60) == [6, 7] and one.result(timeout=60) is False
        status, output = verb(tmp_path, "answer", ids["a?"], "6")
        assert status == 1 and "has an answer already" in " ".join(output.split())
    # Nothing is open, and the ones that were are still known.
    assert cutline.pending(tmp_path / "store") == []
    with pytest.raises(QuestionAnswered):
        cutline.answer(tmp_path / "store", ids["b?"], 7)


@thorough
def test_an_answer_while_nothing_runs_is_delivered_at_the_next_start(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("first?")
        approver.ask.tell("second?")
        asked(tmp_path, 2)
        system.savepoint("asked")
    first, second = asked(tmp_path, 2)
    assert (first.text, second.text) == ("first?", "second?")
    cutline.answer(tmp_path / "store", second.id, {"approved": True})
    assert [each.text for each in asked(tmp_path)] == ["first?"]
    shown = cutline.pending(tmp_path / "store", "asked")
    assert [(each.text, each.state) for each in shown] == [("first?", "open"), ("second?", "answered")]
    assert [each["state"] for each in json.loads(verb(tmp_path, "pending", "asked", "--json")[1])] == [
        "open", "answered"
    ]  # fmt: skip
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        comes_to(lambda: got(approver), [("second?", Verdict(True))], "the answer")
        cutline.answer(tmp_path / "store", first.id, Verdict(False))
        comes_to(
            lambda: got(approver), [("second?", Verdict(True)), ("first?", Verdict(False))], "the other one"
        )
        # Undone by the loss, and delivered again.
        kill(system, "approver")
        comes_to(lambda: len(got(approver)), 2, "both once more")


@thorough
def test_a_question_of_no_committed_cut_is_not_asked(tmp_path: Path) -> None:
    """What is undone before a checkpoint holds it was never asked: what is asked then is the only one."""
    with started(tmp_path, min_pause=0) as system:
        approver = system.spawn("approver", Approver)
        seen: set[str] = set()
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                seen.update(each.id for each in cutline.pending(tmp_path / "store"))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            for at in range(3):
                approver.ask.tell(f"question {at}?")
                kill(system, "approver")
            asked(tmp_path, 3)
        finally:
            done.set()
            watcher.join()
        assert seen == {each.id for each in asked(tmp_path, 3)}


def race(store: str, question: str, count: int = 4) -> list[str]:
    """What so many processes are told that answer at once, each with its number."""
    code = (
        "import cutline, sys\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    cutline.answer(sys.argv[1], sys.argv[2], {'approved': True, 'comment': sys.argv[3]})\n"
        "    print('taken')\n"
        "except cutline.errors.QuestionAnswered:\n"
        "    print('second')\n"
    )
    people = [
        subprocess.Popen(
            [sys.executable, "-c", code, store, question, str(at)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for at in range(count)
    ]
    for each in people:
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    for each in people:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    return [each.communicate(timeout=60)[0].strip() for each in people]


@thorough
def test_two_who_answer_at_once_are_told_who_was_first(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("go on?")
        (question,) = asked(tmp_path)
        said = race(str(tmp_path / "store"), question.id)
        assert sorted(said) == ["second", "second", "second", "taken"]
        expected = [("go on?", Verdict(True, str(said.index("taken"))))]
        comes_to(lambda: got(approver), expected, "the first answer")


@thorough
def test_the_same_with_a_catalog_in_postgresql(tmp_path: Path, postgres_server: Postgres) -> None:
    store = f"{tmp_path / 'store'}?catalog={postgres_server.url('s_people')}"
    with cutline.start(store, interval=None, quiet=True) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("go on?")
        approver.ask.tell("quickly?", 1.0)
        until(lambda: len(system.pending()) == 2, "the questions")
        comes_to(lambda: got(approver), [("quickly?", "DeadlinePassed")], "the end of the deadline")
        kill(system, "approver")
        (question,) = system.suspend_when_waiting(60).questions
    said = race(store, question.id)
    assert sorted(said) == ["second", "second", "second", "taken"]
    with cutline.start(store, interval=None, quiet=True) as system:
        approver = system.spawn("approver", Approver)
        expected = [("quickly?", "DeadlinePassed"), ("go on?", Verdict(True, str(said.index("taken"))))]
        comes_to(lambda: got(approver), expected, "the first answer")


@thorough
def test_a_deadline_that_passes_is_an_error_and_answers_are_refused(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("quickly?", 1.0)
        approver.ask.tell("some day?", 3600.0)
        both = {each.text: each for each in asked(tmp_path, 2)}
        comes_to(lambda: got(approver), [("quickly?", "DeadlinePassed")], "the end of the deadline")
        with pytest.raises(AnswerTooLate, match="deadline, which has passed"):
            cutline.answer(tmp_path / "store", both["quickly?"].id, Verdict(True))
        assert [each.text for each in asked(tmp_path)] == ["some day?"]
        kill(system, "approver")
        comes_to(lambda: got(approver), [("quickly?", "DeadlinePassed")], "the same once more")
    # One that passes while nothing runs: refused before anything was recorded, and heard at the next start.
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("by then?", 2.0)
        late = {each.text: each for each in asked(tmp_path, 2)}["by then?"]
        assert late.deadline is not None
        system.checkpoint()
    time.sleep(max(0.0, late.deadline - time.time()) + 0.1)
    with pytest.raises(AnswerTooLate):
        cutline.answer(tmp_path / "store", late.id, Verdict(True))
    assert [each.text for each in asked(tmp_path)] == ["some day?"]
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        comes_to(lambda: got(approver)[-1:], [("by then?", "DeadlinePassed")], "the late news")


@thorough
def test_forks_ask_questions_of_their_own(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("go on?")
        asked(tmp_path)
        system.savepoint("asked")
        (origins,) = asked(tmp_path)
        cutline.answer(tmp_path / "store", origins.id, Verdict(True))
        comes_to(lambda: got(approver), [("go on?", Verdict(True))], "the origin's answer")
    with started(tmp_path, restore="asked") as system:
        approver = system.spawn("approver", Approver)
        # What the origin was answered is not the fork's.
        (forks,) = asked(tmp_path)
        assert forks.text == origins.text and forks.id != origins.id and forks.lineage != origins.lineage
        with pytest.raises(
            QuestionUnknown, match=f"another one is open under that number. Open are: {forks.id}"
        ):
            cutline.answer(tmp_path / "store", origins.id, Verdict(True))
        cutline.answer(tmp_path / "store", forks.id, Verdict(False))
        comes_to(lambda: got(approver), [("go on?", Verdict(False))], "the fork's answer")


@thorough
def test_what_is_no_question_of_that_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        cutline.pending(tmp_path / "store")
    with started(tmp_path, name="other") as other:
        other.spawn("approver", Approver).ask.tell("theirs?")
        (theirs,) = asked(tmp_path, name="other")
    with pytest.raises(CheckpointNotFound, match="there is no system 'default'.*there are: other"):
        cutline.pending(tmp_path / "store")
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        for wrong in (theirs.id, "approver#1", "approver#1.00000000", "", "nobody"):
            with pytest.raises(QuestionUnknown) as caught:
                cutline.answer(tmp_path / "store", wrong, True)
            assert isinstance(caught.value, AnswerRefused) and "Open are: none" in str(caught.value)
        with pytest.raises(QuestionUnknown, match="system 'other' asks it"):
            cutline.answer(tmp_path / "store", theirs.id, True)
        # Left behind by a restore: the lineage that asked it does not go on.
        system.savepoint("before")
        approver.ask.tell("left behind?")
        (left,) = asked(tmp_path)
    with started(tmp_path, restore="before") as system:
        with pytest.raises(
            QuestionUnknown, match=f"lineage {left.lineage} asked it, and the system does not"
        ):
            cutline.answer(tmp_path / "store", left.id, Verdict(True))


@thorough
def test_a_question_that_was_given_up_is_withdrawn(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        impatient = approver.impatient.remote()
        (question,) = asked(tmp_path)
        assert impatient.result(timeout=60) == "gave up"
        system.checkpoint()
        assert cutline.pending(tmp_path / "store") == []
        with pytest.raises(QuestionUnknown, match="nobody waits for it any more"):
            system.answer(question.id, True)
        assert system.suspend_when_waiting(60).questions == ()


def damage(folder: Path, checkpoint: int) -> None:
    """Cuts off what the packs of a checkpoint end with."""
    with open_store(folder / "store", create=False) as store:
        row = store.catalog.find("default", str(checkpoint))
        manifest = store.read_manifest(row)
    for image in manifest.images.values():
        for path in (folder / "store").rglob(image.ref.key.rpartition("/")[2]):
            if str(path).endswith(image.ref.key):
                path.chmod(0o600)
                path.write_bytes(path.read_bytes()[:-8])


@thorough
def test_answers_to_a_damaged_store(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)
        approver.ask.tell("before?")
        asked(tmp_path)
        kept = system.checkpoint()
        approver.note.tell("more")
        comes_to(lambda: got(approver), ["more"], "the note")
        newest = system.checkpoint()
        assert newest > kept
    with open_store(tmp_path / "store", create=False) as store:
        last = store.catalog.checkpoints("default")[-1].checkpoint
    damage(tmp_path, last)
    # The system would go on from the one before it, which asks the same.
    (question,) = asked(tmp_path)
    cutline.answer(tmp_path / "store", question.id, Verdict(True))
    with open_store(tmp_path / "store", create=False) as store:
        rows = store.catalog.checkpoints("default")
    for row in rows:
        if question.checkpoint <= row.checkpoint != last:
            damage(tmp_path, row.checkpoint)
    # Below it nobody goes back by himself: the question was asked and answered.
    with pytest.raises(BelowHorizon, match="the answer to question approver#1"):
        cutline.pending(tmp_path / "store")
    with pytest.raises(BelowHorizon):
        cutline.answer(tmp_path / "store", question.id, Verdict(True))


@thorough
def test_an_answer_that_was_tampered_with_halts(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        system.spawn("approver", Approver).ask.tell("go on?")
        (question,) = asked(tmp_path)
        system.checkpoint()
    cutline.answer(tmp_path / "store", question.id, Verdict(False))
    with open_store(tmp_path / "store", create=False) as store:
        database: Any = store.catalog
        with database.database.writing() as connection:
            connection.execute("UPDATE effects SET attempt = 2")
    with pytest.raises(Corrupt):
        cutline.answer(tmp_path / "store", question.id, Verdict(True))
    with started(tmp_path) as system:
        approver = system.spawn("approver", Approver)

        def halted() -> bool:
            try:
                got(approver)
            except SystemHalted as error:
                return "effect r:" in str(error)
            return False

        until(halted, "the end of the system")
