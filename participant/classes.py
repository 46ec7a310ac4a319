"""Classes by name: an image names them as ``module:qualname``; the program that loads it supplies the code.

Theory of operation. No image and no message holds code. A class is looked up in the program that resumes,
so a bug fixed in a method is fixed in restored objects too. ``__main__`` means the user's script, under
whatever name this process loaded it (a participant's own ``__main__`` is Cutline's). A class that moved or
was renamed is found when the program says so (`cutline.participant.renames`); what another class stands under
the name now is not taken for it. Its shape is versioned by the class itself, see `participant.migrating`.
"""

from __future__ import annotations

import copyreg
import importlib
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cutline.errors import ClassMissing, ClassNotAllowed

from .actor import underlying
from .allowing import check_found, check_name
from .renames import MAIN_NAMES, RENAMES, name_of, refuse_living
from .saying import said

__all__ = (
    "MAIN_NAMES",
    "Classes",
    "attributes_of",
    "has_plain_state",
    "homeless",
    "name_of",
    "quicken",
    "set_attributes",
    "slot_names",
    "version_of",
)


def version_of(kind: type) -> int:
    """The class's ``__cutline_version__``; 0 when it has none."""
    return int(getattr(kind, "__cutline_version__", 0))


class Classes:
    """Finds what an image names, in this program.

    `main` stands for ``__main__``: the module that this process loaded the user's script as; without it the
    usual names are tried.
    """

    def __init__(self, main: types.ModuleType | None = None) -> None:
        self.main = main

    def find(self, module: str, qualname: str) -> Any:
        """The class or function that had that name.

        Raises:
            ClassMissing: the module does not import, or has no such name, or something else is called so now.
            ClassNotAllowed: `allow=` was given and does not let it be named.
            Misuse: it was renamed, and is still there.
        """
        if module in MAIN_NAMES:
            module = "__main__"
        old = name = f"{module}:{qualname}"
        if RENAMES.table and (name := RENAMES.resolve(old)) != old:
            refuse_living(old, name)
            module, _, qualname = name.partition(":")
        try:
            check_name(module, qualname)
            place = self._main_with(qualname) if module == "__main__" else self._module(module)
            way = []
            for part in qualname.split("."):
                place = getattr(place, part)
                way.append(place)
            check_found(module, qualname, way)
        except ClassNotAllowed:
            raise
        except Exception as error:
            raise _missing(old, name, said(error)) from error
        # A script's name may stand for Ray's actor class over it.
        found = place if isinstance(place, type) else underlying(place)
        if isinstance(found, (type, types.FunctionType)) and (called := name_of(found)) != name:
            if not _moved_in_its_library(name, called) and called != self._as_module(module, qualname):
                raise _missing(old, name, f"what is called so is {called}")
        return found

    def _as_module(self, module: str, qualname: str) -> str | None:
        """How the script's own is called where a module stands for the script."""
        return None if module != "__main__" or self.main is None else f"{self.main.__name__}:{qualname}"

    def find_named(self, name: str) -> Any:
        """The same for ``module:qualname``."""
        module, _, qualname = name.partition(":")
        return self.find(module, qualname)

    def _module(self, module: str) -> Any:
        return sys.modules.get(module) or importlib.import_module(module)

    def _main_with(self, qualname: str) -> Any:
        if self.main is not None:
            return self.main
        first = qualname.partition(".")[0]
        known = [sys.modules[name] for name in MAIN_NAMES if name in sys.modules]
        return next((module for module in known if hasattr(module, first)), known[0])


def _missing(old: str, name: str, reason: str) -> ClassMissing:
    so = "" if old == name else f", which renamed(...) says {old} is"
    return ClassMissing(
        f"this program has no {name}{so} ({reason}); if it was renamed or moved, say so beside the new one: "
        f"cutline.renamed({old!r}, NewName)",
        class_name=old,
    )


def _moved_in_its_library(name: str, called: str) -> bool:
    """Whether Python, or an installed package, has moved something and left its old place for pickles."""
    (old, old_name), (new, new_name) = name.split(":"), called.split(":")
    old_top, new_top = old.partition(".")[0], new.partition(".")[0]
    if old_name != new_name:
        return False
    if old_top in sys.stdlib_module_names:
        # Parts of it are called as what they are written in: `_io`, `pathlib._local`.
        return new_top in sys.stdlib_module_names
    places = getattr(sys.modules.get(old_top), "__path__", ()) if old_top == new_top else ()
    return any(part in ("site-packages", "dist-packages") for place in places for part in Path(place).parts)


def has_plain_state(kind: type) -> bool:
    """Whether pickle would take an instance's attributes as they are: nothing overrides how it is saved.

    Such an instance can be saved attribute by attribute; all others are saved whole, by their own methods.
    """
    if any(getattr(kind, name) is not getattr(object, name) for name in ("__reduce_ex__", "__reduce__")):
        return False
    if kind in copyreg.dispatch_table or issubclass(kind, (list, dict, type)):
        return False
    if any(hasattr(kind, name) for name in ("__setstate__", "__getnewargs__", "__getnewargs_ex__")):
        return False
    # From 3.11 on every object has a __getstate__.
    return getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)


def slot_names(kind: type) -> list[str]:
    """Names of the slots of all classes of `kind`, mangled as Python stores them."""
    return [str(name) for name in copyreg._slotnames(kind)]  # type: ignore[attr-defined]


def attributes_of(instance: object) -> tuple[dict[Any, Any], dict[str, Any]]:
    """What `__dict__` holds, and the slots that are set."""
    missing = object()
    slots = {name: getattr(instance, name, missing) for name in slot_names(type(instance))}
    held = getattr(instance, "__dict__", {})
    return held, {name: value for name, value in slots.items() if value is not missing}


def quicken(instance: object) -> None:
    """Keeps the attributes of `instance` as fast as they were before a capture asked for its `__dict__`.

    From then on they lie in a dictionary that shares its keys with those of other instances, a form for
    which CPython 3.11 and later have no quick path: a handler of a few attribute accesses takes almost
    twice as long. A key that comes and goes gives the dictionary a table of its own, in the same order.
    """
    held = getattr(instance, "__dict__", None)
    if type(held) is dict:
        held["__cutline_passing__"] = None
        held.popitem()


def homeless(instance: object, names: Iterable[str]) -> list[str]:
    """Those of `names` that the instance has no place for: neither a slot nor a ``__dict__``."""
    if hasattr(instance, "__dict__"):
        return []
    slots = set(slot_names(type(instance)))
    return [name for name in names if name not in slots]


def set_attributes(instance: object, attributes: Mapping[Any, Any]) -> None:
    """Gives `instance` exactly these attributes, around any `__setattr__` of its class."""
    slots = set(slot_names(type(instance)))
    held = getattr(instance, "__dict__", None)
    if held is not None:
        held.clear()
    for name, value in attributes.items():
        if name in slots:
            object.__setattr__(instance, name, value)
        elif held is None:
            raise AttributeError(f"{name_of(type(instance))} has neither a slot {name!r} nor a __dict__")
        else:
            held[sys.intern(name) if type(name) is str else name] = value
    for name in slots.difference(attributes):
        if hasattr(instance, name):
            object.__delattr__(instance, name)
