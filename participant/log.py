"""`cutline.Log`: a list whose captures cost what was appended, and whose steps are durable when they return.

Theory of operation. A Log holds a plain list and is none: whoever could reach the list around the Log's
methods (`list.append(log, x)`, C code that takes any list) would change it unseen. Appending leaves what was
there as it was, so a capture needs the tail alone: everything from the *low-water mark* on, the lowest
position that anything else than an append touched since the capture that it is relative to. A `Snapshot`
names that tail and takes no copy of it. Who is about to change something below its end copies the tail for
it first.

Values are classified when they are set. `loose` are the positions of those that may change without the Log
hearing of it: a dict that somebody else holds too, another Log.

One number, `_floor`, tells whether a change concerns anybody: below it lies what an open snapshot, the
low-water mark or the chain covers.

The *chain* is a digest of all that the Log holds and of how it came to that, for `step`
(`cutline.participant.steps`). It is brought up to date when it is asked for. Changing what it covers gives
it another root, which follows from the one before and the position.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from reprlib import recursive_repr
from typing import Any, SupportsIndex, TypeVar, overload

from blake3 import blake3

from cutline.errors import OutsideHandler

from .handle import own_port
from .immutable import ATOMS, is_immutable

__all__ = ("Log", "Snapshot", "only_in_handlers")

T = TypeVar("T")
R = TypeVar("R")
_ROOT = b"\0" * 16
_only_in_handlers: list[bool] = []


class Snapshot:
    """What a Log held from `start` on when this was taken; `length`: how many values there were in all."""

    __slots__ = ("start", "length", "_log", "_kept")

    def __init__(self, log: Log[Any], start: int) -> None:
        self.start = start
        self.length = len(log)
        self._log: Log[Any] | None = log
        self._kept: list[Any] = []

    def values(self) -> list[Any]:
        """The values from `start` on, as they were."""
        return self._kept if self._log is None else self._log._items[self.start : self.length]

    def detach(self) -> None:
        """The log is about to change them."""
        self._kept, self._log = self.values(), None

    def close(self) -> None:
        """Nobody asks for the values any more."""
        log, self._log = self._log, None
        self._kept = []
        if log is not None:
            log._open.remove(self)


class Log(MutableSequence[T]):
    """A list for histories: all that a list does, at the price of its own class.

    It compares equal to lists; slices, sums and copies of it are Logs. It is no `list`: use ``list(log)``
    where one is demanded (json, heapq).
    """

    __slots__ = ("_items", "_loose", "_floor", "_low", "_lows", "_open", "_chain", "_covered", "__weakref__")

    _items: list[T]
    _loose: list[int]
    _floor: int
    _low: int
    _lows: dict[int, int]
    _open: list[Snapshot]
    _chain: bytes
    _covered: int

    __hash__ = None  # type: ignore[assignment]

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Log[T]:
        log = super().__new__(cls)
        log._items, log._loose, log._open, log._lows = [], [], [], {}
        log._floor = log._low = log._covered = 0
        log._chain = _ROOT
        return log

    def __init__(self, iterable: Iterable[T] = (), /) -> None:
        if self._items:
            self.clear()
        self.extend(iterable)

    # -- steps -------------------------------------------------------------------------------------------

    def step(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Calls `function`, appends its result, and returns it when it is durable.

        In a handler: after a crash the handler runs again, and where it comes to the same step, by the same
        function with the same arguments and the same content of the log before it, the result of the first
        time is appended and returned and the function is not called. A checkpoint is not waited for. What
        the function looks at beside the log should be among its arguments; the log itself may be. If it
        raises, nothing is appended. Outside of a handler (in a unit test) the result is just appended.

        Raises:
            StateChangedBeforeAwait: an async handler awaits something after it has made a step.
            CannotCapture: the result, or an argument, cannot be stored; nothing was appended.
            OutsideHandler: a constructor makes a step, or a thread that a handler has started.
            Misuse: the function sends something, changes the log or makes a step.
        """
        port = own_port()
        steps = None if port is None else getattr(port, "steps", None)
        if steps is not None:
            result: R = steps.take(self, function, args, kwargs)
            return result
        if _only_in_handlers:
            raise OutsideHandler(
                "a step of a log is made by a handler, in the thread that the handler runs in"
            )
        result = function(*args, **kwargs)
        self.append(result)  # type: ignore[arg-type]
        return result

    def chain(self, digest: Callable[[Any], bytes]) -> bytes:
        """16 bytes that stand for what the log holds. `digest` makes bytes of one value."""
        items = self._items
        if self._covered < len(items):
            chain = self._chain
            for at in range(self._covered, len(items)):
                chain = _hash(chain + digest(items[at]))
            self._chain, self._covered = chain, len(items)
            self._floor = self._covered
        return self._chain

    # -- captures ----------------------------------------------------------------------------------------

    def snapshot(self, number: int, against: int | None) -> Snapshot:
        """What changed since the capture `against`; all of it where that one is not known. Takes no copy."""
        for known in self._lows:
            self._lows[known] = min(self._lows[known], self._low)
        start = self._lows.get(against, 0) if against is not None else 0
        taken = Snapshot(self, start)
        self._open.append(taken)
        self._low = self._floor = self._lows[number] = taken.length
        return taken

    def committed(self, number: int) -> None:
        """No snapshot will be relative to a capture before this one."""
        self._lows = {known: low for known, low in self._lows.items() if known >= number}

    def aborted(self, number: int) -> None:
        """No snapshot will be relative to this one."""
        self._lows.pop(number, None)

    @property
    def loose(self) -> list[int]:
        """The positions of values that may change without the log being changed, in order."""
        return self._loose

    # -- what a list can do ------------------------------------------------------------------------------

    def append(self, value: T) -> None:
        """Adds one value at the end."""
        if type(value) not in ATOMS and not is_immutable(value):
            self._loose.append(len(self._items))
        self._items.append(value)

    def extend(self, values: Iterable[T]) -> None:
        """Adds values at the end; as many as there were, if their iterator raises."""
        fresh: list[T] = []
        try:
            fresh.extend(values)
        finally:
            start = len(self._items)
            self._items.extend(fresh)
            self._loose += _loose_of(fresh, start)

    def insert(self, index: SupportsIndex, value: T) -> None:
        """Puts a value before `index`."""
        at = min(max(_from_end(operator.index(index), len(self._items)), 0), len(self._items))
        self._replace(at, at, [value])

    def pop(self, index: SupportsIndex = -1) -> T:
        """Takes out and returns one value, the last one unless told otherwise."""
        items = self._items
        at = _from_end(operator.index(index), len(items))
        if not 0 <= at < len(items):
            # It says what is wrong, as it says it for a list.
            return items.pop(index)
        value = items[at]
        self._replace(at, at + 1, [])
        return value

    def remove(self, value: T) -> None:
        """Takes out the first equal value. Raises ValueError if there is none."""
        at = self._items.index(value)
        self._replace(at, at + 1, [])

    def clear(self) -> None:
        """Takes everything out."""
        self._replace(0, len(self._items), [])

    def reverse(self) -> None:
        """The last one first, in place."""
        self._touch(0)
        self._items.reverse()
        last = len(self._items) - 1
        self._loose = [last - at for at in reversed(self._loose)]

    def sort(self, *, key: Callable[[T], Any] | None = None, reverse: bool = False) -> None:
        """Sorts in place; equal ones keep their order."""
        self._touch(0)
        try:
            self._items.sort(key=key, reverse=reverse)
        finally:
            if self._loose:
                self._loose = _loose_of(self._items, 0)

    def copy(self) -> Log[T]:
        """Another log with the same values."""
        return self._of(self._items)

    def index(self, value: Any, start: SupportsIndex = 0, stop: SupportsIndex | None = None) -> int:
        """The position of the first equal value. Raises ValueError if there is none."""
        if stop is None:
            return self._items.index(value, start)
        return self._items.index(value, start, stop)

    def count(self, value: Any) -> int:
        """How many values are equal."""
        return self._items.count(value)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._items)

    def __contains__(self, value: object) -> bool:
        return value in self._items

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Log[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | Log[T]:
        found: Any = self._items[index]
        return self._of(found) if type(index) is slice else found

    @overload
    def __setitem__(self, index: SupportsIndex, value: T) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[T]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        items = self._items
        if type(index) is slice:
            self._set_slice(index, list(value))
            return
        if not hasattr(type(index), "__index__"):
            # It says what is wrong, as it says it for a list.
            items[index] = value
        at = _from_end(operator.index(index), len(items))
        if not 0 <= at < len(items):
            items[index] = value
        self._replace(at, at + 1, [value])

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        items = self._items
        if type(index) is slice:
            self._set_slice(index, None)
            return
        at = _from_end(operator.index(index), len(items))
        if not 0 <= at < len(items):
            del items[index]
        self._replace(at, at + 1, [])

    def _set_slice(self, index: slice, values: list[T] | None) -> None:
        """Replaces a slice; None takes it out."""
        start, stop, step = index.indices(len(self._items))
        if step == 1:
            self._replace(start, max(start, stop), values or [])
            return
        hit = range(start, stop, step)
        if values is not None and len(values) != len(hit):
            self._items[index] = values
        if not hit:
            return
        self._touch(min(hit[0], hit[-1]))
        if values is None:
            del self._items[index]
        else:
            self._items[index] = values
        self._loose = _loose_of(self._items, 0)

    def __add__(self, other: Any) -> Log[T]:
        if not isinstance(other, (list, Log)):
            return NotImplemented
        return self._of([*self._items, *other])

    def __radd__(self, other: Any) -> Log[T]:
        if not isinstance(other, list):
            return NotImplemented
        return self._of([*other, *self._items])

    def __iadd__(self, values: Iterable[T]) -> Log[T]:  # type: ignore[misc]
        self.extend(values)
        return self

    def __mul__(self, times: SupportsIndex) -> Log[T]:
        if not hasattr(type(times), "__index__"):
            return NotImplemented
        return self._of(self._items * times)

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex) -> Log[T]:
        if not hasattr(type(times), "__index__"):
            return NotImplemented
        if operator.index(times) <= 0:
            self.clear()
        else:
            self.extend(self._items * (operator.index(times) - 1))
        return self

    def __eq__(self, other: object) -> Any:
        theirs = _compared(other)
        return NotImplemented if theirs is None else self._items == theirs

    def __lt__(self, other: Any) -> Any:
        theirs = _compared(other)
        return NotImplemented if theirs is None else self._items < theirs

    def __le__(self, other: Any) -> Any:
        theirs = _compared(other)
        return NotImplemented if theirs is None else self._items <= theirs

    def __gt__(self, other: Any) -> Any:
        theirs = _compared(other)
        return NotImplemented if theirs is None else self._items > theirs

    def __ge__(self, other: Any) -> Any:
        theirs = _compared(other)
        return NotImplemented if theirs is None else self._items >= theirs

    @recursive_repr("Log([...])")
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"

    def __reduce__(self) -> Any:
        # Values last, so that a log may hold itself; the chain after them, since it covers them.
        own = (self._chain, self._covered, dict(getattr(self, "__dict__", {})))
        return _made, (type(self),), own, iter(self._items)

    def __setstate__(self, own: tuple[bytes, int, dict[str, Any]]) -> None:
        self._chain, self._covered, attributes = own
        self._floor = self._covered
        if attributes:
            vars(self).update(attributes)

    # -- changes -----------------------------------------------------------------------------------------

    def _of(self, values: Iterable[T]) -> Log[T]:
        made = _made(type(self))
        made.extend(values)
        return made

    def _touch(self, at: int) -> None:
        """Something at `at` or behind it is about to change, other than by an append."""
        if at >= self._floor:
            return
        for taken in list(self._open):
            if taken.length > at:
                taken.detach()
                self._open.remove(taken)
        self._low = min(self._low, at)
        if at < self._covered:
            self._chain, self._covered = _hash(self._chain + at.to_bytes(8, "little")), at
        self._floor = at

    def _replace(self, start: int, stop: int, values: list[T]) -> None:
        """Puts `values` in the place of those from `start` to `stop`."""
        self._touch(start)
        loose = self._loose
        if loose and loose[-1] >= start:
            first, behind = bisect_left(loose, start), bisect_left(loose, stop)
            moved = len(values) - (stop - start)
            loose[first:] = [*_loose_of(values, start), *(at + moved for at in loose[behind:])]
        else:
            loose += _loose_of(values, start)
        self._items[start:stop] = values


def only_in_handlers() -> None:
    """In this process a step that no handler makes is a mistake, and would not be stored."""
    _only_in_handlers.append(True)


def _loose_of(values: list[Any], start: int) -> list[int]:
    """The positions of those that may change, if the first one is at `start`."""
    if ATOMS.issuperset(map(type, values)):
        return []
    return [at for at, value in enumerate(values, start) if not is_immutable(value)]


def _from_end(index: int, length: int) -> int:
    return index + length if index < 0 else index


def _compared(other: object) -> list[Any] | None:
    """What a log is compared with; None if it is no list."""
    if isinstance(other, Log):
        return other._items
    return other if isinstance(other, list) else None


def _made(kind: type[Log[Any]]) -> Log[Any]:
    """An empty one, around any constructor of a subclass."""
    return kind.__new__(kind)


def _hash(content: bytes) -> bytes:
    digest: bytes = blake3(content).digest(16)
    return digest
