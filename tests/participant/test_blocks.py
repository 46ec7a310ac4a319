"""Block hashes find exactly the fine blocks that differ, whatever was written and however often."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cutline.participant.blocks import Hasher, changed_runs

BLOCK = 8


@given(st.integers(1, 1000), st.lists(st.lists(st.integers(0, 999), max_size=8), max_size=5))
def test_runs_are_the_changed_blocks(size: int, rounds: list[list[int]]) -> None:
    hasher = Hasher(BLOCK)
    memory = np.zeros(size, np.uint8)
    first = hashes = hasher.first(memory.data)
    before = memory.copy()
    for places in rounds:
        for place in places:
            memory[place % size] += 1
        hashes = hasher.next(hashes, memory.data)
        assert hashes == hasher.first(memory.data)
        wanted = {place // BLOCK for place in np.flatnonzero(before != memory).tolist()}
        runs = list(zip(*(each.tolist() for each in changed_runs(first, hashes, BLOCK)), strict=True))
        found = {block for start, stop in runs for block in range(start // BLOCK, -(-stop // BLOCK))}
        assert found == wanted
        assert all(stop <= size for _, stop in runs)
        assert all(one[1] < two[0] for one, two in zip(runs, runs[1:], strict=False)), "runs are joined"


def test_an_unchanged_region_shares_its_hashes() -> None:
    hasher = Hasher()
    memory = np.zeros(1 << 20, np.uint8)
    first = hasher.first(memory.data)
    assert hasher.next(first, memory.data) is first


def test_seeds_differ_between_hashers() -> None:
    memory = np.zeros(10, np.uint8)
    assert Hasher().first(memory.data).coarse != Hasher().first(memory.data).coarse
