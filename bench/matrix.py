"""The rows of the overhead matrix, put together again by cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ("CellRows", "cells_of", "is_cell")

_NAME = re.compile(
    r"overhead_(?P<topology>[a-z_]+)_(?P<actors>\d+)_(?P<payload>\d+K?B)_(?P<state>\d+[MG]B)"
    r"_(?P<figure>kept|pattern|ray)_(?P<rate>\d+)"
)


@dataclass(slots=True)
class CellRows:
    """A cell: what it is, and its rows by figure and checkpoints a second ("kept", 10)."""

    topology: str
    actors: int
    payload: str
    state: str
    rows: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As a person reads it."""
        sizes = (re.sub(r"(?<=\d)(?=[A-Z])", " ", size) for size in (self.payload, self.state))
        return f"{self.topology.replace('_', '-')}, {self.actors} actors, {', '.join(sizes)}"


def is_cell(row: Mapping[str, Any]) -> bool:
    """Whether a row belongs to the matrix."""
    return _NAME.fullmatch(row["name"]) is not None


def cells_of(rows: Iterable[Mapping[str, Any]]) -> list[CellRows]:
    """The cells in the order in which they were measured; rows of another name are left out."""
    cells: dict[tuple[str, ...], CellRows] = {}
    for row in rows:
        match = _NAME.fullmatch(row["name"])
        if match is None:
            continue
        topology, actors, payload, state, figure, rate = match.groups()
        cell = cells.setdefault(
            (topology, actors, payload, state), CellRows(topology, int(actors), payload, state)
        )
        cell.rows[figure, int(rate)] = row
    return list(cells.values())
