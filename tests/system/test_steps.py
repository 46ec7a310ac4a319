"""Durable steps in real processes, killed at every point of a step: what returned is never called again."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import ParticipantFailed, StateChangedBeforeAwait, SystemHalted
from cutline.participant import step_files
from cutline.storage.disk import sync, write_all
from tests.system.living import again, recoveries, until

STEPS, KEEP = 4, 2
POINTS = ("before the call", "in the call", "after the call", "half written", "written", "synced", "returned")


class Effects:
    """A file outside of every rollback, one line for each thing that happened; and one death at one point."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, what: str) -> None:
        with open(Path(self.folder, "happened"), "a") as file:
            file.write(what + "\n")

    def dies_here(self, point: str, number: int) -> bool:
        """Whether this is the time and place; only once."""
        wanted = Path(self.folder, "point")
        if not wanted.exists() or wanted.read_text() != f"{point}:{number}":
            return False
        wanted.unlink()
        return True

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def at(self, point: str, number: int) -> None:
        if self.dies_here(point, number):
            self.die()


class Agent:
    """A loop of steps in one handler. Its process may die at any point of any of them."""

    def __init__(self, folder: str) -> None:
        self.effects = Effects(folder)
        self.log: cutline.Log[Any] = cutline.Log()

    def work(self, base: int) -> list[Any]:
        """`STEPS` steps, each told to the world when it has returned."""
        found = []
        for number in range(base, base + STEPS):
            self.log.append({"role": "user", "number": number})
            self.effects.at("before the call", number)
            with _deadly(self.effects, number):
                found.append(self.log.step(_call, self.effects, number))
            self.effects.write(f"returned {number}")
            self.effects.at("returned", number)
        return found

    def content(self) -> list[Any]:
        return list(self.log)

    async def first_a_step(self, peer: Any) -> None:
        """Not allowed: it would be made again."""
        self.log.step(len, "abc")
        await peer.content.remote()

    async def then_a_step(self, peer: Any) -> int:
        """Allowed: after the last await."""
        content = await peer.content.remote()
        return self.log.step(len, content)

    def unstorable(self) -> None:
        """The disk of its steps breaks."""

        def broken(file: int) -> None:
            raise OSError(5, f"Input/output error of {file}")

        vars(step_files)["sync"] = broken
        try:
            self.log.step(_call, self.effects, -1)
        except Exception:
            self.effects.write("it went on")


def _call(effects: Effects, number: int) -> list[int]:
    effects.at("in the call", number)
    effects.write(f"called {number}")
    effects.at("after the call", number)
    return [number, number * 10]


class _deadly:
    """The process dies around a write of its steps."""

    def __init__(self, effects: Effects, number: int) -> None:
        self.effects, self.number = effects, number
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        effects, number = self.effects, self.number

        def written(file: int, content: bytes, at: int) -> None:
            if effects.dies_here("half written", number):
                # Of the record; behind it there may be room.
                write_all(file, content[: len(content.rstrip(b"\0")) // 2], at)
                effects.die()
            write_all(file, content, at)
            effects.at("written", number)

        def synced(file: int) -> None:
            sync(file)
            effects.at("synced", number)

        self.patch.setattr(step_files, "write_all", written)
        self.patch.setattr(step_files, "sync", synced)

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, mark: str) -> Iterator[cutline.System]:
    folder = tmp_path_factory.mktemp("store")
    with cutline.start(folder, interval=None, quiet=True, keep=KEEP) as system:
        yield system


def happened(folder: Path) -> Counter[str]:
    return Counter((folder / "happened").read_text().splitlines())


def due(base: int) -> list[Any]:
    return [[number, number * 10] for number in range(base, base + STEPS)]


def test_killed_at_every_point_of_a_step(system: cutline.System, tmp_path: Path) -> None:
    agent = system.spawn("agent", Agent, str(tmp_path))
    again(system.checkpoint)
    for turn, point in enumerate(POINTS):
        base = turn * STEPS
        hit = base + 2
        (tmp_path / "point").write_text(f"{point}:{hit}")
        before = len(recoveries(system))
        assert again(agent.work.remote(base).result) == due(base)
        assert len(recoveries(system)) > before, point
        found = happened(tmp_path)
        for number in range(base, base + STEPS):
            # In one process or the other, each was called; and once, if it was ever durable.
            twice = number == hit and point in ("after the call", "half written")
            assert found[f"called {number}"] == (2 if twice else 1), (point, number)
        again(system.checkpoint)
    steps = [each for each in again(lambda: agent.content.remote().result()) if type(each) is list]
    assert steps == [each for turn in range(len(POINTS)) for each in due(turn * STEPS)]
    # What was stepped before the oldest checkpoint is in it.
    folder = Path(system.store.url.removeprefix("file://"))
    until(lambda: len(list(folder.glob("steps/*/agent/*.steps"))) <= KEEP, "files that nobody needs to go")


def test_a_newborn_in_no_checkpoint_yet(system: cutline.System, tmp_path: Path) -> None:
    (tmp_path / "point").write_text("returned:3")
    agent = again(lambda: system.spawn("newborn", Agent, str(tmp_path)))
    assert again(agent.work.remote(0).result) == due(0)
    found = happened(tmp_path)
    assert not (tmp_path / "point").exists()
    assert all(found[f"called {number}"] == 1 for number in range(STEPS))


def test_async_handlers(system: cutline.System, tmp_path: Path) -> None:
    agent = again(lambda: system.spawn("careful", Agent, str(tmp_path)))
    peer = again(lambda: system.spawn("peer", Agent, str(tmp_path)))
    assert again(agent.then_a_step.remote(peer).result) == 0
    with pytest.raises(StateChangedBeforeAwait, match="made a step of a log and then awaited"):
        again(agent.first_a_step.remote(peer).result)


def test_a_step_that_cannot_be_stored_stops_the_system(mark: str, tmp_path: Path) -> None:
    system = cutline.start(tmp_path / "store", interval=None, quiet=True)
    try:
        agent = system.spawn("agent", Agent, str(tmp_path))
        again(system.checkpoint)
        with pytest.raises((SystemHalted, ParticipantFailed), match="cannot store a step"):
            again(agent.unstorable.remote().result)
        assert happened(tmp_path) == {"called -1": 1}
    finally:
        system.stop()
