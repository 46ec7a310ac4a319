"""The functions that images and messages name to make arrays again. Their names are part of the format.

Theory of operation. A pickle says how to make an object by naming a function and its arguments. Those
below are only names: making an array needs the regions or buffers that belong to the image being read, so
an unpickler answers these names with the methods of a `Loader` made for that image. Called any other way
they say so. Read-only flags are set when everything has been loaded (`Loader.finish`): the owner of a
writable view may be read-only itself, and such a view can only be made while its owner is writable.
"""

from __future__ import annotations

import array
import enum
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cutline.errors import CannotRestore, SchemaMismatch

from .classes import homeless, slot_names, version_of
from .container import Container
from .findings import Absent, Findings
from .memory import Bytes, dense, taken_over
from .renames import RENAMES, name_of

if TYPE_CHECKING:
    from .unread import Origin

__all__ = ("BORROWED", "Borrower", "Loader", "TrialLoader", "MARKS", "Spot", "UNSEEN", "blank", "mark")

# Bytes from which on an array that came by reference is not copied.
BORROWED = 1 << 20


def _memory_of(made: np.ndarray[Any, Any]) -> Bytes:
    memory = dense(made)
    assert memory is not None
    return memory


def _nobody_asks(slot: int, memory: Bytes) -> None:
    """Of messages, and of images that nothing will be relative to."""


