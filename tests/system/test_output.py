"""Output at commit: files, a table, functions; losses at any moment; forks; sinks that are away."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator.cli import app
from cutline.errors import Misuse, OutputRefused, RefusedOption
from cutline.storage import open_store
from tests.system import outside
from tests.system.living import again, comes_to, kill, pid_of, until


class Clerk:
    """Emits what it is told."""

    def __init__(self) -> None:
        self.told = 0

    def write(self, sink: str, *values: Any) -> int:
        for value in values:
            cutline.emit(sink, value)
        self.told += len(values)
        return self.told

    async def write_and_wait(self, sink: str, first: Any, second: Any) -> None:
        cutline.emit(sink, first)
        await cutline.me().pause.remote()
        cutline.emit(sink, second)

    async def write_and_ask(self, sink: str, first: Any, second: Any) -> None:
        cutline.emit(sink, first)
        await cutline.ask_person("go on?")
        cutline.emit(sink, second)
        self.told += 2

    def pause(self) -> None:
        """Nothing."""

    def write_and_raise(self, sink: str, value: Any) -> None:
        cutline.emit(sink, value)
        raise ValueError("after it was emitted")

    def count(self) -> int:
        return self.told


def hear(value: Any, key: str) -> None:
    outside._record("hear", json.dumps(value), key)


def hear_never(value: Any) -> None:
    raise ConnectionError("never")


def hear_badly(value: Any) -> None:
    if outside._record("try", value) < 3:
        raise ConnectionError("not now")
    outside._record("heard", value)


def started(folder: Path, interval: float | None = None, **options: Any) -> cutline.System:
    sinks = options.pop("sinks", {"lines": cutline.FileSink(folder / "lines")})
    return cutline.start(folder / "store", interval=interval, quiet=True, sinks=sinks, **options)


def lines(folder: Path) -> list[str]:
    path = folder / "lines"
    return path.read_text().splitlines() if path.exists() else []


def notices(system: cutline.System, what: str) -> list[dict[str, Any]]:
    return [notice for notice in list(system.notices) if notice["what"] == what]


def shown(folder: Path) -> list[tuple[str, int, int]]:
    done = CliRunner().invoke(app, ["output", "--json", "-s", str(folder / "store")])
    assert done.exit_code == 0, done.output
    return [
        (doc["participant"], doc["published"], doc["waiting"]) for doc in json.loads(done.output)["sinks"]
    ]


def test_lines_come_when_a_checkpoint_holds_them_and_once(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        clerks = [system.spawn(name, Clerk) for name in ("ann", "bob")]
        assert clerks[0].write.remote("lines", "one", {"two": 2}).result() == 2
        assert clerks[1].write.remote("lines", "three").result() == 1
        assert not lines(tmp_path)
        system.checkpoint()
        comes_to(lambda: lines(tmp_path), ["one", '{"two": 2}', "three"], "the lines")
        with pytest.raises(Misuse, match="line break"):
            clerks[0].write.remote("lines", "four\nfive").result()
        with pytest.raises(Misuse, match="no sink is named 'lins'.* has: lines"):
            clerks[0].write.remote("lins", "four").result()
        with pytest.raises(Misuse, match="cannot be written as JSON"):
            clerks[0].write.remote("lines", {1, 2}).result()
        with pytest.raises(ValueError, match="after it was emitted"):
            # Its answer is heard, and what it did stands.
            clerks[0].write_and_raise.remote("lines", "six").result()
        with pytest.raises(Misuse, match="no handler runs here"):
            cutline.emit("lines", "from the program")
        clerks[1].write_and_wait.remote("lines", "seven", "eight").result()
    # The last checkpoint's lines come before the system has stopped.
    assert lines(tmp_path)[3:] == ["six", "seven", "eight"]
    assert shown(tmp_path) == [("ann", 3, 0), ("bob", 3, 0)]
    with started(tmp_path) as system:
        assert system.spawn("ann", Clerk).write.remote("lines", "nine").result() == 3
    assert lines(tmp_path)[6:] == ["nine"]


def test_what_is_undone_is_not_published_and_what_is_published_is_not_undone(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        ann = system.spawn("ann", Clerk)
        system.checkpoint()
        ann.write.remote("lines", "undone, and done again").result()
        os.kill(pid_of(system, "ann"), 9)
        # The logged input comes again.
        comes_to(lambda: again(lambda: ann.count.remote().result()), 1, "the input to come again")
        assert not lines(tmp_path)
        again(system.checkpoint)
        comes_to(lambda: lines(tmp_path), ["undone, and done again"], "the line")
        # Published, and kept by the image of that checkpoint: it is not published once more.
        kill(system, "ann")
        ann.write.remote("lines", "more").result()
        again(system.checkpoint)
        comes_to(lambda: lines(tmp_path), ["undone, and done again", "more"], "the second line")
        with open_store(tmp_path / "store", create=False) as store:
            newest = store.catalog.find("default", "newest")
            assert store.catalog.horizon(newest.lineage) == newest.checkpoint


def written(write: Any, line: str) -> Any:
    return write.remote("lines", line).result()


def test_losses_at_random_moments(tmp_path: Path) -> None:
    """Participants and the coordinator are ended while lines are written every tenth of a second."""
    with started(tmp_path, interval=0.1) as system:
        clerks = {name: system.spawn(name, Clerk) for name in ("ann", "bob")}
        for step in range(12):
            for name, clerk in clerks.items():
                write = clerk.write.options(key=f"{name} {step}")
                again(partial(written, write, f"{name} {step}"))
            if step % 4 == 1:
                os.kill(pid_of(system, "ann"), 9)
            elif step % 4 == 3:
                os.kill(system._supervisor.pid, 9)
            time.sleep(0.05)
        again(system.checkpoint)
    found = lines(tmp_path)
    for name in clerks:
        assert [line for line in found if line.startswith(name)] == [f"{name} {step}" for step in range(12)]


def test_functions_get_each_value_with_a_key(tmp_path: Path, world: Path) -> None:
    with started(tmp_path, sinks={"ears": hear, "bad": hear_badly}) as system:
        ann = system.spawn("ann", Clerk)
        ann.write.remote("ears", "a", ["b", 2]).result()
        ann.write.remote("bad", 7).result()
        system.checkpoint()
        comes_to(lambda: "heard 7" in outside.lines(world), True, "the third try")
        until(lambda: notices(system, "sink_back"), "the news that it works")
        assert "ConnectionError: not now" in notices(system, "sink_down")[0]["text"]
        kill(system, "ann")
        ann.write.remote("ears", "c").result()
    words = [line.partition(" ") for line in outside.lines(world)]
    heard = [rest.rsplit(" ", 1) for word, _, rest in words if word == "hear"]
    assert [json.loads(value) for value, _ in heard] == ["a", ["b", 2], "c"]
    assert [key.rsplit("/", 1)[1] for _, key in heard] == ["1", "2", "3"]
    assert len({key.rsplit("/", 1)[0] for _, key in heard}) == 1


def test_a_sink_that_is_away_keeps_what_was_emitted(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    sinks = {"lines": cutline.FileSink(folder / "lines"), "others": cutline.FileSink(tmp_path / "others")}
    with started(tmp_path, sinks=sinks) as system:
        ann = system.spawn("ann", Clerk)
        (folder / "lines").unlink()
        (folder / "lines").mkdir()
        ann.write.remote("lines", "one").result()
        ann.write.remote("others", "two").result()
        system.checkpoint()
        # Another sink does not wait for it.
        comes_to(lambda: (tmp_path / "others").read_text(), "two\n", "the other line")
        until(lambda: notices(system, "sink_down"), "a notice")
        comes_to(lambda: system.status()["output_held"].keys(), {"lines"}, "what is held up")
        (folder / "lines").rmdir()
        comes_to(lambda: lines(folder), ["one"], "the line")
        until(lambda: notices(system, "sink_back"), "a notice that it is back")


def test_sinks_that_cannot_be_meant(tmp_path: Path) -> None:
    for sinks, said in (
        ({"a": 7}, "a function, not 7"),
        ({"a": lambda value: None}, "under its own name"),
        ({"a": Clerk}, "not <class"),
        ({"a": cutline.FileSink(tmp_path / "x"), "b": cutline.FileSink(tmp_path / "x")}, "are one file"),
        ({"a": cutline.PostgresSink("postgresql://h/d", "a.b.c")}, "TABLE or SCHEMA.TABLE"),
        ({"a": cutline.PostgresSink("mysql://h/d", "t")}, "postgresql://"),
        ({"": cutline.FileSink("x")}, "sink"),
    ):
        with pytest.raises(RefusedOption, match=said):
            started(tmp_path, sinks=sinks)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(RefusedOption, match="are one file"):
        started(tmp_path, sinks={name: cutline.FileSink(tmp_path / name) for name in ("x", "link")})
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputRefused, match="no regular file"):
        started(tmp_path, sinks={"a": cutline.FileSink(tmp_path / "pipe")})
    # Nothing was begun that the next start would go on from.
    with open_store(tmp_path / "store", create=False) as store:
        assert store.catalog.lineages("default") == []


def test_a_sink_that_the_program_names_no_more_keeps_its_output(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        system.spawn("ann", Clerk)
        system.savepoint("empty")
        (tmp_path / "lines").unlink()
        (tmp_path / "lines").mkdir()
        system.handle("ann").write.remote("lines", "one").result()
    with started(tmp_path, sinks={}) as system:
        assert until(lambda: notices(system, "sink_missing"), "a notice")[0]["sink"] == "lines"
        assert system.status()["output_held"] == {"lines": "the program does not name it"}
    assert shown(tmp_path) == [("ann", 0, 1)]
    (tmp_path / "lines").rmdir()
    with started(tmp_path) as system:
        comes_to(lambda: lines(tmp_path), ["one"], "the line")


def test_a_sink_that_becomes_one_of_another_kind(tmp_path: Path, world: Path) -> None:
    """Handlers that wait go on; what was emitted for the old one is neither lost nor put into the new one."""

    def named(sink: Any) -> cutline.System:
        return started(tmp_path, sinks={"out": sink})

    with named(hear_never) as system:
        system.spawn("ann", Clerk).write_and_ask.tell("out", ["one"], {"two": 2})
        until(system.pending, "the question")
    file = cutline.FileSink(tmp_path / "lines")
    with named(file) as system:
        # The handler is run again up to its question, and goes on from there.
        (question,) = system.pending()
        system.answer(question.id, True)
        ann = system.spawn("ann", Clerk)
        comes_to(lambda: again(lambda: ann.count.remote().result()), 2, "the end of the handler")
        system.checkpoint()
        said = until(lambda: notices(system, "sink_down"), "a notice")[0]["text"]
        assert "sink 'out' is a FileSink in this program, and was a function when participant 'ann'" in said
        assert "Start once with 'out' as a function" in said
        comes_to(lambda: system.status()["output_held"], {"out": said}, "what is held up")
    assert lines(tmp_path) == [] and shown(tmp_path) == [("ann", 0, 2)]
    with named(hear) as system:
        comes_to(lambda: [line.split(" ")[1] for line in outside.lines(world)], ['["one"]'], "the first")
        assert "was a FileSink" in until(lambda: notices(system, "sink_down"), "a notice")[0]["text"]
    with named(file) as system:
        comes_to(lambda: lines(tmp_path), ['{"two": 2}'], "the second")
    assert len(outside.lines(world)) == 1 and shown(tmp_path) == [("ann", 2, 0)]


def test_a_fork_publishes_nothing_until_it_is_allowed_and_nothing_of_its_origin_twice(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        ann = system.spawn("ann", Clerk)
        ann.write.remote("lines", "common").result()
        system.savepoint("there")
        ann.write.remote("lines", "of the origin").result()
    assert lines(tmp_path) == ["common", "of the origin"]
    with started(tmp_path, restore="there") as system:
        ann = system.spawn("ann", Clerk)
        assert ann.write.remote("lines", "of the fork").result() == 2
        system.checkpoint()
        until(lambda: notices(system, "output_blocked"), "a notice")
        assert lines(tmp_path) == ["common", "of the origin"]
        told = CliRunner().invoke(app, ["effects", "-s", str(tmp_path / "store"), "--allow"])
        assert told.exit_code == 0, told.output
        comes_to(lambda: lines(tmp_path)[2:], ["of the fork"], "the fork's line")
    with started(tmp_path, restore="there", effects="live") as system:
        system.spawn("ann", Clerk).write.remote("lines", "of another fork").result()
    assert lines(tmp_path) == ["common", "of the origin", "of the fork", "of another fork"]
