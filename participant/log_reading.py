"""What only reads a Log, as a list is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, SupportsIndex, TypeVar

__all__ = ("LogReading",)

T = TypeVar("T")


class LogReading(Generic[T]):
    """The part of `cutline.participant.log.Log` that changes nothing."""

    __slots__ = ()
    _items: list[T]

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


def _compared(other: object) -> list[Any] | None:
    """What a log is compared with; None if it is no list."""
    if isinstance(other, LogReading):
        return other._items
    return other if isinstance(other, list) else None
