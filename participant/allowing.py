"""Which classes and functions a pickle may name, where `cutline.start(allow=[...])` says so.

Theory of operation. Every image and every message of this process is loaded through `Classes.find`, which
asks here: before a module is imported, because importing runs its code, and again with what was found,
because a name may stand for something of another module. An entry is a dotted name: it allows what has that
name and all below it: ``myapp`` and ``myapp.*`` are the package, ``myapp.Order`` one class, ``__main__`` is
the script. What can be made to run anything (``os``, ``subprocess``, ``builtins.eval``, ``functools.partial``
and the like) is allowed by its own full name alone. Plain containers, dates, numbers and what Cutline itself
stores are always allowed.
"""

from __future__ import annotations

import builtins
import contextlib
import threading
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cutline.errors import ClassNotAllowed, Misuse

__all__ = (
    "allowing_only",
    "check_allow",
    "check_found",
    "check_name",
    "is_restricted",
    "lift",
    "restrict",
)

# Modules with functions that run what they are given, read or write anything, or reach everything.
_DANGEROUS = frozenset(
    "__builtin__ builtins os posix nt subprocess sys importlib imp runpy pty shutil socket _socket"
    " pickle _pickle marshal shelve code codeop ctypes _ctypes multiprocessing threading _thread"
    " signal webbrowser operator _operator functools _functools types inspect gc io _io tempfile"
    " asyncio cloudpickle dill joblib timeit cProfile profile pdb bdb trace doctest zipimport zipapp"
    " site ensurepip pip venv atexit distutils setuptools pkgutil pydoc linecache logging concurrent"
    " platform http urllib ftplib smtplib xmlrpc copyreg codecs _codecs commands sysconfig unittest"
    " pytest".split()
)
_PLAIN = frozenset(
    "builtins.object builtins.int builtins.float builtins.complex builtins.bool builtins.str"
    " builtins.bytes builtins.bytearray builtins.list builtins.tuple builtins.dict builtins.set"
    " builtins.frozenset builtins.range builtins.slice builtins.Ellipsis builtins.NotImplemented"
    " collections.OrderedDict collections.deque collections.defaultdict collections.Counter"
    " datetime.datetime datetime.date datetime.time datetime.timedelta datetime.timezone"
    " decimal.Decimal fractions.Fraction uuid.UUID copyreg._reconstructor copyreg.__newobj__"
    " copyreg.__newobj_ex__ _codecs.encode pathlib.PurePosixPath pathlib.PosixPath"
    " pathlib.PureWindowsPath pathlib.WindowsPath".split()
)
_OWN = (
    *("cutline.errors", "cutline.participant.driver.DriverState"),
    *("cutline.participant.map.Map", "cutline.participant.log.Log"),
)

# By system: what each allows; None for one that allows everything.
_systems: dict[str, tuple[str, ...] | None] = {}
# What a thread allows for itself alone.
_thread = threading.local()


def check_allow(allow: Iterable[str] | None) -> list[str] | None:
    """The entries of `allow`. Raises Misuse for what is no list of dotted names."""
    if allow is None:
        return None
    if isinstance(allow, str):
        raise Misuse(f"allow is a list of names: write allow=[{allow!r}]")
    entries = list(allow)
    for entry in entries:
        name = entry.removesuffix(".*") if isinstance(entry, str) else entry
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise Misuse(f"allow={entry!r}: write a dotted name, like 'myapp', 'myapp.*' or 'myapp.Order'")
    return [entry.removesuffix(".*") for entry in entries]


def restrict(system: str, allow: Sequence[str] | None) -> None:
    """From now on, for what a system's pickles name in this process.

    Where several systems are in one process, what any of them allows counts for all.
    """
    _systems[system] = None if allow is None else tuple(allow)


@contextlib.contextmanager
def allowing_only(allow: Sequence[str] | None) -> Iterator[None]:
    """What this thread loads meanwhile may name this alone, whatever systems are in the process; None: as
    they allow."""
    before = getattr(_thread, "allow", None)
    _thread.allow = before if allow is None else tuple(allow)
    try:
        yield
    finally:
        _thread.allow = before


def lift(system: str) -> None:
    """That system is gone."""
    _systems.pop(system, None)


def is_restricted() -> bool:
    return getattr(_thread, "allow", None) is not None or (bool(_systems) and None not in _systems.values())


def _entries() -> list[str]:
    own = getattr(_thread, "allow", None)
    return [entry for allow in ([own] if own is not None else _systems.values()) for entry in allow or ()]


def check_name(module: str, qualname: str) -> None:
    """Raises ClassNotAllowed; asked before the module is imported."""
    if is_restricted() and not _may(f"{module}.{qualname}"):
        raise _refused(module, qualname)


def check_found(module: str, qualname: str, way: Sequence[Any]) -> None:
    """The same for what was found; `way` is what the parts of `qualname` led to, the last one included."""
    if not is_restricted() or _is_named(f"{module}.{qualname}"):
        return
    found = way[-1]
    if any(isinstance(part, types.ModuleType) for part in way) or not callable(found):
        raise _refused(module, qualname)
    home = getattr(found, "__module__", None) or "builtins"
    if not _may(f"{home}.{getattr(found, '__qualname__', '')}"):
        raise _refused(module, qualname, f", which is {home}.{getattr(found, '__qualname__', '?')}")


def _is_named(name: str) -> bool:
    return name in _entries()


def _may(name: str) -> bool:
    if name in _PLAIN or _is_named(name) or any(_is_below(name, own) for own in _OWN):
        return True
    module, _, rest = name.rpartition(".")
    if module == "builtins" and _is_exception(rest):
        return True
    if name.partition(".")[0] in _DANGEROUS:
        return False
    return any(_is_below(name, entry) for entry in _entries())


def _is_exception(name: str) -> bool:
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)


def _is_below(name: str, entry: str) -> bool:
    return name == entry or name.startswith(f"{entry}.")


def _refused(module: str, qualname: str, more: str = "") -> ClassNotAllowed:
    return ClassNotAllowed(
        f"{module}:{qualname}{more} is not among what allow= lets stored states and messages name; if it is"
        f" part of the program, add {f'{module}.{qualname}'!r}, or its package",
        class_name=f"{module}:{qualname}",
    )
