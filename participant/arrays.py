"""How arrays go into images and messages: owners once, views as places in an owner.

Theory of operation. Pickle separates an array from its views. Here every array is written as (owner, byte
offset, shape, strides, element type, read-only), and the owner's memory once: in the stream when it is
small, as a numbered *region* outside it when it is large. Owners that are Python objects of their own
(bytearray, array.array, bytes) are pickled as themselves and keep their identity through pickle's memo.
Owners that are not (a mapped file, a ctypes array, a tensor) are stood in for by an array of bytes over
their address range. Ranges that turn out to overlap without one owner (`Regroup`) are taken together as
one owner in a second attempt; what cannot be taken together is refused, never separated.

`StateArrays` writes whole owners, because the state's next capture compares them. `MessageArrays` writes
what a message shows: a slice of a large array travels as its own bytes, and only slices that overlap
within one message travel as one block.
"""

from __future__ import annotations

import array
import ctypes
from abc import ABC, abstractmethod
from pickle import PickleBuffer
from typing import Any, NoReturn

import numpy as np

from .classes import attributes_of
from .container import Container
from .gathering import Gathering
from .memory import Bytes, address, dense, overlapping, owner_of, span, whole, window
from .rebuild import mark

__all__ = ("Arrays", "StateArrays", "MessageArrays", "Regroup", "Unsharable")

Array = np.ndarray[Any, Any]
Reduced = Any
# From this size on, in bytes, a message carries memory beside its pickle.
BESIDE = 4096
FIELD_OF_OBJECTS = "a view that shows a part of a structured array with object fields"
# Formats that memoryview.cast can make again.
_CASTABLE = frozenset("cbB?hHiIlLqQnNfd")


