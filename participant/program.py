"""The user's program, shipped to where participants run: import path, arguments, and ``__main__``'s classes.

Classes of importable modules are found by name. Classes of the script itself (``__main__``, a notebook)
exist nowhere else, so the driver sends them, by value, once per spawn and resume; the participant's process
installs them in its own ``__main__``, and from then on they too are found by name. Nothing of this ever
enters an image: an image names classes, and the program that resumes supplies them. What the program says of
renamed ones goes along, since a participant does not import what says so before it needs it.
"""

from __future__ import annotations

import io
import os
import secrets
import sys
import types
from collections.abc import Mapping
from typing import Any

import cloudpickle

from cutline.storage.authentic import StoreKey
from cutline.storage.codec import digest_of

from .actor import underlying
from .renames import RENAMES
from .transient import Transient

__all__ = (
    "describe_program",
    "inherit",
    "install_program",
    "is_vouched",
    "new_program",
    "program_id",
    "take_main",
    "vouched",
)

_PURPOSE = "script"

_SKIPPED = ("__builtins__", "__annotations__", "__spec__", "__loader__", "__cached__")


# Which start of which program this process works for; images say by which they were written.
_ids: list[str] = []


def program_id() -> str:
    """Another one is another program, perhaps: what it wrote has to be compared with what is here."""
    return _ids[-1] if _ids else ""


def new_program() -> dict[str, Any]:
    """This process's program as a msgpack-able document; it starts a system."""
    _ids[:] = [secrets.token_hex(8)]
    return describe_program()


def describe_program() -> dict[str, Any]:
    """The same, of a program that has started one."""
    main = sys.modules["__main__"]
    return {
        "id": program_id(),
        "argv": list(sys.argv),
        "path": [entry or os.getcwd() for entry in sys.path],
        "cwd": os.getcwd(),
        "main": _pack_main(main),
        "renamed": dict(RENAMES.table),
    }


def _pack_main(main: types.ModuleType) -> bytes:
    # Ray's actor classes stay here; what travels is the class under each.
    found = {name: underlying(value) for name, value in vars(main).items() if name not in _SKIPPED}
    own = {
        name: value
        for name, value in found.items()
        if isinstance(value, (type, types.FunctionType)) and getattr(value, "__module__", None) == "__main__"
    }
    try:
        packed = _by_value(own)
    except Exception:
        # Something in the script cannot travel (a function that refers to the system itself, say). Whoever
        # needs it gets ClassMissing by name; everything else goes.
        packed = _by_value({name: value for name, value in own.items() if _travels(value)})
    return packed


class _ScriptPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Packs the script's classes, their transients included: those are no part of a state, but of a class."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Transient):
            return _transient_again, (obj.factory, obj._name)
        return super().reducer_override(obj)


def _transient_again(factory: Any, name: str) -> Transient[Any]:
    made = Transient(factory)
    made._name = name
    return made


def _by_value(value: Any) -> bytes:
    file = io.BytesIO()
    _ScriptPickler(file).dump(value)
    return file.getvalue()


def _travels(value: Any) -> bool:
    try:
        _by_value(value)
    except Exception:
        return False
    return True


def inherit(program: dict[str, Any], path: list[str], renamed: Mapping[str, str], its_id: str) -> None:
    """Another program takes up a system: its modules are found too, its script's classes come beside."""
    program["id"] = its_id
    program["path"] = [*program["path"], *(entry for entry in path if entry not in program["path"])]
    program["renamed"] = {**program.get("renamed", {}), **renamed}
    program["inherited"] = True


def take_main(program: dict[str, Any], main: bytes) -> None:
    """The classes of the driver's script, as they are now; those of another program before it are kept."""
    if program.pop("inherited", False) and main != program["main"]:
        program["before"] = [*program.get("before", ()), program["main"]]
    program["main"] = main


def vouched(main: bytes, key: StoreKey) -> bytes:
    """A MAC over the script's classes."""
    return key.mac(_PURPOSE, digest_of(main))


def is_vouched(main: bytes, mac: Any, key: StoreKey | None) -> bool:
    """Whether a program that had the key packed the script's classes."""
    return key is not None and type(mac) is bytes and key.vouches(_PURPOSE, digest_of(main), mac)


def install_program(doc: Mapping[str, Any]) -> None:
    """Makes the program's classes findable in this process.

    Must run before anything of the user's is unpickled. `doc` comes from this system's own driver, over an
    authenticated connection; loading it runs the user's code, which is the point.
    """
    for entry in doc["path"]:
        if entry not in sys.path:
            sys.path.append(entry)
    _ids[:] = [doc.get("id", "")]
    RENAMES.load(doc.get("renamed", {}))
    # Where names of several programs meet, the newest one's classes count.
    for main in (*doc.get("before", ()), doc["main"]):
        if main:
            vars(sys.modules["__main__"]).update(cloudpickle.loads(main))
