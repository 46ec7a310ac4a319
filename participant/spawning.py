"""What a spawn is made of, whoever asks for it: the driver, or a handler.

A handler's spawn is a message: it leaves when the handler's step is over, is in the outbox (and so in every
cut) until the newborn may be used, and is known by the spawner and a number of its own. So a handler that is
run again after a rollback spawns once in the history that remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cutline.errors import Misuse
from cutline.storage import blobs

from .actor import Creator, options_of, wrap
from .classes import name_of
from .handle import Handle, current_port
from .messages import pack_arguments
from .ray_options import encode_options, refuse_marked_methods

__all__ = ("check_name", "packer", "record_of", "spawn")

_OURS = ("name", "namespace", "lifetime", "get_if_exists")


def spawn(name: str, kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Handle:
    """Makes a participant, inside a handler too, and returns its handle at once.

    What is sent to the handle arrives after the constructor has run. The newborn is in every checkpoint that
    is begun after it has come up; until then its spawn is in those of its spawner. If the handler raises and
    nobody had asked for its answer, nothing is spawned.

    Asks of a newborn that does not come up are answered with the reason; tells become dead letters.

    Args:
        name: stable name; it is the participant's identity over restarts.
        kind: any class; its constructor gets the remaining arguments. ``Kind.options(name=name,
            get_if_exists=True).remote(...)`` means whoever has the name already; without it a name that is
            taken is DuplicateName, as the answer of what the spawner asks of the handle.

    Raises:
        OutsideHandler: no handler runs here, and no system is started.
        Misuse: a name that no participant can have.
        CannotCapture: an argument cannot travel.
    """
    port = current_port()
    assert isinstance(port, Creator), f"{port!r} cannot make participants"
    marked: type = kind if isinstance(kind, type) else wrap(kind)
    return port.create(marked, name, options_of(marked), args, kwargs)


def check_name(name: Any, driver: str) -> None:
    """Raises Misuse for what cannot be a participant's name; `driver` is the driver's."""
    if not isinstance(name, str) or not name or name == driver or name.startswith("@"):
        raise Misuse(
            f"{name!r} is no name for a participant: a non-empty string, not {driver!r}, no leading @"
        )
    blobs.check_name(name, "participant")


def packer(spawner: str, name: str) -> Callable[[Any, Any], Any]:
    """What packs the arguments of a constructor."""

    def packed(args: Any, kwargs: Any) -> Any:
        where = f"constructor arguments of {name}"
        return pack_arguments(args, kwargs, participant=spawner, where=where)

    return packed


def record_of(kind: type, options: Mapping[str, Any], arguments: Any, cluster: str) -> dict[str, Any]:
    """All that the coordinator needs to start a newborn.

    Raises:
        RefusedOption: a method of the class is marked with what would break order.
    """
    refuse_marked_methods(kind)
    return {
        "class_name": name_of(kind),
        "options": encode_options({k: v for k, v in options.items() if k not in _OURS}, cluster),
        "args": arguments,
        "main": b"",
        "get": bool(options.get("get_if_exists")),
    }
