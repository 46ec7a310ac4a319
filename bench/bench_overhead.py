"""The overhead of checkpoints over patterns, actors, messages and states, against Ray without us.

The full product has 4 x 4 x 2 x 3 cells, each with three rates; measured are a centre, what differs from it
in one thing, and a corner (`CELLS`). In each cell both sides play the same game (`bench.token_game`), a spell
each in turns while the other one stands still: without checkpoints, with one and with ten a second, in one
order and then in the other. Of each cell there are

* ``overhead_CELL_kept_1`` and ``_kept_10``: the share of its own throughput that each side keeps;
* ``overhead_CELL_pattern_1`` and ``_10``: tokens a second of both sides with these checkpoints;
* ``overhead_CELL_ray_0``, ``_1``, ``_10``: our tokens a second against plain Ray's without checkpoints.

The actors' tokens are counted at the end, and in a checkpoint of either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from bench.overhead import Cell, Ours, Plain, Side
from bench.ray_peers import local_ray
from bench.row import Row

__all__ = ("CELLS", "GROUP", "QUICK_CELLS", "measure", "measure_cell")

GROUP = "overhead"
RATES = (0, 1, 10)
_KB, _GB = 1024, 1024
_SIDES = ("ours", "plain")
_PATTERN = "plain Ray actors that hold still and save their own states"

# (side, checkpoints a second), and what each round of it gave.
_Spell = tuple[str, int]
_Rates = dict[_Spell, list[float]]

_CENTRE = Cell("all_to_all", 4, 100, 100)
CELLS = (
    _CENTRE,
    # One thing differs from the centre.
    Cell("ring", 4, 100, 100),
    Cell("pipeline", 4, 100, 100),
    Cell("fan_in", 4, 100, 100),
    Cell("all_to_all", 2, 100, 100),
    Cell("all_to_all", 16, 100, 100),
    Cell("all_to_all", 4, 10 * _KB, 100),
    Cell("all_to_all", 4, 100, 1),
    Cell("all_to_all", 4, 100, 1 * _GB),
    # A corner: few, large and everything in a row.
    Cell("ring", 2, 10 * _KB, 1 * _GB),
)
QUICK_CELLS = (
    _CENTRE,
    Cell("ring", 2, 10 * _KB, 1),
    Cell("pipeline", 4, 100, 100),
    Cell("fan_in", 4, 10 * _KB, 1),
)


def measure_cell(cell: Cell, ours: Side, plain: Side, rounds: int, spell: float) -> list[Row]:
    """The rows of one cell, of sides that play already."""
    sides = dict(zip(_SIDES, (ours, plain), strict=True))
    spells = [(name, rate) for rate in RATES for name in sides]
    rates: _Rates = {each: [] for each in spells}
    taken = dict.fromkeys(spells, 0)
    for side in sides.values():
        side.rate(10, min(spell, 1.0))
    for number in range(rounds):
        for name, rate in spells if number % 2 == 0 else spells[::-1]:
            rates[name, rate].append(sides[name].rate(rate, spell))
            taken[name, rate] += sides[name].taken
    for side in sides.values():
        side.check()
    return [*_kept(cell, rates, taken, rounds), *_against(cell, rates)]


def _kept(cell: Cell, rates: _Rates, taken: dict[_Spell, int], rounds: int) -> list[Row]:
    rows = []
    for rate in RATES[1:]:
        ours, plain = (
            [a / b for a, b in zip(rates[name, rate], rates[name, 0], strict=True)] for name in _SIDES
        )
        rows.append(
            Row(
                name=f"overhead_{cell.name}_kept_{rate}",
                unit="of the throughput without checkpoints",
                samples_ours=ours,
                samples_baseline=plain,
                at_least=1.0,
                group=GROUP,
                against=_PATTERN,
                note=f"checkpoints a spell: {taken['ours', rate] / rounds:.1f}, of plain Ray "
                f"{taken['plain', rate] / rounds:.1f}; tokens counted at the end and in a checkpoint",
            )
        )
    return rows


def _against(cell: Cell, rates: _Rates) -> list[Row]:
    rows = [
        Row(
            name=f"overhead_{cell.name}_pattern_{rate}",
            unit="messages/s",
            samples_ours=rates["ours", rate],
            samples_baseline=rates["plain", rate],
            at_least=1.0,
            group=GROUP,
            against=_PATTERN,
        )
        for rate in RATES[1:]
    ]
    return rows + [
        Row(
            name=f"overhead_{cell.name}_ray_{rate}",
            unit="messages/s",
            samples_ours=rates["ours", rate],
            samples_baseline=rates["plain", 0],
            group=GROUP,
            against="the same actors on plain Ray, without checkpoints",
        )
        for rate in RATES
    ]


def measure(
    *, cells: Sequence[Cell] = CELLS, rounds: int = 5, spell: float = 2.0, quick: bool = False
) -> list[Row]:
    """The rows of all cells; ``quick``: of a few."""
    rows: list[Row] = []
    with local_ray():
        for cell in QUICK_CELLS if quick else cells:
            with ExitStack() as stack:
                ours = Ours(cell)
                stack.callback(ours.close)
                plain = Plain(cell)
                stack.callback(plain.close)
                rows += measure_cell(cell, ours, plain, rounds, spell)
    return rows
