"""How each type is pickled: a table that pickle's C code looks up, filled at the first sight of a type.

Theory of operation. A pickler's `dispatch_table` is asked once per object; for plain classes the answer is
a C function, so that a type known before costs no Python at all. At first sight a type is classified: what
must not be saved is refused, arrays and tensors go to `cutline.participant.arrays`, and everything else
pickles as it defines itself. First sight is also where the object is noted for proof: some objects save
and do not load (an exception whose constructor wants other arguments, a `__getattr__` that needs state
which is not there yet), and finding that out at restore is too late. `Kinds.fresh` lists one object of each
type not proven yet; the caller loads it on trial and then calls `prove`, or `forget`.

Functions and classes go by name in pickle's own code and never come here.
"""

from __future__ import annotations

import array
import copyreg
import dataclasses
import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np

from .arrays import Arrays, MessageArrays
from .arrow import is_buffer_kind, reduce_buffer
from .classes import version_of
from .container import Refused
from .container_kinds import KINDS
from .rebuild import mark
from .tensors import is_storage_kind, is_tensor_kind, reduce_storage, reduce_tensor

__all__ = ("Kinds", "PersistentTypes", "Refused", "refusal_of")

# "module:qualname" of a type -> how its objects are written (a pickle reduce value), or an exception.
PersistentTypes = Mapping[str, Callable[[Any], Any]]

_by_its_own = methodcaller("__reduce_ex__", 5)
_by_name = attrgetter("__qualname__")
# Of objects that travel in our messages and images and in nobody else's pickles.
_in_our_way = methodcaller("__cutline_reduce__")
_HANDLE_HINT = "a handle of Ray, which ends with the cluster; hold the Handle that spawn returned"
_REF_HINT = "a reference into Ray's object store, which ends with the cluster; store its value"
_RAY = {
    "ActorHandle": _HANDLE_HINT,
    "ActorClass": _HANDLE_HINT,
    "ActorMethod": _HANDLE_HINT,
    "ObjectRef": _REF_HINT,
    "ObjectID": _REF_HINT,
    "ObjectRefGenerator": _REF_HINT,
    "DynamicObjectRefGenerator": _REF_HINT,
    "StreamingObjectRefGenerator": _REF_HINT,
}
_REFUSED = {
    "multiprocessing.shared_memory:SharedMemory": "shared memory, whose content is not part of the object",
    "multiprocessing.shared_memory:ShareableList": "shared memory, whose content is not part of the object",
    "_io:FileIO": "an open file",
}


# Types of which an object was saved and loaded in this process.
_proven: set[type] = set()


def refusal_of(kind: type) -> str | None:
    """Why objects of this type are refused though they would pickle; None for all others."""
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "ray" and each.__name__ in _RAY:
            return _RAY[each.__name__]
        reason = _REFUSED.get(f"{each.__module__}:{each.__qualname__}")
        if reason is not None:
            return reason
    return None


