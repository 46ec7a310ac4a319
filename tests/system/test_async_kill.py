"""An async handler with five awaited answers, its process killed after each of them in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cutline
from tests.system.actors import Answerer, Asker, Keeper
from tests.system.living import again, kill, until

ROUNDS = 5


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, mark: str) -> Iterator[cutline.System]:
    with cutline.start(tmp_path_factory.mktemp("store"), interval=None, quiet=True) as system:
        yield system


def open_gate(folder: Path, number: int) -> None:
    (folder / f"open-{number}").touch()


def asked(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def test_killed_after_each_answer_it_asks_nothing_again(system: cutline.System, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    answerer = system.spawn("answerer", Answerer, str(path))
    gate = system.spawn("gate", Keeper, str(tmp_path))
    asker = system.spawn("asker", Asker, answerer, gate)
    answer = asker.work.remote(ROUNDS)
    for number in range(ROUNDS):
        until((tmp_path / f"reached-{number}").exists, f"answer {number}")
        again(system.checkpoint)
        kill(system, "asker")
        assert asked(path) == list(range(number + 1))
        open_gate(tmp_path, number)
    assert again(answer.result) == [0, 10, 20, 30, 40]
    assert again(lambda: asker.seen.remote().result()) == [[0, 10, 20, 30, 40]]
    assert again(lambda: answerer.questions.remote().result()) == list(range(ROUNDS))
    # The file is outside of every rollback: no question was put a second time at all.
    assert asked(path) == list(range(ROUNDS))


def test_killed_together_with_who_answers(system: cutline.System, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    answerer = system.spawn("answerer 2", Answerer, str(path))
    gate = system.spawn("gate 2", Keeper, str(tmp_path))
    asker = system.spawn("asker 2", Asker, answerer, gate)
    answer = asker.work.remote(3)
    for number in range(3):
        until((tmp_path / f"reached-{number}").exists, f"answer {number}")
        again(system.checkpoint)
        kill(system, "asker 2", "answerer 2", "gate 2")
        open_gate(tmp_path, number)
    assert again(lambda: answer.result(committed=True)) == [0, 10, 20]
    assert again(lambda: asker.seen.remote().result()) == [[0, 10, 20]]
    assert again(lambda: answerer.questions.remote().result()) == [0, 1, 2]
    assert asked(path) == [0, 1, 2]
