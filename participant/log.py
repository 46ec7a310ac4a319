"""`cutline.Log`: a list whose captures cost what was appended, and whose steps are durable when they return.

Theory of operation. A Log holds a plain list and is none: whoever could reach the list around the Log's
methods (`list.append(log, x)`, C code that takes any list) would change it unseen. Appending leaves what
was there as it was, so a change (`cutline.participant.container`) is the tail: everything from the
*low-water mark* on, the lowest position that anything else than an append touched since the last capture.
A long tail is not copied: who is about to change something in it copies it first, for all changes that
still need it.

Values are judged when they are set. `_loose` are the positions of those that may change without the Log
hearing of it: a dict that somebody else holds too. In a change a mark stands for them (`UNSEEN`), and each
capture pickles them with the attributes. Containers among the values are there too.

One number, `_floor`, tells whether a change concerns anybody: below it lies what a change that was given
out, the low-water mark or the chain covers.

The *chain* is a digest of all that the Log holds and of how it came to that, for `step`
(`cutline.participant.steps`). It is brought up to date when it is asked for. Changing what it covers gives
it another root, which follows from the one before and the position.
"""

from __future__ import annotations

import copy
import operator
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, MutableSequence
from reprlib import recursive_repr
from typing import Any, NoReturn, SupportsIndex, TypeVar, final, overload
from weakref import WeakSet

from blake3 import blake3

from cutline.errors import CannotRestore, OutsideHandler

from .container import CHUNK, Container
from .handle import own_port
from .immutable import ATOMS, is_immutable
from .log_change import LogChange
from .log_reading import LogReading
from .rebuild import UNSEEN

__all__ = ("Log", "only_in_handlers")

T = TypeVar("T")
R = TypeVar("R")
_ROOT = b"\0" * 16
# Of these types every value may change; no need to look.
_BOXES = frozenset((dict, list, set))
_only_in_handlers: list[bool] = []


