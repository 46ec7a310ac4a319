"""What tests of steps share: a participant whose crashes and checkpoints are the test's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutline.barrier import Member
from cutline.participant.desk import Desk
from cutline.participant.handle import bound_port
from cutline.participant.log import Log
from cutline.participant.step_files import folder_of, length_of, segments_in
from cutline.participant.steps import Steps
from cutline.storage.image import Image

__all__ = ("KEY", "LINE", "OTHER_KEY", "World", "files", "records", "world")

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
LINE = "0123456789abcdef"


class World:
    """One participant, its crashes and its checkpoints; `called` counts what its functions did outside."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.called: list[Any] = []
        self.log: Log[Any] = Log()
        self.other: Log[Any] = Log()
        self.epoch, self.newest = 0, 0
        self.cuts: dict[int, tuple[Any, Image]] = {}
        self.undo: Callable[[], None] = lambda: None
        self.steps = self.process()

    def process(self, birth: int = 1, lineage: str = LINE, key: bytes = KEY) -> Steps:
        """A new process of the participant, which knows nothing yet."""
        self.undo()
        made = Steps("agent", birth, lineage, self.home, key)
        self.desk = Desk(Member("agent", birth), self)
        self.undo = bound_port(self.desk, thread_only=True)
        made.attach(self.desk)
        self.steps = made
        return made

    def born(self, *, birth: int = 1, base: int = 0) -> None:
        self.process(birth).born(self.epoch, self.newest, base)
        self.log = Log()

    def cut(self) -> int:
        self.newest += 1
        section = self.steps.section(self.newest)
        image = Image({"lineage": LINE}, section, [])
        state = copy.deepcopy(self.log._checked_state())
        self.cuts[self.newest] = (list(self.log._everything().documents()), state), image
        return self.newest

    def crash(self, cut: int, *, birth: int = 1) -> None:
        """The process dies; another one is restored from the cut."""
        self.process(birth)
        self.roll_back(cut)

    def roll_back(self, cut: int) -> None:
        """The process lives, and goes back."""
        self.epoch += 1
        (documents, state), image = self.cuts[cut]
        self.steps.restored(self.epoch, cut, image)
        self.log = Log._blank()
        self.log._replay(iter(documents))
        if state is not None:
            self.log._fill(copy.deepcopy(state))

    def ask(self, *said: Any) -> Any:
        """An effect whose outcome is another one each time."""
        self.called.append(said)
        return {"answer": len(self.called), "parts": [len(said)]}

    def step(self, *said: Any) -> Any:
        return self.log.step(self.ask, *said)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.born()
    yield made
    made.undo()


def files(world: World) -> list[Path]:
    folder = folder_of(world.home, LINE, "agent")
    return [folder / each.name for each in segments_in(folder)]


def records(path: Path) -> bytes:
    """What a file holds, without the room behind it."""
    return path.read_bytes()[: length_of(path.parent, path.name, KEY)]