class Unsharable(Exception):
    """Memory that is shared in a way that an image cannot hold; `unit`: its addresses, where they matter."""

    def __init__(self, reason: str, unit: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.unit = unit


def _refuse_shared(unit: tuple[int, int]) -> NoReturn:
    raise Unsharable(
        "memory that an array shares with an object which pickles itself (an array subclass with its own "
        "__reduce__, a ctypes object, a buffer over a bytearray)",
        unit,
    )


class Regroup(Exception):
    """These address ranges, each shared by several owners, must each be written as one."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        super().__init__(spans)
        self.spans = spans


class Arrays(ABC):
    """The arrays of one pickling. `merged`: address ranges to be written as one owner each."""

    def __init__(self, merged: list[tuple[int, int]] | None = None) -> None:
        self.merged = merged or []
        self.roots: list[Array] = []
        self.standing: dict[tuple[int, int], Bytes] = {}
        self.standing_ids: dict[int, Bytes] = {}
        self.objects: dict[int, tuple[int, int]] = {}
        self.opaque: list[tuple[int, int]] = []
        # What owns the memory that others stand for.
        self.kept: list[Any] = []
        self._met = False

    # -- what is written -----------------------------------------------------------------------------

    def reduce(self, shown: Array) -> Reduced:
        """How an exact ndarray is written."""
        if self.standing_ids and id(shown) in self.standing_ids:
            return self.root(shown, shown)
        if shown.dtype.hasobject:
            return self.objects_of(shown)
        if not shown.nbytes:
            return self.empty(shown)
        if self.merged and (merged := self.in_merged(shown)) is not None:
            return merged
        return self.by_owner(shown)

    @abstractmethod
    def by_owner(self, shown: Array) -> Reduced:
        """How an array with bytes of its own, or in an owner's memory, is written."""

    def content(self, owner: Any, memory: Bytes) -> Any:
        """An owner's memory: bytes, or the slot of a region."""
        return memory.tobytes()

    def container(self, shown: Container) -> Reduced:
        """How a Map or a Log is written: as a plain value."""
        return shown.__reduce_ex__(5)

    def root(self, owner: Array, memory: Bytes) -> Reduced:
        """An array that owns its memory."""
        readonly = not owner.flags.writeable
        content = self.content(owner, memory)
        if owner.flags.c_contiguous and not readonly:
            return mark("_root"), (owner.dtype, owner.shape, content)
        strides = None if owner.flags.c_contiguous else owner.strides
        return mark("_root"), (owner.dtype, owner.shape, content, strides, readonly)

    def empty(self, shown: Array) -> Reduced:
        """An array without a byte shares nothing."""
        return mark("_root"), (shown.dtype, shown.shape, b"", None, not shown.flags.writeable)

    def view(self, shown: Array, owner: Any, start: int, stop: int) -> Reduced:
        """A place in the memory [start, stop) of `owner`, which is pickled before it."""
        low, high = span(shown)
        if low < start or high > stop:
            raise Unsharable("an array that reaches beyond the memory of its owner")
        readonly = not shown.flags.writeable
        place = address(shown) - start
        return mark("_view"), (owner, shown.dtype, shown.shape, shown.strides, place, readonly)

    def objects_of(self, shown: Array) -> Reduced:
        """An array whose elements are Python objects."""
        owner = owner_of(shown)
        readonly = not shown.flags.writeable
        if owner is shown and type(shown) is np.ndarray:
            state = np.ndarray.__reduce__(shown)[2]
            strides = None if shown.flags.c_contiguous else shown.strides
            made = (shown.dtype, shown.shape, strides)
            return mark("_object_root"), made, (state, readonly), None, None, mark("_fill_objects")
        if not isinstance(owner, np.ndarray) or owner.dtype != shown.dtype:
            raise Unsharable("a view that shows the memory of objects as something else")
        if type(owner) is not np.ndarray:
            raise Unsharable(f"an array of objects owned by a {type(owner).__name__}")
        place = address(shown) - address(owner)
        return mark("_object_view"), (owner, shown.shape, shown.strides, place, readonly)

    # -- kinds that are not exact ndarrays -----------------------------------------------------------

    def subclass(self, shown: Array) -> Reduced:
        """An instance of an ndarray subclass: a view with attributes."""
        held, slots = attributes_of(shown)
        attributes = {**held, **slots}
        if isinstance(shown, np.memmap):
            # The mapped file is not part of an image; its content is.
            attributes["_mmap"] = None
        plain = shown.view(np.ndarray)
        if plain.dtype.hasobject and plain.base is shown and shown.base is None:
            plain = plain.copy(order="K")
        state = attributes or None
        setter = mark("_set_attributes") if state else None
        made = (type(shown), plain, not shown.flags.writeable)
        return mark("_subclass"), made, state, None, None, setter

    def foreign(self, shown: Array) -> Reduced:
        """An ndarray subclass that pickles itself: its memory must not be anybody else's too."""
        if shown.size and not shown.dtype.hasobject:
            self._met = True
            self.opaque.append(span(np.ndarray.view(shown, np.ndarray)))
        return shown.__reduce_ex__(5)

    def ctypes_object(self, shown: Any) -> Reduced:
        """A ctypes object: saved as a copy, so nobody else may show its memory."""
        self._met = True
        start = ctypes.addressof(shown)
        self.opaque.append((start, start + ctypes.sizeof(shown)))
        return shown.__reduce_ex__(5)

    def void(self, shown: np.void) -> Reduced:
        """A structured scalar: either its own memory, or one element of an array."""
        if shown.base is None or shown.dtype.hasobject or not shown.dtype.itemsize:
            return shown.__reduce_ex__(5)
        view: Array = np.ndarray((), shown.dtype, buffer=shown)
        return mark("_void"), (view,)

    def array_array(self, shown: array.array[Any]) -> Reduced:
        """An `array.array`, with the memory apart when it is large."""
        content = self.content(shown, np.frombuffer(shown, np.uint8)) if len(shown) else b""
        held, slots = attributes_of(shown)
        state = (held, slots) if held or slots else None
        return mark("_array_array"), (type(shown), shown.typecode, content), state

    def memory_view(self, shown: memoryview) -> Reduced:
        """A memoryview: a place in the object whose buffer it shows."""
        owner: Any = shown.obj
        form = shown.format.lstrip("@")
        if not shown.c_contiguous or not shown.ndim or not shown.nbytes or form not in _CASTABLE:
            raise Unsharable(f"a memoryview of format {shown.format!r}, shape {shown.shape} and strides")
        if isinstance(owner, np.ndarray):
            memory = None if owner.dtype.hasobject else dense(owner)
        else:
            plain = isinstance(owner, (bytes, bytearray, array.array))
            memory = np.frombuffer(owner, np.uint8) if plain else None
        if memory is None:
            raise Unsharable(f"a memoryview of a {type(owner).__name__}")
        self.object_owner(owner)
        offset = address(np.frombuffer(shown, np.uint8)) - address(memory)
        return mark("_memoryview"), (owner, offset, shown.nbytes, form, shown.shape, shown.readonly)

    def placed(self, start: int, size: int, shown: Any) -> tuple[Bytes, int]:
        """The array that stands for the memory of `shown`, these addresses, and where in it that begins."""
        low, high = self.merged_at(start, start + size) or (start, start + size)
        return self.stand_in(low, high, window(low, high), shown), start - low

    def stand_in(self, start: int, stop: int, memory: Bytes, shown: Any) -> Bytes:
        """The array that stands for the memory of an owner that is no Python object of an image.

        `shown` keeps that memory alive: it may have been made for this pickling alone, by a `__reduce__`.
        """
        self.kept.append(shown)
        known = self.standing.get((start, stop))
        if known is None:
            self._met = True
            known = self.standing[start, stop] = memory
            self.standing_ids[id(memory)] = memory
        return known

    def merged_at(self, start: int, stop: int) -> tuple[int, int] | None:
        """The merged range that holds [start, stop)."""
        return next((unit for unit in self.merged if unit[0] <= start and stop <= unit[1]), None)

    def in_merged(self, shown: Array) -> Reduced | None:
        """How an array inside a merged range is written: as a view of the whole range."""
        unit = self.merged_at(*span(shown))
        if unit is None:
            return None
        return self.view(shown, self.stand_in(*unit, window(*unit), shown), *unit)

    def object_owner(self, owner: Any) -> tuple[int, int] | None:
        """The addresses of an owner that is pickled as itself."""
        if not isinstance(owner, (bytes, bytearray, array.array)):
            return None
        known = self.objects.get(id(owner))
        if known is None:
            self._met = True
            start = address(np.frombuffer(owner, np.uint8))
            known = self.objects[id(owner)] = start, start + memoryview(owner).nbytes
        return known

    def another(self) -> Arrays:
        """One of the same kind that has met nothing."""
        return type(self)()

    def is_used(self) -> bool:
        """Whether any memory was met, or is to be merged."""
        return bool(self._met or self.merged)

    def clear(self) -> None:
        """Lets go of all memory."""
        self._met = False
        memory = (self.roots, self.standing, self.standing_ids, self.objects, self.opaque, self.merged)
        for held in (*memory, self.kept):
            held.clear()


class StateArrays(Arrays):
    """The arrays of one capture. Owners of `region_min` bytes or more become regions, by slot."""

    def __init__(
        self,
        region_min: int,
        merged: list[tuple[int, int]] | None = None,
        containers: Gathering | None = None,
    ) -> None:
        super().__init__(merged)
        self.region_min = region_min
        self.slots: list[Bytes] = []
        self.containers = containers or Gathering()

    def another(self) -> Arrays:
        return StateArrays(self.region_min)

    def content(self, owner: Any, memory: Bytes) -> Any:
        if memory.nbytes < self.region_min:
            return memory.tobytes()
        self.slots.append(memory)
        return len(self.slots) - 1

    def container(self, shown: Container) -> Reduced:
        return self.containers.reduce(shown)

    def by_owner(self, shown: Array) -> Reduced:
        owner = shown if shown.base is None else owner_of(shown)
        if owner is shown and (memory := dense(shown)) is not None:
            self.roots.append(shown)
            return self.root(shown, memory)
        place = self.object_owner(owner)
        if place is not None:
            return self.view(shown, owner, *place)
        return self._over(shown, owner)

    def _over(self, shown: Array, owner: Any) -> Reduced:
        memory: Bytes | None = None
        if isinstance(owner, np.ndarray):
            if owner.dtype.hasobject:
                raise Unsharable(FIELD_OF_OBJECTS)
            memory = dense(owner) if owner.nbytes else None
            if memory is not None and type(owner) is np.ndarray:
                start = address(memory)
                if self.merged_at(start, start + memory.nbytes) is None:
                    return self.view(shown, owner, start, start + memory.nbytes)
        else:
            memory = whole(owner)
        if memory is None:
            # An owner that does not say what it owns: what is shown of it.
            memory = window(*span(shown))
        start, stop = address(memory), address(memory) + memory.nbytes
        unit = self.merged_at(start, stop)
        if unit is not None:
            return self.view(shown, self.stand_in(*unit, window(*unit), shown), *unit)
        return self.view(shown, self.stand_in(start, stop, memory, shown), start, stop)

    def check(self) -> None:
        """After the last object.

        Raises:
            Regroup: owners overlap and can be written as one.
            Unsharable: they overlap and cannot.
        """
        if not self.standing and not self.opaque:
            return
        memory = [*self.standing, *(span(root) for root in self.roots)]
        alone = [*self.objects.values(), *self.opaque]
        units = overlapping(memory)
        every = overlapping([*memory, *alone])
        for unit in every:
            if unit not in units:
                _refuse_shared(unit)
        if units:
            raise Regroup(units)

    def clear(self) -> None:
        super().clear()
        self.slots.clear()


class MessageArrays(Arrays):
    """The arrays of one message: each as the bytes it shows, those that overlap as one block."""

    def __init__(self, merged: list[tuple[int, int]] | None = None) -> None:
        super().__init__(merged)
        self.spans: list[tuple[int, int]] = []

    def content(self, owner: Any, memory: Bytes) -> Any:
        if memory.nbytes < BESIDE:
            return memory.tobytes()
        self._met = True
        return PickleBuffer(memory.data)

    def by_owner(self, shown: Array) -> Reduced:
        owner = shown if shown.base is None else owner_of(shown)
        if isinstance(owner, (bytearray, array.array)):
            place = self.object_owner(owner)
            assert place is not None
            return self.view(shown, owner, *place)
        if isinstance(owner, np.ndarray) and owner.dtype.hasobject:
            raise Unsharable(FIELD_OF_OBJECTS)
        memory = dense(shown)
        self._met = True
        self.spans.append(span(shown))
        if memory is None:
            copied = shown.copy(order="K")
            memory = dense(copied)
            assert memory is not None
            strides = None if copied.flags.c_contiguous else copied.strides
            readonly = not shown.flags.writeable
            return mark("_root"), (shown.dtype, shown.shape, self.content(copied, memory), strides, readonly)
        return self.root(shown, memory)

    def check(self) -> None:
        """After the last object.

        Raises:
            Regroup: arrays of the message overlap.
        """
        if len(self.spans) + len(self.opaque) + len(self.standing) > 1:
            memory = [*self.spans, *self.standing]
            units = overlapping(memory)
            for unit in overlapping([*memory, *self.opaque]):
                if unit not in units:
                    _refuse_shared(unit)
            if units:
                raise Regroup(units)

    def clear(self) -> None:
        super().clear()
        self.spans.clear()
