"""A few blocks tell whether a region still changes nearly everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from cutline.participant.memory import Bytes
from cutline.participant.sample import Sample

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


def test_another_size_is_seen_anew() -> None:
    sample = Sample()
    sample.look(np.zeros(8192, np.uint8))
    assert sample.look(np.zeros(4096, np.uint8)) == 1.0
