"""Reads a state without its classes: placeholders stand for them, and no code of the program runs.

Theory of operation. A pickle makes objects by names. Here a name is never imported: each becomes a class of
its own, made on the spot, whose objects keep what the pickle gives them: arguments, attributes, items. So a
state can be shown where the program that wrote it is not installed, or is not to be run. Containers, dates
and numbers of the standard library are themselves; arrays are made, but the contents of large ones are left
where they are, as zeros.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from cutline.errors import CannotRestore

from .classes import Classes
from .memory import address, span
from .pickling import Live, load
from .rebuild import MARKS, Loader
from .restore import restore
from .saying import said

__all__ = ("Hollow", "Likeness", "Placeholder", "Placeholders", "shown_message", "shown_state")

_SELF = frozenset(
    "builtins:object builtins:int builtins:float builtins:complex builtins:bool builtins:str builtins:bytes"
    " builtins:bytearray builtins:list builtins:tuple builtins:dict builtins:set builtins:frozenset"
    " builtins:range builtins:slice builtins:Ellipsis builtins:NotImplemented collections:OrderedDict"
    " collections:deque collections:defaultdict collections:Counter datetime:datetime datetime:date"
    " datetime:time datetime:timedelta datetime:timezone zoneinfo:ZoneInfo._unpickle decimal:Decimal"
    " fractions:Fraction uuid:UUID pathlib:PurePosixPath pathlib:PosixPath pathlib._local:PosixPath"
    " pathlib._local:PurePosixPath array:array numpy:dtype numpy:record numpy.rec:record"
    " numpy:void numpy.core.multiarray:scalar numpy._core.multiarray:scalar".split()
)
# Without these nothing can be read.
_LEAST = frozenset("builtins:set builtins:frozenset builtins:bytearray builtins:object".split())


class Placeholder:
    """Stands for an object of a class that was not looked for; ``cutline_name`` of its class says which.

    What a pickle makes an object of is kept: arguments, items of a list, entries of a mapping, a state that
    is no set of attributes. Attributes are in ``__dict__``.
    """

    __slots__ = (
        "cutline_arguments", "cutline_items", "cutline_entries", "cutline_state", "__dict__", "__weakref__"
    )  # fmt: skip

    cutline_name: ClassVar[str] = ""
    cutline_arguments: tuple[Any, ...]
    cutline_items: list[Any]
    cutline_entries: list[tuple[Any, Any]]
    cutline_state: Any

    def __new__(cls, *args: Any, **named: Any) -> Placeholder:
        made = super().__new__(cls)
        for name, value in (("arguments", args), ("items", []), ("entries", []), ("state", None)):
            object.__setattr__(made, f"cutline_{name}", value)
        if named:
            vars(made).update(named)
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        """Takes whatever a pickle gives."""

    def __call__(self, *args: Any) -> Placeholder:
        return _class_of(f"{type(self).cutline_name}()")(*args)

    def __setstate__(self, state: Any) -> None:
        held = vars(self)
        parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        if all(part is None or isinstance(part, dict) for part in parts):
            for part in parts:
                held.update({str(name): value for name, value in (part or {}).items()})
        else:
            self.cutline_state = state

    def append(self, item: Any) -> None:
        """An item of a list."""
        self.cutline_items.append(item)

    def extend(self, items: Iterable[Any]) -> None:
        """Several."""
        self.cutline_items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.cutline_entries.append((key, value))


def _class_of(name: str) -> type[Placeholder]:
    return type("Placeholder", (Placeholder,), {"cutline_name": name, "__slots__": ()})


class Placeholders(Classes):
    """Answers every name with a placeholder, the same one each time; some names of the standard library
    with what they mean."""

    def __init__(self, itself: frozenset[str] = _SELF) -> None:
        super().__init__()
        self._itself = itself
        self._made: dict[str, type[Placeholder]] = {}

    def find(self, module: str, qualname: str) -> Any:
        name = f"{module}:{qualname}"
        if name in self._itself:
            if name == "numpy:dtype":
                return self._dtype
            found: Any = importlib.import_module(module)
            for part in qualname.split("."):
                found = getattr(found, part)
            return found
        return self._placeholder(name)

    def _placeholder(self, name: str) -> type[Placeholder]:
        if name not in self._made:
            self._made[name] = _class_of(name)
        return self._made[name]

    def _dtype(self, kind: Any, *rest: Any) -> Any:
        """An element type of numpy's own: of a placeholder's class it would make one of objects."""
        if not (isinstance(kind, type) and issubclass(kind, Placeholder)):
            # Some, such as texts of variable length, have names that only the libraries know that made them.
            with contextlib.suppress(TypeError):
                return np.dtype(kind, *rest)
        return self._placeholder("numpy:dtype")(kind, *rest)


class Likeness:
    """An array that was not made: of a library that is not loaded, or of an unknown kind."""

    def __init__(
        self, kind: str, dtype: str = "", shape: tuple[int, ...] = (), nbytes: int | None = None
    ) -> None:
        self.kind, self.dtype, self.shape, self.nbytes = kind, dtype, shape, nbytes


class Hollow(Loader):
    """Makes arrays without their contents, as far as those are in regions; `spans` says which memory."""

    # A placeholder has what the image says, whatever a class would make of it.
    settles = False
    # Of placeholders several may be equal that were not, and the other way round.
    is_strict = False

    def __init__(self, regions: Any = None, filled: Callable[[int, Any], None] | None = None) -> None:
        super().__init__(regions, self._note)
        self.spans: list[tuple[int, int]] = []

    def _note(self, slot: int, memory: Any) -> None:
        start = address(memory)
        self.spans.append((start, start + memory.nbytes))

    def is_hollow(self, shown: np.ndarray[Any, Any]) -> bool:
        """Whether an array shows memory whose content was not read."""
        start, stop = span(shown)
        return any(start < high and low < stop for low, high in self.spans)

    def _tensor(self, memory: Any, dtype: str, shape: Any, *rest: Any) -> Any:
        return Likeness("torch.Tensor", dtype, tuple(shape))

    def _storage(self, memory: Any, dtype: str, *rest: Any) -> Any:
        return Likeness("torch.Storage", dtype, nbytes=rest[1] if len(rest) > 1 else None)

    def _arrow_buffer(self, memory: Any, start: int, size: int, mutable: bool) -> Any:
        return Likeness("pyarrow.Buffer", nbytes=size)

    def _subclass(self, kind: type[Any], plain: Any, readonly: bool) -> Any:
        return kind(plain)

    def _set_attributes(self, made: Any, state: Mapping[str, Any]) -> None:
        vars(made).update(state)

    def _aged(self, version: int, make: Callable[..., Any], *arguments: Any) -> Any:
        return make(*arguments)

    def _member(self, kind: Any, name: str) -> Any:
        return kind(name)

    def _flags(self, kind: Any, names: Sequence[str], rest: int) -> Any:
        return kind(*names, *([rest] if rest else []))


def _lenient(name: str) -> Callable[..., Any]:
    """The loader's way of making something, and a likeness of it where a part of it is a placeholder."""
    make = getattr(Hollow, name)

    def made(self: Hollow, *arguments: Any) -> Any:
        if any(isinstance(part, (Placeholder, Likeness)) for part in arguments):
            shape = next((part for part in arguments if isinstance(part, tuple)), ())
            return Likeness(f"array ({name.strip('_')})", shape=shape)
        return make(self, *arguments)

    return made


