"""What things are called in images, and what those that were renamed or moved are called now.

Theory of operation. Images and messages name classes, functions, methods and enum members, and hold none. A
program that calls something by another name than the one that wrote an image says so: ``renamed(old, new)``
is a row of a table of names, one a process. The table goes with the program to its participants
(`cutline.participant.program`), because a participant imports only what its state names, and that may be the
very name which is gone. Rows may lead to each other; they never lead in a circle, and what a row's old name
stood for must be gone: images of today that name it would be read as if they meant the new one.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from cutline.errors import Misuse

from .actor import underlying

__all__ = ("MAIN_NAMES", "RENAMES", "Renames", "name_of", "own_name", "refuse_living", "renamed")

# Names under which a process may have loaded the user's script, besides `__main__` itself.
MAIN_NAMES = ("__main__", "__mp_main__", "__cutline_main__")


def name_of(kind: type | types.FunctionType) -> str:
    """``module:qualname``, with `__main__` for the user's script whatever it is called here."""
    module = "__main__" if kind.__module__ in MAIN_NAMES else kind.__module__
    return f"{module}:{kind.__qualname__}"


def own_name(thing: Any) -> str | None:
    """What a class, a function, a method or an enum member calls itself; None for all else."""
    thing = underlying(thing)
    if isinstance(thing, enum.Enum):
        return f"{name_of(type(thing))}.{thing.name}"
    if isinstance(thing, (staticmethod, classmethod, types.MethodType)):
        thing = thing.__func__
    return name_of(thing) if isinstance(thing, (type, types.FunctionType)) else None


class Renames:
    """A table of old names and new ones."""

    def __init__(self) -> None:
        self.table: dict[str, str] = {}

    def add(self, old: str, new: str) -> None:
        """One more row; the same one again changes nothing.

        Raises:
            Misuse: the row contradicts another one.
        """
        known = self.table.get(old, new)
        if known != new:
            raise Misuse(f"renamed({old!r}, ...): it is {known} already, and now it would be {new}: say one")
        if old not in self.table:
            self.table[old] = new
            try:
                self.resolve(old)
            except Misuse:
                del self.table[old]
                raise

    def load(self, rows: Mapping[str, str]) -> None:
        """The rows of another process of the same program."""
        for old, new in rows.items():
            self.add(old, new)

    def resolve(self, name: str) -> str:
        """What `name` is called today; itself if nothing else is said. What is inside goes along."""
        if not self.table:
            return name
        # A row may make another one fit, but no row fits twice.
        for _ in range(len(self.table) + 1):
            step = self._step(name)
            if step is None:
                return name
            name = step
        raise Misuse(f"the calls of renamed(...) lead {name!r} in a circle: name what is there today")

    def _step(self, name: str) -> str | None:
        for head, rest in _levels(name):
            new = self.table.get(head)
            if new is not None:
                return new + rest
        return None

    def former(self, name: str) -> list[str]:
        """`name`, and all that was called otherwise and is called so now."""
        if not self.table:
            return [name]
        found = [name]
        # What lies inside of something that was renamed had other names too, at each level.
        for each in found:
            for head, rest in _levels(each):
                for old, new in self.table.items():
                    if new == head and old + rest not in found:
                        found.append(old + rest)
        return found

    def inside(self, kind: type, name: str) -> str | None:
        """What a class calls its method or member today that was called `name`; None if nobody says."""
        for each in kind.__mro__ if self.table else ():
            for former in self.former(name_of(each)):
                new = self.table.get(f"{former}.{name}")
                if new is not None:
                    return self.resolve(new).rpartition(".")[2]
        return None

    def former_methods(self, method: str) -> Iterator[str]:
        """What methods that are called `method` today were called."""
        for old in self.table:
            if "." in old.partition(":")[2] and self.resolve(old).rpartition(".")[2] == method:
                yield old.rpartition(".")[2]


def _levels(name: str) -> Iterator[tuple[str, str]]:
    """``m:A.b.c`` as (``m:A.b.c``, ""), (``m:A.b``, ".c"), (``m:A``, ".b.c")."""
    module, _, qualname = name.partition(":")
    parts = qualname.split(".")
    for count in range(len(parts), 0, -1):
        yield f"{module}:{'.'.join(parts[:count])}", "".join(f".{part}" for part in parts[count:])


RENAMES = Renames()


def renamed(old: str, new: Any) -> None:
    """Says that what a checkpoint calls `old` is `new` in this program.

    For classes that were renamed or moved (participants', those of values in state and messages, enums),
    functions that state names, methods with messages, continuations or suspended calls on their way, and
    members of enums. Call it when the module of `new` is imported, before `cutline.start`::

        cutline.renamed("shop.orders:Order", Purchase)                  # the class, and all that is inside
        cutline.renamed("shop.orders:Order.cancel", Purchase.withdraw)  # a method
        cutline.renamed("shop.orders:Color.RED", Color.CRIMSON)         # a member

    Args:
        old: ``module:qualname``; ``__main__`` is the script.
        new: the thing itself, or such a name, which may have been renamed in turn.

    Raises:
        Misuse: no such name; what is called `old` is still there; `old` was said to be something else.
    """
    if not isinstance(old, str):
        raise Misuse(f"renamed({old!r}, ...): the old name is a text, 'module:qualname'")
    target = new if isinstance(new, str) else own_name(new)
    if target is None:
        raise Misuse(
            f"renamed({old!r}, {new!r}): the new one is a class, a function, a method, a member of an enum, "
            "or the name of one, 'module:qualname'"
        )
    if "<" in target:
        raise Misuse(f"renamed({old!r}, ...): {target} is local, and nothing finds it by name")
    former, target = _spelled(old), _spelled(target)
    refuse_living(former, target)
    RENAMES.add(former, target)


def _spelled(name: str) -> str:
    module, colon, qualname = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *qualname.split("."))):
        raise Misuse(f"renamed(...): {name!r} is no name: write 'module:qualname', like 'shop.orders:Order'")
    return f"{'__main__' if module in MAIN_NAMES else module}:{qualname}"


def refuse_living(old: str, new: str) -> None:
    """What was renamed must be gone: as far as modules are loaded, nothing may call itself `old`.

    Raises:
        Misuse: something does.
    """
    module, _, qualname = old.partition(":")
    loaded = MAIN_NAMES if module == "__main__" else (module,)
    for place in (sys.modules[name] for name in loaded if name in sys.modules):
        found: Any = place
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if found is not None and own_name(found) == old:
            raise Misuse(
                f"renamed({old!r}, ...): {old} is still there, and images of it would be taken for {new}; "
                "remove it, or leave it as another name of the new one"
            )
