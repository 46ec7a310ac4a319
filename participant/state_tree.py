"""A value as a tree that can be printed: bounded, with marks for what several places share.

A node is a JSON object. What it may have (docs/reading.md says it for users):

==============  ======================================================================================
type            ``module:qualname``, without the module for builtins
value           of numbers, texts, bytes, names; of texts and bytes the beginning (``length`` says all)
length          of texts, bytes and containers
attributes      of objects: name to node
arguments       what an object is made from, where that is all that is known: nodes
items           of sequences and sets: nodes
entries         of mappings: pairs of nodes
shape, dtype    of arrays, with ``bytes`` and, of small ones, ``values``
more            how many attributes, items and entries are not shown
id              a number, where another place shows this same object as ``same_as``
==============  ======================================================================================
"""

from __future__ import annotations

import array
import math
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Any

import numpy as np

from .classes import attributes_of, name_of
from .container import Container
from .handle import Handle, Ref
from .placeholders import Likeness, Placeholder

__all__ = ("Bounds", "tree_of")

_TEXT = 200
_FEW = 8
_BY_REPR = (complex, range, slice, type(...), type(NotImplemented), np.dtype)
_BY_REPR_OF = ("datetime", "decimal", "fractions", "uuid", "zoneinfo", "pathlib", "pathlib._local")


class Bounds:
    """How much is shown: levels below the top, and children of each node."""

    def __init__(self, depth: int = 4, width: int = 20) -> None:
        self.depth = depth
        self.width = width


def tree_of(
    value: Any, bounds: Bounds, is_hollow: Callable[[np.ndarray[Any, Any]], bool] = lambda _: False
) -> dict[str, Any]:
    """The tree of `value`. `is_hollow`: of arrays whose contents are not there."""
    return _Walk(bounds, is_hollow).node(value, bounds.depth)


class _Walk:
    """One walk. Whatever was walked is kept until it is over, so that ids name objects: what an iterator or a
    property makes is gone otherwise, and the next object may get its id."""

    def __init__(self, bounds: Bounds, is_hollow: Callable[[np.ndarray[Any, Any]], bool]) -> None:
        self._width = bounds.width
        self._is_hollow = is_hollow
        self._seen: dict[int, tuple[dict[str, Any], Any]] = {}
        self._numbers = 0

    def node(self, value: Any, depth: int) -> dict[str, Any]:
        simple = _simple(value)
        if simple is not None:
            return simple
        known = self._seen.get(id(value))
        if known is not None:
            first, _ = known
            if "id" not in first:
                self._numbers += 1
                first["id"] = self._numbers
            return {"type": first["type"], "same_as": first["id"]}
        node = {"type": _type_of(value)}
        self._seen[id(value)] = node, value
        self._fill(node, value, depth)
        return node

    def _fill(self, node: dict[str, Any], value: Any, depth: int) -> None:
        if isinstance(value, np.ndarray):
            self._array(node, value, depth)
        elif isinstance(value, Likeness):
            node.update(type=value.kind, shape=list(value.shape), dtype=value.dtype)
            if value.nbytes is not None:
                node["bytes"] = value.nbytes
        elif isinstance(value, (bytearray, memoryview, array.array)):
            node["bytes"] = memoryview(value).nbytes
        elif isinstance(value, Mapping) and not isinstance(value, Placeholder):
            node["length"] = len(value)
            self._pairs(node, value.items(), len(value), depth)
            self._attributes(node, value, depth)
        elif isinstance(value, (Sequence, Set, deque)):
            node["length"] = len(value)
            self._several(node, "items", _in_order(value), len(value), depth)
            self._attributes(node, value, depth)
        elif isinstance(value, Placeholder):
            self._placeholder(node, value, depth)
        else:
            self._attributes(node, value, depth)
            if not node.get("attributes"):
                node["value"] = _shortened(repr(value))

    def _array(self, node: dict[str, Any], value: np.ndarray[Any, Any], depth: int) -> None:
        node.update(shape=list(value.shape), dtype=str(value.dtype), bytes=value.nbytes)
        if value.dtype.hasobject:
            self._several(node, "items", value.reshape(-1), value.size, depth)
        elif value.size <= _FEW and not self._is_hollow(value):
            node["values"] = str(value.tolist())

    def _placeholder(self, node: dict[str, Any], value: Placeholder, depth: int) -> None:
        if value.cutline_arguments:
            self._several(node, "arguments", value.cutline_arguments, len(value.cutline_arguments), depth)
        if value.cutline_items:
            node["length"] = len(value.cutline_items)
            self._several(node, "items", value.cutline_items, len(value.cutline_items), depth)
        if value.cutline_entries:
            node["length"] = len(value.cutline_entries)
            self._pairs(node, value.cutline_entries, len(value.cutline_entries), depth)
        named = dict(vars(value))
        if value.cutline_state is not None:
            named["(state)"] = value.cutline_state
        self._named(node, named, depth)

    def _attributes(self, node: dict[str, Any], value: Any, depth: int) -> None:
        if isinstance(value, Container):
            # What it holds is its content; the rest is for captures.
            return
        held, slots = attributes_of(value)
        self._named(node, {**{str(name): item for name, item in held.items()}, **slots}, depth)

    def _named(self, node: dict[str, Any], named: Mapping[str, Any], depth: int) -> None:
        if named and depth > 0:
            shown = islice(named.items(), self._width)
            node["attributes"] = {name: self.node(item, depth - 1) for name, item in shown}
        self._more(node, len(named), depth)

    def _several(self, node: dict[str, Any], what: str, items: Iterable[Any], count: int, depth: int) -> None:
        if depth > 0:
            node[what] = [self.node(item, depth - 1) for item in islice(items, self._width)]
        self._more(node, count, depth)

    def _pairs(self, node: dict[str, Any], pairs: Iterable[tuple[Any, Any]], count: int, depth: int) -> None:
        if depth > 0:
            node["entries"] = [
                [self.node(key, depth - 1), self.node(item, depth - 1)]
                for key, item in islice(pairs, self._width)
            ]
        self._more(node, count, depth)

    def _more(self, node: dict[str, Any], count: int, depth: int) -> None:
        hidden = count - min(count, self._width) if depth > 0 else count
        if hidden:
            node["more"] = node.get("more", 0) + hidden


