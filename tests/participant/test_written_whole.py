"""Regions that change nearly everywhere are written whole, and a few blocks tell when that is over."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cutline.participant import tracking
from cutline.participant.kernel_pages import PAGE, KernelRefused
from cutline.participant.memory import Bytes
from cutline.participant.sample import Sample
from cutline.participant.tracking import tracking_here
from tests.participant.images import WAYS, needs_kernel
from tests.participant.test_tracking import SIZE, Agent, Line

SIZES = (1, 4096, 5000, 10 * 4096, 256 * 1024, 3 * 1024 * 1024 + 17)


@pytest.mark.parametrize("size", SIZES)
def test_all_and_nothing(size: int) -> None:
    memory: Bytes = np.zeros(size, np.uint8)
    sample = Sample()
    assert sample.look(memory) == 1.0
    assert sample.look(memory) == 0.0
    memory += 1
    assert sample.look(memory) == 1.0


def test_some() -> None:
    memory: Bytes = np.zeros(4096 * 4096, np.uint8)
    sample = Sample()
    sample.look(memory)
    memory[: len(memory) // 100] += 1
    assert sample.look(memory) < 0.5
    memory[len(memory) // 20 :] += 1
    assert sample.look(memory) > 0.5


def test_the_numbers_of_the_program_are_left_alone() -> None:
    """Who has seeded `random` goes by what comes next, with checkpoints and without."""
    memory: Bytes = np.zeros(4096 * 4096, np.uint8)
    before = random.getstate()
    Sample().look(memory)
    assert random.getstate() == before


def test_another_size_is_seen_anew() -> None:
    sample = Sample()
    sample.look(np.zeros(8192, np.uint8))
    assert sample.look(np.zeros(4096, np.uint8)) == 1.0


@pytest.mark.parametrize("there", ("kernel", "hash"))
def test_what_changes_nearly_all_is_written_whole(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if there == "hash":
        monkeypatch.setattr(tracking, "process_pages", lambda: KernelRefused("not here"))
    elif there not in WAYS:
        pytest.skip(tracking_here()[1])
    line = Line(Agent(a=np.zeros(SIZE)))
    ways: list[str] = []
    for step in range(24):
        line.agent.a += 1 + step
        ways += line.take().tracked
    assert ways[:5] == [there] * 5 and ways.count("whole") > 12
    for step in range(24):
        line.agent.a[step] = 0
        captured = line.take()
    assert captured.tracked == {there: 8 * SIZE} and captured.changed_bytes <= 3 * PAGE


@needs_kernel
@pytest.mark.parametrize("steps", range(5, 24, 3))
def test_what_no_longer_changes_is_soon_not_written_whole(steps: int) -> None:
    line = Line(Agent(a=np.zeros(SIZE)))
    for step in range(steps):
        line.agent.a += 1 + step
        line.take()
    large = 0
    for step in range(10):
        line.agent.a[step] = 0
        large += line.take().changed_bytes > 3 * PAGE
    # One finds out, by one that sees it, what the next ones build on.
    assert large <= 3