for _name in "_root _view _object_root _object_view _fill_objects _void _memoryview _array_array".split():
    assert _name in MARKS
    setattr(Hollow, _name, _lenient(_name))


def shown_state(
    pieces: list[tuple[str, bytes]], regions: Mapping[int, Any], *, participant: str, live: Live
) -> tuple[Any, Hollow]:
    """The state of an image, and what made its arrays. No name in it is imported.

    Raises:
        CannotRestore: the pickle itself is beyond reading; the message says where.
    """
    loaders: list[Hollow] = []

    class Own(Hollow):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            loaders.append(self)

    for itself in (_SELF, _LEAST):
        # What an object of the standard library is made of may be a placeholder, and then it is one too.
        try:
            classes = Placeholders(itself)
            state = restore(
                pieces, dict(regions), participant=participant, classes=classes, live=live, loader_kind=Own
            )
        except CannotRestore:
            if itself is _LEAST:
                raise
        else:
            return state, loaders[-1]
    raise AssertionError("the last way returns or raises")


def shown_message(payload: Any, live: Live) -> Any:
    """The value of a message; see `shown_state`. Raises CannotRestore."""
    failure: Exception | None = None
    for itself in (_SELF, _LEAST):
        try:
            return load(payload, live, Placeholders(itself), Hollow())
        except Exception as error:
            failure = error
    assert failure is not None
    raise CannotRestore(f"a message does not load: {said(failure)}") from failure