class Kinds(dict[type, Callable[[Any], Any]]):
    """The dispatch table. `arrays` is whatever takes the arrays of the pickling under way.

    `marking`: each object says by which version of its class it is saved; an image says it once for all.
    """

    def __init__(self, persistent: PersistentTypes | None = None, *, marking: bool = False) -> None:
        super().__init__()
        self.persistent = dict(persistent or {})
        self.arrays: Arrays = MessageArrays()
        self.fresh: list[Any] = []
        self.versioned: set[type] = set()
        self.dataclasses: set[type] = set()
        self._marking = marking
        # What objects have made of themselves, by identity, where they are not to be asked twice.
        self._reduced: dict[int, tuple[Any, Callable[[], Any]]] | None = None
        self._forget_all()

    def _forget_all(self) -> None:
        self.clear()
        self._registered = len(copyreg.dispatch_table)
        self[np.ndarray] = lambda shown: self.arrays.reduce(shown)
        self[memoryview] = lambda shown: self.arrays.memory_view(shown)
        self.update(dict.fromkeys(KINDS.values(), lambda shown: self.arrays.container(shown)))

    def begin(self, arrays: Arrays) -> None:
        """Another pickling starts."""
        self.arrays = arrays
        self.fresh.clear()
        if len(copyreg.dispatch_table) != self._registered:
            self._forget_all()

    def prove(self) -> None:
        """The fresh objects have been loaded on trial."""
        _proven.update(map(type, self.fresh))
        self.fresh.clear()

    def forget(self) -> None:
        """The pickling came to nothing: the types it saw first will be first seen again."""
        for shown in self.fresh:
            self.pop(type(shown), None)
        self.fresh.clear()

    def keep_reduced(self) -> None:
        """From now on each object is asked once for what is to be written of it, until `drop_reduced`."""
        if self._reduced is None:
            self._reduced = {}
            self._forget_all()

    def drop_reduced(self) -> None:
        """Each time again."""
        self._reduced = None
        self._forget_all()

    def know(self, kinds: Iterable[type]) -> None:
        """What is stored has objects of these types."""
        for kind in kinds:
            if hasattr(kind, "__cutline_version__"):
                self.versioned.add(kind)
            if dataclasses.is_dataclass(kind):
                self.dataclasses.add(kind)

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        self.know((kind,))
        reduce = self._classify(kind)
        if self._reduced is not None and self._memory_kind(kind) is None:
            reduce = _once(reduce, self._reduced)
        if self._marking and kind in self.versioned:
            reduce = _marked(reduce)
        self[kind] = reduce
        if kind in _proven:
            return reduce

        def first(shown: Any) -> Any:
            self.fresh.append(shown)
            return reduce(shown)

        return first

    def _classify(self, kind: type) -> Callable[[Any], Any]:
        named = self.persistent.get(f"{kind.__module__}:{kind.__qualname__}")
        if named is not None:
            return named
        reason = refusal_of(kind)
        if reason is not None:
            return _refuser(reason)
        if issubclass(kind, type):
            return _by_name
        if hasattr(kind, "__cutline_reduce__"):
            return _in_our_way
        registered = copyreg.dispatch_table.get(kind)
        if registered is not None:
            return registered
        if issubclass(kind, enum.Enum) and kind.__reduce_ex__ in _ENUM_WAYS:
            return _reduce_flag if issubclass(kind, enum.Flag) else _reduce_member
        return self._memory_kind(kind) or _by_its_own

    def refusal(self, kind: type) -> str | None:
        """Why objects of the type are refused, unless the program has a way of its own for them."""
        named = f"{kind.__module__}:{kind.__qualname__}" in self.persistent
        return None if named else refusal_of(kind)

    def is_special(self, kind: type) -> bool:
        """Whether objects of the type are written in a way of Cutline's or the program's."""
        named = f"{kind.__module__}:{kind.__qualname__}" in self.persistent
        return named or issubclass(kind, np.ndarray) or self._memory_kind(kind) is not None

    def _memory_kind(self, kind: type) -> Callable[[Any], Any] | None:
        """How a type is written whose objects show memory."""
        if issubclass(kind, np.ndarray):
            if _pickles_itself(kind):
                return lambda shown: self.arrays.foreign(shown)
            return lambda shown: self.arrays.subclass(shown)
        if issubclass(kind, np.void):
            return lambda shown: self.arrays.void(shown)
        if issubclass(kind, array.array) and kind.__reduce_ex__ is array.array.__reduce_ex__:
            return lambda shown: self.arrays.array_array(shown)
        if any(each.__module__ == "_ctypes" for each in kind.__mro__):
            return lambda shown: self.arrays.ctypes_object(shown)
        if is_tensor_kind(kind):
            return lambda shown: reduce_tensor(self.arrays, shown)
        if is_storage_kind(kind):
            return lambda shown: reduce_storage(self.arrays, shown)
        if is_buffer_kind(kind):
            return lambda shown: reduce_buffer(self.arrays, shown)
        return None


_ENUM_WAYS = enum.Enum.__reduce_ex__, enum.Flag.__reduce_ex__


def _reduce_member(shown: Any) -> Any:
    kind = type(shown)
    if kind.__members__.get(shown.name) is shown:
        return mark("_member"), (kind, shown.name)
    # One that `_missing_` has made.
    return _by_its_own(shown)


def _reduce_flag(shown: Any) -> Any:
    kind, value = type(shown), shown.value
    if kind.__members__.get(shown.name) is shown or value < 0:
        return _reduce_member(shown)
    held = [each for each in kind.__members__.values() if each.value and each.value & value == each.value]
    rest = value
    for each in held:
        rest &= ~each.value
    return mark("_flags"), (kind, tuple(each.name for each in held), rest)


def _once(
    reduce: Callable[[Any], Any], known: dict[int, tuple[Any, Callable[[], Any]]]
) -> Callable[[Any], Any]:
    def once(shown: Any) -> Any:
        if id(shown) not in known:
            known[id(shown)] = shown, _repeatable(reduce(shown))
        return known[id(shown)][1]()

    return once


def _repeatable(reduced: Any) -> Callable[[], Any]:
    """What gives it any number of times: it may have iterators, over items and over entries."""
    if not isinstance(reduced, tuple) or len(reduced) < 4:
        return lambda: reduced
    first, last = reduced[:3], reduced[5:]
    items = [None if each is None else list(each) for each in reduced[3:5]]
    return lambda: (*first, *(None if each is None else iter(each) for each in items), *last)


def _marked(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def marked(shown: Any) -> Any:
        reduced = reduce(shown)
        if not isinstance(reduced, tuple) or isinstance(shown, enum.Enum):
            return reduced
        make, arguments, *rest = reduced
        return (mark("_aged"), (version_of(type(shown)), make, *arguments), *rest)

    return marked


def _refuser(reason: str) -> Callable[[Any], Any]:
    def refuse(shown: Any) -> Any:
        raise Refused(reason)

    return refuse


def _pickles_itself(kind: type) -> bool:
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", np.ndarray)
    for plain in (np.ndarray, masked):
        if all(
            getattr(kind, name, None) == getattr(plain, name, None)
            for name in ("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__")
        ):
            return False
    return True
