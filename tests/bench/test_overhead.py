"""The token game loses nothing in any pattern, and the matrix would notice if it did."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest

from bench.bench_overhead import CELLS, QUICK_CELLS, measure_cell
from bench.overhead import Cell, Ours, _balance, _checkpointing
from bench.token_game import TOPOLOGIES, Node, Topology, tokens_of


class _Line:
    """A message's way to a node in this process."""

    def __init__(self, place: int, queue: deque[tuple[int, int, bytes]]) -> None:
        self.place, self.queue = place, queue
        self.take = self

    def tell(self, sender: int, payload: bytes) -> None:
        self.queue.append((self.place, sender, payload))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_no_token_is_lost_in_any_pattern(topology: Topology) -> None:
    queue: deque[tuple[int, int, bytes]] = deque()
    nodes = [Node(place, topology, 10, 1) for place in range(4)]
    lines = [_Line(place, queue) for place in range(4)]
    deal = tokens_of(topology, 4)
    for node, tokens in zip(nodes, deal, strict=True):
        node.connect(lines, "tell")
        node.deal(tokens)
        node.resume()

    def deliver() -> None:
        to, sender, payload = queue.popleft()
        nodes[to].take(sender, payload)

    for _ in range(300):
        deliver()
        _balance([node.totals() for node in nodes], len(queue), sum(deal), "on the way")
    for node in nodes:
        node.pause()
    while queue:
        deliver()
    totals = [node.totals() for node in nodes]
    _balance(totals, 0, sum(deal), "at the end")
    assert all(each[1] > 20 for each in totals), "everybody plays"
    assert sum(each[3] for each in totals) == sum(each[4] for each in totals) > 0


def test_a_lost_and_a_doubled_token_are_noticed() -> None:
    good = [(5, 4, 2, 0, 0), (5, 5, 1, 0, 0)]
    _balance(good, 1, 4, "x")
    with pytest.raises(AssertionError, match="10 tokens sent, 9 handled, 0 under way, 3 held"):
        _balance(good, 0, 4, "x")
    with pytest.raises(AssertionError, match="4 are in the game"):
        _balance([(5, 5, 2, 0, 0), (5, 5, 3, 0, 0)], 0, 4, "x")


def test_checkpoints_are_taken_as_often_as_asked_for_or_as_they_can() -> None:
    assert _checkpointing(lambda: None, 0, 0.01) == 0
    assert 1 <= _checkpointing(lambda: None, 50, 0.1) <= 5


def test_what_the_matrix_has() -> None:
    assert {cell.topology for cell in CELLS} == {cell.topology for cell in QUICK_CELLS} == set(TOPOLOGIES)
    assert {cell.actors for cell in CELLS} == {2, 4, 16}
    assert {cell.payload for cell in CELLS} == {100, 10240}
    assert {cell.mebibytes for cell in CELLS} == {1, 100, 1024}
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert Cell("ring", 2, 10240, 1024).name == "ring_2_10KB_1GB"


class Steady:
    """One whose rates are known: it keeps a share at each rate."""

    def __init__(self, rate: float, kept: dict[float, float]) -> None:
        self.cell = QUICK_CELLS[0]
        self.base, self.kept, self.taken, self.checked = rate, kept, 1, False

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        raise AssertionError(f"{method}{arguments} of nobody")

    def rate(self, per_second: float, seconds: float) -> float:
        return self.base * self.kept[per_second]

    def check(self) -> None:
        self.checked = True

    def close(self) -> None:
        raise AssertionError("closed by who opened it")


def test_the_rows_of_a_cell() -> None:
    ours, plain = Steady(3000.0, {0: 1.0, 1: 0.9, 10: 0.8}), Steady(1000.0, {0: 1.0, 1: 0.6, 10: 0.2})
    rows = measure_cell(QUICK_CELLS[0], ours, plain, rounds=3, spell=1.0)
    ratios = {row.name.removeprefix("overhead_all_to_all_4_100B_100MB_"): row for row in rows}
    assert {name: round(row.measured_ratio(), 3) for name, row in ratios.items()} == {
        "kept_1": 1.5,
        "kept_10": 4.0,
        "pattern_1": 4.5,
        "pattern_10": 12.0,
        "ray_0": 3.0,
        "ray_1": 2.7,
        "ray_10": 2.4,
    }
    assert ours.checked and plain.checked
    assert ratios["kept_1"].verdict() == "holds" and ratios["ray_0"].verdict() is None


def test_our_side_runs_small_and_a_checkpoint_of_it_is_counted() -> None:
    ours = Ours(Cell("all_to_all", 2, 100, 1), runtime="process")
    try:
        assert ours.rate(10, 0.3) > 0
        assert ours.taken >= 1
        ours.check()
    finally:
        ours.close()
    assert not os.path.exists(ours._folder)
