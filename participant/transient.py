"""Attributes that belong to a process and not to the state: clients, locks, pools, open files.

Theory of operation. ``llm = cutline.transient(AsyncOpenAI)`` in a class body makes a descriptor. The value
is made by calling the factory at the first access in each process and kept beside the instance, not in it:
neither an image nor a copy nor a plain pickle ever sees it, and a restored, copied or forked instance makes
its own. Values are kept per identity, because instances need not be hashable, and go with their instance.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ("transient", "Transient")

T = TypeVar("T")


class Transient(Generic[T]):
    """The descriptor that `transient` makes."""

    def __init__(self, factory: Callable[[], T]) -> None:
        self.factory = factory
        self._name = "transient"
        self._made: dict[int, tuple[weakref.ref[Any], int, T]] = {}
        self._lock = threading.RLock()

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Transient[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Transient[T] | T:
        if instance is None:
            return self
        held = self._made.get(id(instance))
        if held is not None and held[1] == os.getpid():
            return held[2]
        with self._lock:
            held = self._made.get(id(instance))
            if held is None or held[1] != os.getpid():
                held = self._keep(instance, self.factory())
        return held[2]

    def __set__(self, instance: object, value: T) -> None:
        # A dataclass hands the descriptor itself over as the field's default.
        if value is not self:
            with self._lock:
                self._keep(instance, value)

    def __delete__(self, instance: object) -> None:
        with self._lock:
            self._made.pop(id(instance), None)

    def _keep(self, instance: object, value: T) -> tuple[weakref.ref[Any], int, T]:
        key = id(instance)
        made = self._made
        try:
            gone = weakref.ref(instance, lambda _: made.pop(key, None))
        except TypeError as error:
            raise TypeError(
                f"{type(instance).__qualname__}.{self._name} is transient and its class has no __weakref__: "
                "add '__weakref__' to its __slots__"
            ) from error
        held = made[key] = (gone, os.getpid(), value)
        return held

    def __reduce__(self) -> Any:
        raise TypeError(f"the transient {self._name!r} is a part of a class, not of a state")


def transient(factory: Callable[[], T]) -> Transient[T]:
    """An attribute made by `factory()` once per instance and process, and never saved."""
    return Transient(factory)
