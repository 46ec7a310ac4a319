"""Classes by name: an image names them as ``module:qualname``; the program that loads it supplies the code.

Theory of operation. No image and no message holds code. A class is looked up in the program that resumes,
so a bug fixed in a method is fixed in restored objects too. ``__main__`` means the user's script, under
whatever name this process loaded it (a participant's own ``__main__`` is Cutline's). A class that moved or
was renamed is found when an alias stands under the old name. Its shape is versioned by the class itself:
``__cutline_version__`` (int, 0 when absent) is recorded, and where it differs at restore the class's
``migrate(state, from_version)`` gets the attributes as a dict and returns those of the new version.
"""

from __future__ import annotations

import copyreg
import gc
import importlib
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from cutline.errors import CannotRestore, ClassMissing, ClassNotAllowed

from .actor import underlying
from .allowing import check_found, check_name

__all__ = (
    "Classes",
    "attributes_of",
    "has_plain_state",
    "migrate_instance",
    "migrate_all",
    "name_of",
    "quicken",
    "set_attributes",
    "slot_names",
    "version_of",
)

# Names under which a process may have loaded the user's script, besides `__main__` itself.
MAIN_NAMES = ("__main__", "__mp_main__", "__cutline_main__")


def name_of(kind: type) -> str:
    """``module:qualname``, with `__main__` for the user's script whatever it is called here."""
    module = "__main__" if kind.__module__ in MAIN_NAMES else kind.__module__
    return f"{module}:{kind.__qualname__}"


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
        """The class or function of that name.

        Raises:
            ClassMissing: the module does not import, or has no such name.
            ClassNotAllowed: `allow=` was given and does not let it be named.
        """
        try:
            check_name("__main__" if module in MAIN_NAMES else module, qualname)
            place = self._main_with(qualname) if module in MAIN_NAMES else self._module(module)
            way = []
            for part in qualname.split("."):
                place = getattr(place, part)
                way.append(place)
            check_found("__main__" if module in MAIN_NAMES else module, qualname, way)
            # A script's name may stand for Ray's actor class over it.
            return place if isinstance(place, type) else underlying(place)
        except ClassNotAllowed:
            raise
        except Exception as error:
            raise ClassMissing(
                f"this program has no {module}:{qualname} ({type(error).__name__}: {error}); if it was "
                f"renamed or moved, keep an alias under the old name (`{qualname} = NewName` in {module})",
                class_name=f"{module}:{qualname}",
            ) from error

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


def migrate_instance(instance: object, found: int, *, participant: str, path: str) -> None:
    """Brings one object, restored with the attributes of version `found`, to its class's version.

    Raises:
        CannotRestore: the class has no `migrate`, or it raised.
    """
    kind = type(instance)
    wanted = version_of(kind)
    migrate = getattr(kind, "migrate", None)
    about = {"participant": participant, "path": path, "class_name": name_of(kind)}
    if migrate is None:
        raise CannotRestore(
            f"participant {participant!r}: {path} was saved by version {found} of {name_of(kind)} and this "
            f"program has version {wanted}; give the class a staticmethod migrate(state, from_version) that "
            f"returns the attributes of version {wanted}",
            found=found,
            wanted=wanted,
            **about,
        )
    held, slots = attributes_of(instance)
    state = {**held, **slots}
    try:
        migrated = migrate(state, found)
        set_attributes(instance, state if migrated is None else migrated)
    except Exception as error:
        raise CannotRestore(
            f"participant {participant!r}: {name_of(kind)}.migrate(state, {found}) failed for {path}: "
            f"{type(error).__name__}: {error}",
            found=found,
            wanted=wanted,
            **about,
        ) from error


def migrate_all(
    root: object, kinds: Iterable[type], versions: Mapping[str, int], *, participant: str, path: str
) -> None:
    """Migrates every object of these classes that `root` reaches, whose saved version differs.

    It runs when the whole graph stands, so `migrate` may follow references. Objects are collected first:
    what a migration makes anew is of the new version already.
    """
    outdated = {kind for kind in kinds if versions.get(name_of(kind), 0) != version_of(kind)}
    if not outdated:
        return
    seen: set[int] = {id(root)}
    found: list[object] = []
    work: list[object] = [root]
    while work:
        here = work.pop()
        if type(here) in outdated:
            found.append(here)
        for child in gc.get_referents(here):
            # Classes and modules lead out of the state, into the program.
            if id(child) not in seen and not isinstance(child, (type, types.ModuleType, types.FunctionType)):
                seen.add(id(child))
                work.append(child)
    for instance in found:
        version = versions.get(name_of(type(instance)), 0)
        migrate_instance(instance, version, participant=participant, path=path)