@final
class Log(LogReading[T], Container, MutableSequence[T]):
    """A list for histories: all that a list does, at the price of its own class.

    It compares equal to lists; slices, sums and copies of it are Logs. It is no `list`: use ``list(log)``
    where one is demanded (json, heapq).
    """

    __slots__ = (
        *("_items", "_loose", "_has_inner", "_floor", "_low", "_length"),
        *("_chain", "_covered", "_is_chained", "_open", "__weakref__"),
    )
    kind = "log"
    _items: list[T]
    # Positions of values that may change, and of containers; whether there are any of the latter.
    _loose: list[int]
    _has_inner: bool
    _floor: int
    _low: int
    # At the last capture.
    _length: int
    _chain: bytes
    _covered: int
    # Whether the chain was brought up to date since the last capture.
    _is_chained: bool
    # Changes that look into the list.
    _open: WeakSet[LogChange]

    __hash__ = None  # type: ignore[assignment]

    def __init_subclass__(cls, **named: Any) -> NoReturn:
        raise TypeError("cutline.Log has no subclasses, whose methods could go round it: hold one in a class")

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Log[T]:
        log = super().__new__(cls)
        log._journal = None
        log._items, log._loose, log._has_inner = [], [], False
        log._floor = log._low = log._length = log._covered = 0
        log._chain, log._is_chained = _ROOT, False
        log._open = WeakSet()
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
        the function looks at beside the log should be among its arguments; the log itself may be. The object
        of a bound method is none of them: say which model is asked by an argument too. If the function
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
        if self._covered < len(self._items):
            chain = self._chain
            for value in self._items[self._covered :]:
                chain = _hash(chain + digest(value))
            self._chain, self._covered, self._is_chained = chain, len(self._items), True
            self._floor = self._covered
        return self._chain

    # -- what a list can do ------------------------------------------------------------------------------

    def append(self, value: T) -> None:
        """Adds one value at the end."""
        kind: type = type(value)
        if kind in ATOMS:
            self._items.append(value)
        elif kind in _BOXES:
            try:
                self._items.append(value)
                self._loose.append(len(self._items) - 1)
            except BaseException:
                self._judge_again()
                raise
        else:
            self.extend((value,))

    def extend(self, values: Iterable[T]) -> None:
        """Adds values at the end; as many as there were, if their iterator raises."""
        fresh: list[T] = []
        try:
            fresh.extend(values)
        finally:
            start = len(self._items)
            try:
                self._items.extend(fresh)
                self._judge(fresh, start)
            except BaseException:
                self._judge_again()
                raise

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
        try:
            self._items.reverse()
        finally:
            self._judge_again()

    def sort(self, *, key: Callable[[T], Any] | None = None, reverse: bool = False) -> None:
        """Sorts in place; equal ones keep their order."""
        self._touch(0)
        try:
            self._items.sort(key=key, reverse=reverse)
        finally:
            self._judge_again()

    def copy(self) -> Log[T]:
        """Another log with the same values."""
        return Log(self._items)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Log[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | Log[T]:
        found: Any = self._items[index]
        return Log(found) if type(index) is slice else found

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
        try:
            if values is None:
                del self._items[index]
            else:
                self._items[index] = values
        finally:
            self._judge_again()

    def __add__(self, other: Any) -> Log[T]:
        if not isinstance(other, (list, Log)):
            return NotImplemented
        return Log([*self._items, *other])

    def __radd__(self, other: Any) -> Log[T]:
        if not isinstance(other, list):
            return NotImplemented
        return Log([*other, *self._items])

    def __iadd__(self, values: Iterable[T]) -> Log[T]:  # type: ignore[misc]
        self.extend(values)
        return self

    def __mul__(self, times: SupportsIndex) -> Log[T]:
        if not hasattr(type(times), "__index__"):
            return NotImplemented
        return Log(self._items * times)

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex) -> Log[T]:
        if not hasattr(type(times), "__index__"):
            return NotImplemented
        if operator.index(times) <= 0:
            self.clear()
        else:
            self.extend(self._items * (operator.index(times) - 1))
        return self

    @recursive_repr("Log([...])")
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Log[T]:
        made: Log[T] = Log()
        memo[id(self)] = made
        made.extend(copy.deepcopy(value, memo) for value in self._items)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and messages: a plain value. Images have a way of their own."""
        return Log, (), None, iter(self._items)

    # -- for captures and restores -----------------------------------------------------------------------

    def _change(self) -> LogChange:
        length = len(self._items)
        cut = self._low < self._length or self._is_chained
        return self._changed(self._low, length, cut)

    def _changed(self, kept: int, length: int, cut: bool) -> LogChange:
        chain, count = (self._chain, self._covered), length - kept
        if count <= CHUNK:
            return LogChange(kept, count, cut, chain, self._noted(kept, length))
        change = LogChange(kept, count, cut, chain, None, self._noted)
        self._open.add(change)
        self._floor = length
        return change

    def _noted(self, start: int, stop: int) -> list[Any]:
        """Values as a change has them."""
        values: list[Any] = self._items[start:stop]
        loose = self._loose
        for place in range(bisect_left(loose, start), bisect_left(loose, stop)):
            at = loose[place] - start
            if not isinstance(values[at], Container):
                values[at] = UNSEEN
        return values

    def _turn(self) -> None:
        self._low = self._length = self._floor = len(self._items)
        self._is_chained = False

    def _everything(self) -> LogChange:
        return self._changed(0, len(self._items), True)

    def _unseen(self) -> list[int]:
        """The positions of values that may change without our hearing of it."""
        if not self._has_inner:
            return self._loose
        items = self._items
        return [at for at in self._loose if not isinstance(items[at], Container)]

    def _checked_state(self) -> Any:
        items = self._items
        return [items[at] for at in self._unseen()] or None

    def _checked_count(self) -> int:
        return len(self._unseen())

    def _checked_places(self) -> Any:
        return self._loose[:]

    def _nested(self) -> Collection[Container]:
        if not self._has_inner:
            return ()
        return [value for at in self._loose if isinstance(value := self._items[at], Container)]

    def _find_nested(self) -> None:
        self._has_inner = any(isinstance(self._items[at], Container) for at in self._loose)

    @classmethod
    def _blank(cls) -> Log[Any]:
        return Log()

    def _replay(self, documents: Iterator[Any]) -> None:
        items: list[Any] = self._items
        kept, self._chain, self._covered, count = next(documents)
        if kept > len(items):
            raise CannotRestore(f"a Log of the image keeps {kept} of {len(items)} values")
        del items[kept:]
        del self._loose[bisect_left(self._loose, kept) :]
        for _ in range(count):
            start, values = len(items), next(documents)
            items += values
            if not ATOMS.issuperset(map(type, values)):
                inner = {at for at, value in enumerate(values, start) if isinstance(value, Container)}
                self._has_inner = self._has_inner or bool(inner)
                self._loose += [
                    at for at, value in enumerate(values, start) if value is UNSEEN or at in inner
                ]
        self._turn()

    def _fill(self, state: Any) -> None:
        items: list[Any] = self._items
        places = [at for at in self._loose if items[at] is UNSEEN]
        if len(places) != len(state):
            raise CannotRestore(f"a Log of the image has {len(places)} places for {len(state)} values")
        for at, value in zip(places, state, strict=True):
            items[at] = value

    # -- changes -----------------------------------------------------------------------------------------

    def _touch(self, at: int) -> None:
        """Something at `at` or behind it is about to change, other than by an append."""
        if at >= self._floor:
            return
        for change in list(self._open):
            if change.kept + change.count > at:
                change.detach()
                self._open.discard(change)
        self._low = min(self._low, at)
        if at < self._covered:
            self._chain, self._covered = _hash(self._chain + at.to_bytes(8, "little")), at
        self._floor = at

    def _replace(self, start: int, stop: int, values: list[T]) -> None:
        """Puts `values` in the place of those from `start` to `stop`."""
        self._touch(start)
        loose = self._loose
        try:
            self._items[start:stop] = values
            first, behind = bisect_left(loose, start), bisect_left(loose, stop)
            later = loose[behind:]
            if len(values) != stop - start:
                later = [at + len(values) - (stop - start) for at in later]
            del loose[first:]
            self._judge(values, start)
            loose += later
        except BaseException:
            self._judge_again()
            raise

    def _judge(self, values: Iterable[Any], start: int) -> None:
        """Notes which of these may change; the first one is at `start`."""
        if ATOMS.issuperset(map(type, values)):
            return
        for at, value in enumerate(values, start):
            if isinstance(value, Container):
                self._has_inner = True
                self._loose.append(at)
            elif not is_immutable(value):
                self._loose.append(at)

    def _judge_again(self) -> bool:
        """Also after all may stand elsewhere, or something was interrupted half-way."""
        before, self._loose = self._loose, []
        self._judge(self._items, 0)
        return self._loose != before


def only_in_handlers() -> None:
    """In this process a step that no handler makes is a mistake, and would not be stored."""
    _only_in_handlers.append(True)


def _from_end(index: int, length: int) -> int:
    return index + length if index < 0 else index


def _hash(content: bytes) -> bytes:
    digest: bytes = blake3(content).digest(16)
    return digest
