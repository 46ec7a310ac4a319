"""What a step is recognised by: a digest of values that does not see who made them, or which are one object.

The same values have the same digest in another process, after a restore: plain ones as msgpack has them,
with lists and tuples told apart, sets in one order; a Log by its chain; anything else by the likeness of
its pickle (`cutline.participant.likeness`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
from blake3 import blake3

from cutline.errors import CannotCapture

from .likeness import likeness
from .log import Log
from .pickling import dumps

__all__ = ("StepDigest", "name_of_call")

_Special = Callable[[Any], msgpack.ExtType]
_TUPLE, _SET, _INT, _LOG, _OTHER, _NAMED, _UNKNOWN = range(7)


class StepDigest:
    """Digests for one participant, whose name stands in errors."""

    def __init__(self, participant: str) -> None:
        self._participant = participant
        # Made once: making one takes as long as packing a message. Values within values have others.
        self._values = _packer(self._special)
        self._arguments = _packer(self._argument)
        self._asked: set[int] = set()

    def chain(self, log: Log[Any]) -> bytes:
        """16 bytes that stand for what a log holds.

        Raises:
            CannotCapture: one of its values cannot be stored.
        """
        if id(log) in self._asked:
            # It holds itself.
            return b""
        self._asked.add(id(log))
        try:
            # Only the outermost one has the packer for itself.
            return log.chain(self._value if len(self._asked) == 1 else self._inner_value)
        finally:
            self._asked.remove(id(log))

    def _value(self, value: Any) -> bytes:
        return self._pack(self._values, value)

    def _inner_value(self, value: Any) -> bytes:
        return self._packed(value, self._special)

    def call(self, chain: bytes, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> bytes:
        """16 bytes for a call after a log's content. An argument that cannot be stored counts by its type."""
        while isinstance(function, functools.partial):
            args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
            function = function.func
        said = self._pack(self._arguments, [name_of_call(function), list(args), kwargs])
        digest: bytes = blake3(chain + said).digest(16)
        return digest

    def _packed(self, value: Any, special: _Special) -> bytes:
        return self._pack(_packer(special), value)

    def _pack(self, packer: msgpack.Packer, value: Any) -> bytes:
        try:
            packed: bytes = packer.pack(value)
        except ValueError:
            # Nested too deep, or holding itself.
            packed = msgpack.packb(self._whole(value))
        return packed

    def _special(self, value: Any) -> msgpack.ExtType:
        return self._known(value, self._special) or self._whole(value)

    def _argument(self, value: Any) -> msgpack.ExtType:
        known = self._known(value, self._argument)
        if known is not None:
            return known
        if hasattr(value, "__qualname__"):
            return msgpack.ExtType(_NAMED, name_of_call(value).encode())
        try:
            return self._whole(value)
        except CannotCapture:
            return msgpack.ExtType(_UNKNOWN, name_of_call(type(value)).encode())

    def _known(self, value: Any, special: _Special) -> msgpack.ExtType | None:
        kind = type(value)
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, self._packed(list(value), special))
        if kind is set or kind is frozenset:
            return msgpack.ExtType(_SET, b"".join(sorted(self._packed(each, special) for each in value)))
        if kind is int:
            return msgpack.ExtType(_INT, str(value).encode())
        if isinstance(value, Log):
            return msgpack.ExtType(_LOG, self.chain(value))
        return None

    def _whole(self, value: Any) -> msgpack.ExtType:
        pickled = dumps(value, participant=self._participant, where="a value of a log")
        return msgpack.ExtType(_OTHER, likeness(pickled).to_bytes(8, "little"))


def _packer(special: _Special) -> msgpack.Packer:
    return msgpack.Packer(default=special, strict_types=True, unicode_errors="surrogatepass")


def name_of_call(function: Callable[..., Any]) -> str:
    """What a function is called: its module and its name there, or those of its class."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"
