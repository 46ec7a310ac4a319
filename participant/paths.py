"""Where in an object graph something is: only looked for after a pickling has failed.

Theory of operation. Pickle's C code says what it could not save but not where that hangs. The walk follows
what pickle would have followed (`__reduce_ex__`, elements, attributes) with a stack of its own, so that a
graph too deep for pickle is not too deep for the diagnosis, and keeps for each object the way it came.
Every object comes once, by the first way found.
"""

from __future__ import annotations

import collections
import copyreg
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .classes import MAIN_NAMES, attributes_of, has_plain_state
from .kinds import Kinds, refusal_of
from .log import Log
from .map import Map
from .saying import said
from .tensors import is_tensor_kind

__all__ = ("Culprit", "deepest", "find_culprit", "path_of", "spell")

Way = Any  # a chain of (way before, label, depth), or None
_LEAVES = (type(None), bool, int, float, complex, str, bytes, bytearray, type(...), type(NotImplemented))
_UNOPENED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_SHOWN = 12


class Culprit(tuple[str, str]):
    """(path, reason) of something that cannot be saved."""

    __slots__ = ()


def spell(root: str, way: Way) -> str:
    """A way as text, its middle left out when it is long."""
    labels: list[str] = []
    while way is not None:
        way, label, _ = way
        labels.append(label)
    labels.reverse()
    if len(labels) > _SHOWN:
        labels = [*labels[:4], f"...({len(labels) - 8} more)...", *labels[-4:]]
    return root + "".join(labels)


def _key(key: Any) -> str:
    return f"[{key!r}]" if isinstance(key, (str, int, float, bytes, bool, tuple, type(None))) else "[...]"


def _parts(here: Any) -> Iterator[tuple[str, Any]]:
    """(label, part) of what pickle would save for `here`; raises what `__reduce_ex__` raises."""
    kind = type(here)
    if kind is dict or kind is Map:
        for index, (key, value) in enumerate(here.items()):
            yield f".keys()[{index}]", key
            yield _key(key), value
    elif kind in (list, tuple, collections.deque, Log):
        for index, value in enumerate(here):
            yield f"[{index}]", value
    elif kind in (set, frozenset):
        for value in here:
            yield ".<element>", value
    elif isinstance(here, np.ndarray):
        if here.dtype.hasobject:
            for index, value in enumerate(here.ravel().tolist()):
                yield f".flat[{index}]", value
        yield from ((f".{name}", value) for name, value in getattr(here, "__dict__", {}).items())
    elif is_tensor_kind(kind):
        # It would copy itself, or warn.
        yield from ((f".{name}", value) for name, value in vars(here).items())
    elif has_plain_state(kind):
        here.__reduce_ex__(5)
        held, slots = attributes_of(here)
        for name, value in (*held.items(), *slots.items()):
            yield f".{name}", value
    elif isinstance(here, types.MethodType):
        yield ".__self__", here.__self__
    elif kind is memoryview:
        yield ".obj", here.obj
    else:
        yield from _reduced_parts(here)


def _reduced_parts(here: Any) -> Iterator[tuple[str, Any]]:
    registered = copyreg.dispatch_table.get(type(here))
    reduced = registered(here) if registered is not None else here.__reduce_ex__(5)
    if not isinstance(reduced, tuple):
        return
    if len(reduced) > 2 and reduced[2] is not None:
        states = reduced[2] if isinstance(reduced[2], tuple) else (reduced[2],)
        for state in states:
            if isinstance(state, dict):
                for name, value in state.items():
                    yield f".{name}" if isinstance(name, str) else _key(name), value
            else:
                yield ".<state>", state
    if len(reduced) > 3 and reduced[3] is not None:
        for index, value in enumerate(reduced[3]):
            yield f"[{index}]", value
    if len(reduced) > 4 and reduced[4] is not None:
        for key, value in reduced[4]:
            yield ".<key>", key
            yield _key(key), value
    yield ".<made by>", reduced[0]
    for index, value in enumerate(reduced[1]):
        yield f".<argument {index}>", value


def _unnamed(here: Any) -> str | None:
    """Why a function or class cannot be named; None when it can."""
    if not isinstance(here, (type, types.FunctionType)):
        return None
    module, name = here.__module__, here.__qualname__
    what = "class" if isinstance(here, type) else "function"
    if name.rpartition(".")[2] == "<lambda>":
        return "a lambda, whose code would have to be in the image; use a function of a module"
    if "<locals>" in name:
        return f"{name}, a local {what}, whose code would have to be in the image; move it to its module"
    place: Any = sys.modules.get(module or "")
    for part in name.split("."):
        place = getattr(place, part, None)
    if place is not here and module not in MAIN_NAMES:
        return f"{module}.{name}, a {what} that is not found under its name"
    return None


def _walk(root: Any) -> Iterator[tuple[Any, Way, Exception | None]]:
    """Every object `root` leads to, its way, and what `__reduce_ex__` raised."""
    seen: dict[int, Any] = {id(root): root}
    work: list[tuple[Any, Way]] = [(root, None)]
    while work:
        here, way = work.pop()
        if isinstance(here, _UNOPENED) or refusal_of(type(here)) is not None:
            yield here, way, None
            continue
        children: list[tuple[Any, Way]] = []
        failure: Exception | None = None
        try:
            for label, part in _parts(here):
                if type(part) not in _LEAVES and id(part) not in seen:
                    seen[id(part)] = part
                    children.append((part, (way, label, 1 if way is None else way[2] + 1)))
        except Exception as error:
            failure = error
        yield here, way, failure
        work.extend(reversed(children))


def find_culprit(root: Any, name: str, kinds: Kinds) -> Culprit | None:
    """The first thing that cannot be saved, as (path, reason)."""
    for here, way, failure in _walk(root):
        reason = kinds.refusal(type(here)) or _unnamed(here)
        if reason is None and isinstance(here, types.ModuleType):
            reason = f"the module {here.__name__}"
        if reason is None and failure is not None:
            reason = _because(here, failure)
        if reason is None and not isinstance(here, _UNOPENED):
            reason = _refused_by(kinds, here)
        if reason is not None:
            return Culprit((spell(name, way), reason))
    return None


def _refused_by(kinds: Kinds, here: Any) -> str | None:
    """Why the table refuses an object that shows memory, or that the program gave a way of its own."""
    kind = type(here)
    if not (kind is memoryview or kinds.is_special(kind)):
        return None
    try:
        kinds[kind](here)
    except Exception as error:
        return str(error)
    return None


def _because(here: Any, failure: Exception) -> str:
    if isinstance(here, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)):
        return f"a {type(here).__name__}, which is half-run code"
    return said(failure)


def path_of(root: Any, name: str, wanted: Callable[[Any], bool]) -> str | None:
    """The path of the first object that `wanted` accepts."""
    return next((spell(name, way) for here, way, _ in _walk(root) if wanted(here)), None)


def deepest(root: Any, name: str) -> str:
    """The path of the object farthest from `root`."""
    far: Way = None
    for _, way, _ in _walk(root):
        if way is not None and (far is None or way[2] > far[2]):
            far = way
    return spell(name, far)