def _type_of(value: Any) -> str:
    if isinstance(value, Placeholder):
        return type(value).cutline_name
    return _plain_name(type(value))


def _plain_name(kind: type) -> str:
    return name_of(kind).removeprefix("builtins:")


def _simple(value: Any) -> dict[str, Any] | None:
    """Of what is shown by its value and has no identity that matters."""
    if value is None or value is True or value is False:
        return {"type": type(value).__name__, "value": value}
    kind = type(value)
    if kind in (tuple, frozenset) and not value:
        # There is one of each, which is no sharing.
        return {"type": kind.__name__, "length": 0}
    if kind in _BY_REPR or kind.__module__ in _BY_REPR_OF:
        return {"type": _plain_name(kind), "value": _shortened(str(value))}
    if kind is int:
        # JSON's numbers are read as 64-bit floats by many.
        return {"type": "int", "value": value if abs(value) < 1 << 53 else str(value)}
    if kind is float:
        return {"type": "float", "value": value if math.isfinite(value) else str(value)}
    if kind is str:
        return {
            "type": "str",
            "value": value[:_TEXT],
            **({"length": len(value)} if len(value) > _TEXT else {}),
        }
    if kind is bytes:
        return {"type": "bytes", "value": value[:_FEW].hex(), "length": len(value)}
    if isinstance(value, (Handle, Ref)):
        return {"type": _plain_name(kind).replace("participant.handle:", ""), "value": repr(value)}
    if isinstance(value, type):
        named = value.cutline_name if issubclass(value, Placeholder) else name_of(value)
        return {"type": "class or function", "value": named}
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        return {"type": kind.__name__, "value": getattr(value, "__qualname__", value.__name__)}
    if isinstance(value, np.generic):
        return {"type": _plain_name(kind), "value": _shortened(str(value))}
    return None


def _in_order(value: Any) -> Iterable[Any]:
    """Sets have no order; what is shown is to be the same each time."""
    return sorted(value, key=lambda item: (_type_of(item), repr(item))) if isinstance(value, Set) else value


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
