"""One instance as a row of pickles, and how that row is ordered.

Theory of operation. Each attribute of the instance is a *piece*: one `dump` of one Pickler whose memo is
kept from piece to piece, so that an object reached from two attributes is written once and is one object
again when one Unpickler has read the pieces in order. The instance itself, and large bytearrays that are
attributes, stand at the bottom of the memo before the first piece (`primed`), because an attribute may
lead back to them. An instance that defines how it is pickled is a single piece, "state".

A piece refers to earlier ones by position in the memo, so an early piece that gains objects changes the
bytes of those after it. `Order` therefore moves pieces that change of themselves behind those that do not.
A new order rewrites everything once; it is taken when everything is written anyway, or when the bytes
rewritten for no other reason have come to as much.

What of a long piece is written is decided part by part (`parts`); the order is about whole pieces.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import Regroup, StateArrays
from .attempts import Attempts
from .classes import attributes_of, has_plain_state
from .kinds import Kinds
from .parts import Collector, Cutter, Cutting, Part
from .shelf import Shelf

__all__ = ("NESTED", "Order", "Row", "write_row")

WHOLE = "state"
# How the names of pieces begin that have what is to be checked of nested containers.
NESTED = "nested:"


class Row:
    """The pieces of one instance at one moment, in parts, and the memory that they name."""

    def __init__(self, arrays: StateArrays) -> None:
        self.arrays = arrays
        self.pieces: list[tuple[str, list[Part]]] = []
        self.whole = False
        self.names: list[str] = []
        self.slots: list[str] = []
        self.primed: list[int] = []

    @property
    def length(self) -> int:
        """Bytes of all pieces."""
        return sum(part.length for _, parts in self.pieces for part in parts)

    @property
    def is_kept(self) -> bool:
        """Whether no part was left out as known."""
        return not any(part.known for _, parts in self.pieces for part in parts)


def attribute_row(instance: object) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The attributes to save one by one; None where the instance is saved whole."""
    if not has_plain_state(type(instance)):
        return None
    # Raises for what pickle refuses, such as an instance of a class made in C.
    instance.__reduce_ex__(2)
    held, slots = attributes_of(instance)
    if any(type(name) is not str for name in held):
        return None
    return held, slots


def write_row(
    instance: object, kinds: Kinds, order: Order, region_min: int, cutting: Cutting, shelf: Shelf
) -> Row:
    """Pickles the instance; the caller clears the row's arrays.

    Raises:
        Exception: whatever pickle or the state's own methods raise.
    """
    merged: list[tuple[int, int]] = []
    attempts = Attempts(kinds)
    try:
        while True:
            row = Row(StateArrays(region_min, list(merged), shelf.gathering()))
            kinds.begin(row.arrays)
            sink = _Sink()
            pickler = pickle.Pickler(sink, 5)
            pickler.dispatch_table = kinds
            try:
                _fill(row, instance, pickler, sink, order, cutting)
                row.arrays.check()
                return row
            except Regroup as regroup:
                row.arrays.clear()
                # The larger ones first.
                merged = [*regroup.spans, *merged]
                attempts.again(pickler)
            except BaseException:
                row.arrays.clear()
                raise
    finally:
        attempts.over()


class _Sink:
    """A file for a Pickler, which asks it for its `write` once: hands on to the stream that is open."""

    def __init__(self) -> None:
        self.stream: Cutter | Collector

    def write(self, chunk: Any) -> None:
        self.stream.write(chunk)


def _fill(
    row: Row, instance: object, pickler: pickle.Pickler, sink: _Sink, order: Order, cutting: Cutting
) -> None:
    attributes = attribute_row(instance)
    if attributes is None:
        row.whole = True
        sink.stream = cutting.begin(WHOLE)
        pickler.dump(instance)
        row.pieces.append((WHOLE, sink.stream.parts()))
        _fill_nested(row, pickler, sink, cutting)
        return
    held, slots = attributes
    row.names, row.slots = list(held), list(slots)
    values = {f"attr:{name}": value for name, value in held.items()}
    values.update((f"slot:{name}", value) for name, value in slots.items())
    memo = {id(instance): (0, instance)}
    for value in values.values():
        if type(value) is bytearray and len(value) >= row.arrays.region_min and id(value) not in memo:
            memo[id(value)] = (len(memo), value)
            row.arrays.object_owner(value)
            row.primed.append(row.arrays.content(value, np.frombuffer(value, np.uint8)))
    pickler.memo = memo
    for name in order.arrange(list(values)):
        sink.stream = cutting.begin(name)
        pickler.dump(values[name])
        row.pieces.append((name, sink.stream.parts()))
    _fill_nested(row, pickler, sink, cutting)


def _fill_nested(row: Row, pickler: pickle.Pickler, sink: _Sink, cutting: Cutting) -> None:
    """What is to be checked of containers that only others name; it may lead to further ones."""
    while waiting := row.arrays.containers.unwritten():
        name = f"{NESTED}{len(row.pieces)}"
        sink.stream = cutting.begin(name)
        pickler.dump(waiting)
        row.pieces.append((name, sink.stream.parts()))


class Order:
    """In which order pieces are written: the most stable first."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._changes: dict[str, float] = {}
        self._wasted = 0

    def arrange(self, names: list[str]) -> list[str]:
        """`names` in the present order; new ones last."""
        present = set(names)
        known = set(self._order)
        self._order = [name for name in self._order if name in present]
        self._order += [name for name in names if name not in known]
        return self._order

    def observe(
        self, before: Mapping[str, tuple[bytes, int]], now: Sequence[tuple[str, bytes, int, int]]
    ) -> None:
        """Compares (digest, length) by name with those of the capture before; the last number of a row: how
        many bytes of the piece are in parts that changed.

        Only the first changed piece, and those whose length changed, are known to have changed of
        themselves; others may only follow an earlier one.
        """
        first = True
        for name, digest, length, rewritten in now:
            old = before.get(name)
            own = old is None
            if old is not None and old[0] != digest:
                own = first or old[1] != length
                first = False
                if not own:
                    self._wasted += rewritten
            self._changes[name] = self._changes.get(name, 0.0) * 0.9 + (1.0 if own and old else 0.0)

    def settle(self, total: int, *, free: bool) -> None:
        """Chooses the order of the next capture. `free`: that one writes everything anyway."""
        if not free and self._wasted <= total:
            return
        self._wasted = 0
        # Rounded, so that noise does not reorder; sorted() keeps the order among equals.
        self._order.sort(key=lambda name: round(self._changes.get(name, 0.0), 1))