class Spot:
    """What stands for a key of a Map where the key itself cannot (`cutline.participant.map`)."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return type(other) is Spot and other.number == self.number

    def __hash__(self) -> int:
        return hash(("cutline.Spot", self.number))

    def __reduce__(self) -> tuple[Any, ...]:
        return mark("_spot"), (self.number,)


class Loader:
    """Makes the arrays and containers of one image or message.

    `regions.pop(slot)` gives the memory of a region. `filled` hears of the memory that a region
    became, by slot, before anybody else can see it.
    """

    # Whether containers must have what the image says they have.
    is_strict = True
    # Whether objects are to become what their classes are now.
    settles = True

    def __init__(
        self,
        regions: Any = None,
        filled: Callable[[int, Bytes], None] | None = None,
        findings: Findings | None = None,
        path: str = "",
    ) -> None:
        self.regions = {} if regions is None else regions
        self.filled = filled or _nobody_asks
        self.findings = findings or Findings()
        # How often something was asked for by its name.
        self.named = 0
        # Where in the state the object is that is being made, for errors.
        self.path = path
        # Objects that another version of their class has saved, as they say, and the classes that said so.
        self.outdated: list[tuple[object, int]] = []
        self.marked: set[type] = set()
        # Attributes that their object has no place for, and the object.
        self.stray: dict[int, tuple[object, dict[str, Any]]] = {}
        self._sealed: list[np.ndarray[Any, Any]] = []
        # The containers of the image, by number.
        self.containers: Mapping[int, Container] = {}
        # Where they come from; the first attribute that names one is where it is.
        self.origins: dict[int, Origin] = {}
        # Those of which nothing was asked for by name: all in them is of built-in types.
        self.nameless: set[int] = set()
        # Those to which something is to come with the attributes: kind, number, for how many entries.
        self.unfilled: dict[int, tuple[str, int, int]] = {}
        # While what containers said of old is read: those that there were then.
        self.former: dict[tuple[str, int], Container] | None = None

    def finish(self) -> None:
        """Sets the read-only flags; called once, after the last object has been loaded."""
        for sealed in self._sealed:
            sealed.flags.writeable = False
        self._sealed.clear()

    def content(self, content: Any) -> Any:
        """The bytes of an owner: as they are, or those of a region."""
        return self.regions.pop(content) if type(content) is int else content

    def _root(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        content: Any,
        strides: tuple[int, ...] | None = None,
        readonly: bool = False,
    ) -> np.ndarray[Any, Any]:
        made: np.ndarray[Any, Any] | None = None
        held = self.content(content)
        if strides is None:
            made = taken_over(held, dtype, shape)
        if made is None:
            # Not np.empty, which gives texts of no width a width.
            made = np.ndarray(shape, dtype, strides=strides)
            if made.nbytes:
                _memory_of(made)[:] = np.frombuffer(held, np.uint8)
        if type(content) is int:
            self.filled(content, _memory_of(made))
        if readonly:
            self._sealed.append(made)
        return made

    def _view(
        self,
        owner: Any,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        readonly: bool,
    ) -> np.ndarray[Any, Any]:
        # Not over a bytearray itself: numpy would not hold its buffer, and a bytearray may leave its memory.
        memory = dense(owner) if isinstance(owner, np.ndarray) else np.frombuffer(owner, np.uint8)
        made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=memory, offset=offset, strides=strides)
        if readonly:
            self._sealed.append(made)
        return made

    def _object_root(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> np.ndarray[Any, Any]:
        if strides is None:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, strides=strides)

    def _fill_objects(self, made: np.ndarray[Any, Any], state: tuple[Any, bool]) -> None:
        listed, readonly = state
        # numpy's own way of pickling elements, into an array of its own: `made` may have views already.
        source: np.ndarray[Any, Any] = np.empty((0,), made.dtype)
        source.__setstate__(listed)
        made[...] = source
        if readonly:
            self._sealed.append(made)

    def _object_view(
        self,
        owner: np.ndarray[Any, Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        readonly: bool,
    ) -> np.ndarray[Any, Any]:
        axes = sorted(range(owner.ndim), key=lambda axis: -abs(owner.strides[axis]))
        line = owner.transpose(axes).reshape(-1)
        size = owner.dtype.itemsize
        if len(shape) == 1 and strides[0]:
            made = line[offset // size :: strides[0] // size][: shape[0]]
        elif owner.dtype.kind == "T":
            # Strings of variable length, which as_strided does not know.
            made = np.ndarray(shape, owner.dtype, buffer=line, offset=offset, strides=strides)
        else:
            made = np.lib.stride_tricks.as_strided(line[offset // size :], shape, strides)
        if readonly:
            self._sealed.append(made)
        return made

    def _subclass(self, kind: type[Any], plain: np.ndarray[Any, Any], readonly: bool) -> Any:
        made = plain.view(kind)
        if readonly:
            self._sealed.append(made)
        return made

    def _set_attributes(self, made: Any, state: Mapping[str, Any]) -> None:
        slots = slot_names(type(made))
        for name, value in state.items():
            if name in slots:
                object.__setattr__(made, name, value)
            else:
                vars(made)[sys.intern(name)] = value

    def _void(self, view: np.ndarray[Any, Any]) -> Any:
        return view[()]

    def _array_array(self, kind: type[array.array[Any]], typecode: str, content: Any) -> array.array[Any]:
        made = kind(typecode)
        made.frombytes(self.content(content))
        if type(content) is int:
            self.filled(content, np.frombuffer(made, np.uint8))
        return made

    def _memoryview(
        self, owner: Any, offset: int, size: int, form: str, shape: tuple[int, ...], readonly: bool
    ) -> memoryview:
        memory: Any = dense(owner) if isinstance(owner, np.ndarray) else owner
        made: Any = memoryview(memory).cast("B")[offset : offset + size]
        made = made.cast(form) if len(shape) == 1 else made.cast(form, shape)
        shown: memoryview = made.toreadonly() if readonly else made
        return shown

    def _tensor(self, *arguments: Any) -> Any:
        from .tensors import load_tensor

        return load_tensor(*arguments)

    def _storage(self, *arguments: Any) -> Any:
        from .tensors import load_storage

        return load_storage(*arguments)

    def _arrow_buffer(self, *arguments: Any) -> Any:
        from .arrow import load_buffer

        return load_buffer(*arguments)

    def _aged(self, version: int, make: Callable[..., Any], *arguments: Any) -> Any:
        """An object in a message, with the version of its class."""
        made = make(*arguments)
        self.marked.add(type(made))
        if version != version_of(type(made)):
            self.outdated.append((made, version))
        return made

    def _member(self, kind: Any, name: str) -> Any:
        """A member of an enum goes by its name: values are counted anew when one is added."""
        if isinstance(kind, enum.EnumMeta):
            members: Mapping[str, Any] = kind.__members__
            found = members.get(name)
            if found is None and (today := RENAMES.inside(kind, name)) is not None:
                found = members.get(today)
            if found is not None:
                return found
            known = ", ".join(members) or "none"
            text = f"the enum {name_of(kind)} has no member {name!r} any more (it has: {known})"
        elif kind is Absent:
            return Absent()
        else:
            text = f"{kind!r} is no enum any more, and had the member {name!r}"
        called = name_of(kind) if isinstance(kind, type) else str(kind)
        short = called.rpartition(":")[2]
        self._fault(
            f"{text}; if it was renamed, say so: cutline.renamed('{called}.{name}', {short}.NEW)",
            "member",
            class_name=called,
            member=name,
        )
        return Absent()

    def _flags(self, kind: Any, names: Sequence[str], rest: int) -> Any:
        """Several members of an enum.Flag, and bits that are no member's."""
        found = [self._member(kind, name) for name in names]
        if any(isinstance(each, Absent) for each in found):
            return Absent()
        value = rest
        for each in found:
            value |= each.value
        return kind(value)

    def attribute(self, owner: Any, name: str) -> Any:
        """What pickle calls `getattr` for: a bound method, by its name."""
        try:
            return getattr(owner, name)
        except AttributeError as error:
            kind = owner if isinstance(owner, type) else type(owner)
            if isinstance(owner, enum.EnumMeta):
                return self._member(owner, name)
            today = RENAMES.inside(kind, name)
            if today is not None and hasattr(owner, today):
                return getattr(owner, today)
            self._fault(
                f"{name_of(kind)} has no {name!r} any more; if it was renamed, say so: "
                f"cutline.renamed('{name_of(kind)}.{name}', {kind.__qualname__}.new_name)",
                "method",
                error,
                class_name=name_of(kind),
                method=name,
            )
            return Absent()

    def put(self, instance: object, state: Any) -> None:
        """The attributes of an object that pickle would set one by one, wherever its class keeps them."""
        parts = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        if not all(part is None or isinstance(part, dict) for part in parts):
            self._fault(
                f"{name_of(type(instance))} was saved with a state of its own ({type(state).__name__}) and "
                "has no __setstate__ any more, which it needs to be read",
                "attribute",
                class_name=name_of(type(instance)),
            )
            return
        attributes = {**(parts[0] or {}), **(parts[1] or {})}
        stray = {name: attributes.pop(name) for name in homeless(instance, attributes)}
        if stray:
            self.stray[id(instance)] = instance, stray
        self._set_attributes(instance, attributes)

    def _fault(self, text: str, what: str, cause: Exception | None = None, **facts: Any) -> None:
        error = SchemaMismatch(text, what=what, **{"path": self.path, **facts} if self.path else facts)
        error.__cause__ = cause
        self.findings.meet(error)

    def _container(self, kind: str, number: int) -> Container:
        found = self.containers.get(number)
        if found is not None and found.kind == kind:
            if number in self.origins and self.former is None:
                self.origins.pop(number).path = self.path
            return found
        if self.former is None:
            raise CannotRestore(f"the image has no {kind} {number}, which its state names")
        return self.former.setdefault((kind, number), blank(kind))

    def _fill_container(self, made: Container, state: Any) -> None:
        kind, number, checked = self.unfilled.pop(id(made), (made.kind, 0, 0))
        made._fill(state)
        if self.is_strict and made._checked_count() != checked:
            raise CannotRestore(f"{kind} {number} of the image has {checked} values that may change")

    def _spot(self, number: int) -> Spot:
        return Spot(number)


