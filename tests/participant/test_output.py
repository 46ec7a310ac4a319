"""What a participant keeps of what was emitted, and what it gives the coordinator."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

import cutline
from cutline.errors import CannotCapture, Misuse, OutsideHandler
from cutline.participant.desk_image import desk_to_doc, load_desk, rerun
from cutline.participant.emitting import _Giver
from cutline.participant.messages import pack_value
from cutline.participant.output import Output
from cutline.storage.sinks import Origin, Record, identity
from tests.participant.desks import ME, Bench, bound
from tests.system.living import until

SINKS = {"lines": {"kind": "file"}, "ears": {"kind": "call"}, "rows": {"kind": "postgres"}}


class Clerk:
    """Emits."""

    def write(self, *values: Any, sink: str = "lines") -> None:
        for value in values:
            cutline.emit(sink, value)

    async def twice(self, sink: str, first: Any, second: Any) -> None:
        cutline.emit(sink, first)
        await self.peer.wait.remote()  # type: ignore[attr-defined]
        cutline.emit(sink, second)

    async def perhaps(self, sink: str, bad: Any, good: Any) -> None:
        with suppress(Misuse):
            cutline.emit(sink, bad)
        cutline.emit(sink, good)
        await self.peer.wait.remote()  # type: ignore[attr-defined]


@contextmanager
def benched() -> Iterator[Bench]:
    bench = Bench(Clerk)
    bench.desk.output = Output(SINKS, "line", ME)
    with bound(bench):
        yield bench


def numbers(output: Output, sink: str = "lines", upto: int = 99) -> list[tuple[int, int]]:
    return [(each.number, each.checkpoint) for each in output.wanted(sink, upto)]


def again(bench: Bench, checkpoint: int, lineage: str = "line") -> Bench:
    """Another process with the image; nothing is run again."""
    other = Bench(Clerk)
    other.desk.output = Output(SINKS, lineage, ME)
    load_desk(other.desk, msgpack.unpackb(msgpack.packb(desk_to_doc(bench.desk)), strict_map_key=False))
    other.desk.output.restored(checkpoint)
    return other


def test_what_is_owed_is_what_committed_checkpoints_hold() -> None:
    with benched() as bench:
        output = bench.desk.output
        assert "output" not in desk_to_doc(bench.desk) and output.facts() == {} and output.is_empty
        bench.tell("write", "a", "b")
        assert output.facts() == {"emits": {"lines": 2}} and output.owed() == {}
        output.captured(3)
        bench.tell("write", "c")
        output.captured(4)
        output.settled(3, False)
        assert output.owed() == {}
        output.settled(4, True)
        bench.tell("write", "d")
        # Its place is that of the first capture, whatever became of that.
        assert output.owed() == {"lines": [[3, 2], [4, 3]]}
        output.published("lines", {"line": 2, "another": 9})
        assert numbers(output) == [(3, 4), (4, 0)] and output.bytes == 4
        output.published("lines", {"line": 4})
        output.published("none", {"line": 4})
        assert output.is_empty and output.bytes == 0 and output.facts() == {}
        bench.tell("write", "e")
        assert numbers(output) == [(5, 0)]


def test_bytes_that_no_capture_holds() -> None:
    with benched() as bench:
        output = bench.desk.output
        bench.tell("write", "a", "b")
        assert output.fresh_bytes == 4
        output.captured(1)
        bench.tell("write", "c")
        assert output.fresh_bytes == 2
        output.settled(1, False)
        assert output.fresh_bytes == 6
        output.captured(2)
        output.captured(3)
        output.settled(2, False)
        assert output.fresh_bytes == 0
        # What another one holds, or a committed one that is not published yet, is no news.
        output.settled(3, True)
        bench.tell("write", "d")
        output.captured(4)
        output.settled(4, False)
        assert output.fresh_bytes == 2
        output.captured(5)
        bench.tell("write", "e")
        output.captured(6)
        output.settled(6, False)
        assert output.fresh_bytes == 2
        output.settled(5, False)
        assert output.fresh_bytes == 4


def test_an_image_and_a_fork() -> None:
    with benched() as bench:
        bench.tell("write", "a")
        bench.desk.output.captured(1)
        bench.tell("write", "b")
        other = again(bench, 2)
        output = other.desk.output
        assert numbers(output) == [(1, 1), (2, 2)] and output.owed() == {"lines": [[1, 1], [2, 2]]}
        # In a fork they keep their lineage, and numbers go on.
        fork = again(bench, 2, "fork").desk
        fork.output.add(fork, "lines", "c")
        assert [(each.number, each.lineage) for each in fork.output.wanted("lines", 9)] == [
            (1, "line"), (2, "line"), (3, "fork")
        ]  # fmt: skip
        # The origin went on and published three: the fork's third is its own.
        fork.output.published("lines", {"line": 3})
        assert numbers(fork.output) == [(3, 0)]
        assert fork.output.owed() == {}


@pytest.mark.parametrize(
    ("sink", "value"), [("lines", "x"), ("ears", {"a": [1]}), ("ears", ME), ("rows", {"a": 1})]
)
def test_a_handler_that_is_run_again_emits_nothing_twice(sink: str, value: Any) -> None:
    with benched() as bench:
        bench.ask(1, "twice", sink, value, value)
        bench.desk.output.captured(1)
        doc = msgpack.unpackb(msgpack.packb(desk_to_doc(bench.desk)), strict_map_key=False)
        other = Bench(Clerk)
        other.desk.output = Output(SINKS, "line", ME)
        with bound(other):
            load_desk(other.desk, doc)
            rerun(other.desk)
            other.desk.output.restored(1)
            assert numbers(other.desk.output, sink) == [(1, 1)]
            other.answer(next(iter(other.desk.asks)), None)
            other.desk.drain()
            assert numbers(other.desk.output, sink) == [(1, 1), (2, 0)]
            assert len({each.body for each in other.desk.output.wanted(sink, 9)}) == 1


def test_a_program_that_names_a_sink_no_more_ends_no_handler_that_has_emitted() -> None:
    with benched() as bench:
        bench.ask(1, "twice", "lines", "first", "second")
        bench.desk.output.captured(1)
        doc = msgpack.unpackb(msgpack.packb(desk_to_doc(bench.desk)), strict_map_key=False)
    other = Bench(Clerk)
    other.desk.output = Output({}, "line", ME)
    with bound(other):
        load_desk(other.desk, doc)
        rerun(other.desk)
        assert other.answers_out() == {} and numbers(other.desk.output) == [(1, 1)]
        # What comes after that is new, and refused.
        other.answer(next(iter(other.desk.asks)), None)
        other.desk.drain()
        other.collect()
        assert isinstance(other.answers_out()[1], Misuse)


KINDS_OF_ROW = [(old, new) for old in SINKS for new in SINKS if old != new]


@pytest.mark.parametrize(("old", "new"), KINDS_OF_ROW)
@pytest.mark.parametrize("value", [{"a": 1}, "x", ("b",)])
def test_a_sink_of_another_kind_ends_no_handler_and_gets_nothing_in_the_old_form(
    old: str, new: str, value: Any
) -> None:
    try:
        with benched() as bench:
            bench.desk.output.sinks = {"out": SINKS[old]}
            cutline.emit("out", value)
    except Misuse:
        # Nothing of it is in any image.
        return
    with benched() as bench:
        bench.desk.output.sinks = {"out": SINKS[old]}
        bench.ask(1, "twice", "out", value, {"b": 2})
        bench.desk.output.captured(1)
        doc = msgpack.unpackb(msgpack.packb(desk_to_doc(bench.desk)), strict_map_key=False)
    other = Bench(Clerk)
    output = other.desk.output = Output({"out": SINKS[new]}, "line", ME)
    with bound(other):
        load_desk(other.desk, doc)
        rerun(other.desk)
        assert other.answers_out() == {} and numbers(output, "out") == [(1, 1)]
        other.answer(next(iter(other.desk.asks)), None)
        other.desk.drain()
        first, second = output.wanted("out", 9)
        said = output.misfit("out", first)
        assert "sink 'out' is a" in said and "participant 'me' emitted value 1" in said
        assert "Start once with 'out' as a" in said and output.misfit("out", second) == ""


def test_what_a_sink_did_not_take_and_the_next_one_would_is_no_part_of_a_re_run() -> None:
    with benched() as bench:
        bench.ask(1, "perhaps", "lines", {1, 2}, "good")
        bench.desk.output.captured(1)
        doc = msgpack.unpackb(msgpack.packb(desk_to_doc(bench.desk)), strict_map_key=False)
        assert numbers(bench.desk.output) == [(1, 1)]
    other = Bench(Clerk)
    other.desk.output = Output(SINKS, "line", ME)
    with bound(other):
        load_desk(other.desk, doc)
        rerun(other.desk)
        assert other.answers_out() == {} and numbers(other.desk.output) == [(1, 1)]


def test_an_image_that_does_not_say_the_kind_is_taken_as_it_is() -> None:
    with benched() as bench:
        output = bench.desk.output
        output.load([["lines", 2, [[1, 1, "line", b"a\n"]]]])
        (record,) = output.wanted("lines", 9)
        assert record.kind == "" and output.misfit("lines", record) == ""


def test_values_that_cannot_be_emitted() -> None:
    with benched() as bench:
        desk = bench.desk
        for sink, value, said in (
            ("none", 1, "no sink is named 'none'.*has: ears, lines, rows"),
            (7, 1, "no sink is named 7"),
            ("lines", "a\nb", "participant 'me': value for sink 'lines': .*line break; got 'a"),
            ("rows", 7, "a row is a dict"),
            ("ears", bytes(9_000_000), "more than 8,388,608"),
        ):
            with pytest.raises(Misuse, match=said):
                cutline.emit(sink, value)  # type: ignore[arg-type]
        with pytest.raises(CannotCapture, match="value for sink 'ears'"):
            cutline.emit("ears", threading.Lock())
        assert desk.output.is_empty
    with pytest.raises(OutsideHandler, match="no handler runs here"):
        cutline.emit("lines", "x")


HEARD: list[Any] = []


def hear(value: Any, key: str) -> None:
    HEARD.append((value, key))


async def hear_later(value: Any) -> None:
    HEARD.append(value)


def refuse(value: Any) -> None:
    if value == "no":
        raise ValueError(value)
    HEARD.append(value)


def fork(value: Any) -> None:
    """Both come out of it."""
    child = os.fork()
    HEARD.append(value)
    with open(os.environ["HEARD"], "a") as file:
        file.write(f"{value} {'child' if child == 0 else 'parent'}\n")
    if child:
        os.waitpid(child, 0)
        if value == "b":
            raise ValueError(value)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_copy_of_the_process_that_a_function_makes_gets_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARD", str(tmp_path / "heard"))
    said: list[Any] = []
    giver = _Giver("ears", said.append)
    packed = [msgpack.packb(pack_value(value, participant="me", where="x")) for value in "abc"]
    records = [Record(Origin("line", "me", 1), n, 1, body) for n, body in enumerate(packed, 1)]
    giver.take(1, lambda: fork, records)
    until(lambda: said, "the outcome", timeout=60)
    assert (said[0].numbers, said[0].error) == ({"line": 1}, "ValueError: b")
    assert sorted((tmp_path / "heard").read_text().splitlines()) == [
        "a child", "a parent", "b child", "b parent"
    ]  # fmt: skip


def test_records_have_names_of_their_own_whatever_the_names_are() -> None:
    one = identity("2/b", Record(Origin("line", "a", 1), 5, 1, b""))
    other = identity("b", Record(Origin("line", "a/1", 2), 5, 1, b""))
    third = identity("b", Record(Origin("line", "a%2F1", 2), 5, 1, b""))
    assert len({one, other, third}) == 3
    assert identity("ears", Record(Origin("line", "ann", 1), 5, 1, b"")) == "line/ann/1/ears/5"


def test_functions_are_called_once_in_a_process_whatever_is_asked_again() -> None:
    HEARD.clear()
    said: list[Any] = []
    giver = _Giver("ears", said.append)

    def records(*values: Any) -> list[Record]:
        packed = [msgpack.packb(pack_value(value, participant="me", where="x")) for value in values]
        return [Record(Origin("line", "me", 1), n, 1, body) for n, body in enumerate(packed, 1)]

    def give(number: int, function: Any, *values: Any) -> Any:
        giver.take(number, lambda: function, records(*values))
        until(lambda: len(said) >= 1, "the outcome")
        return said.pop()

    assert give(1, hear, "a", ("b",)) == ("ears", 1, {"line": 2}, "")
    assert give(2, hear, "a", ("b",)) == ("ears", 2, {"line": 2}, "")
    assert HEARD == [("a", "line/me/1/ears/1"), (("b",), "line/me/1/ears/2")]
    assert give(3, hear_later, "a", "b", "c").numbers == {"line": 3}
    assert HEARD[2:] == ["c"]
    outcome = give(4, refuse, "a", "b", "c", "d", "no", "f")
    assert (outcome.numbers, outcome.error) == ({"line": 4}, "ValueError: no")
    assert HEARD[3:] == ["d"]
    missing = give(5, None, "a", "b", "c", "d", "e")
    assert missing.error.startswith("TypeError")
