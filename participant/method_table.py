"""Which methods a participant's class has, so that a typo fails at the caller."""

from __future__ import annotations

import inspect
from typing import Any

from cutline.errors import CutlineError, Misuse

from .actor import ClassOnly
from .classes import Classes

__all__ = ("MethodTable", "refuse_generator")


class MethodTable(Classes):
    """`Classes` that also knows the public methods of a class, for handles."""

    def __init__(self) -> None:
        super().__init__()
        self._methods: dict[str, frozenset[str] | None] = {}

    def methods_of(self, class_name: str) -> frozenset[str] | None:
        """Names of everything callable on the class; None if the class is not at hand here."""
        if class_name not in self._methods:
            try:
                kind = self.find_named(class_name)
            except CutlineError:
                self._methods[class_name] = None
            else:
                names = (name for name in dir(kind) if not name.startswith("__"))
                self._methods[class_name] = frozenset(name for name in names if _is_method(kind, name))
        return self._methods[class_name]


def _is_method(kind: type, name: str) -> bool:
    # The class's own spelling, `Editor.remote`, is nothing that an instance has.
    static = inspect.getattr_static(kind, name, None)
    return not isinstance(static, ClassOnly) and callable(getattr(kind, name, None))


def refuse_generator(bound: Any, name: str, method: str) -> None:
    """Raises Misuse for a method of participant `name` of which a call would run nothing."""
    if inspect.isgeneratorfunction(bound) or inspect.isasyncgenfunction(bound):
        raise Misuse(
            f"{name}.{method} is a generator: a call runs nothing of it, and its values would go nowhere. "
            "Return a list, or tell the values to whoever wants them.",
            participant=name,
            method=method,
        )