class Borrower(Loader):
    """Leaves large arrays where their bytes are, in somebody else's memory: read-only, and not copied."""

    def _root(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        content: Any,
        strides: tuple[int, ...] | None = None,
        readonly: bool = False,
    ) -> np.ndarray[Any, Any]:
        if type(content) is int or len(content) < BORROWED:
            return super()._root(dtype, shape, content, strides, readonly)
        made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=content, strides=strides)
        made.flags.writeable = False
        return made


class TrialLoader(Loader):
    """Makes arrays of zeros, which take no memory, where an image has regions; containers are empty."""

    def _root(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        content: Any,
        strides: tuple[int, ...] | None = None,
        readonly: bool = False,
    ) -> np.ndarray[Any, Any]:
        if type(content) is int and strides is None:
            return np.zeros(shape, dtype)
        zeros = bytes(np.dtype(dtype).itemsize * math.prod(shape)) if type(content) is int else content
        return super()._root(dtype, shape, zeros, strides, readonly)

    def _array_array(self, kind: type[array.array[Any]], typecode: str, content: Any) -> array.array[Any]:
        return super()._array_array(kind, typecode, b"" if type(content) is int else content)

    def _container(self, kind: str, number: int) -> Container:
        return blank(kind)

    def _fill_container(self, made: Container, state: Any) -> None:
        """It has no places for what is in `state`, which loaded."""


def blank(kind: str) -> Container:
    """An empty container. Raises CannotRestore for a kind that is not known."""
    from .container_kinds import KINDS

    if kind not in KINDS:
        raise CannotRestore(
            f"the image has a container of kind {kind!r}, which this Cutline does not know; restore with the "
            "newer Cutline that wrote it"
        )
    return KINDS[kind]._blank()


def mark(name: str) -> Callable[..., Any]:
    """The module-level function that a pickle names in place of the `Loader` method `name`."""
    marked: Callable[..., Any] = getattr(sys.modules[__name__], name)
    return marked


def _outside(name: str) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        raise CannotRestore(f"{__name__}.{name} needs an image: load through Cutline, not by pickle alone")

    called.__name__ = called.__qualname__ = name
    return called


MARKS = tuple(
    "_root _view _object_root _fill_objects _object_view _subclass _set_attributes _void _array_array "
    "_memoryview _tensor _storage _arrow_buffer _aged _member _flags "
    "_container _fill_container _spot _unseen".split()
)
for _name in MARKS:
    globals()[_name] = _outside(_name)

# Stands in a change for a value that is not in it, and is only ever compared; for unpicklers it is itself.
UNSEEN = mark("_unseen")
Loader._unseen = staticmethod(UNSEEN)  # type: ignore[attr-defined]
