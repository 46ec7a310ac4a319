"""Finds async handlers that change state and then await, while a program is young.

After a crash a suspended handler is run again from the top with the same answers, so whatever it changed
before an await would be changed twice. That shows only after a crash, hence this check: the state is
fingerprinted before and after each stretch of a handler that ends in an await.

It costs a pickle of the state, so by default only the first calls of each method are checked, and only
while the state is small; ``cutline.start(check_awaits=True)`` checks every stretch of every call. A state
that this cannot pickle (the capture has means of its own) is not checked.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from .async_call import AsyncCall
from .handle import Handle, Ref

__all__ = ("Purity", "CHECKED_CALLS", "SMALL")

CHECKED_CALLS = 3
SMALL = 1024 * 1024


class _TooLarge(Exception):
    """The state is not small."""


class _Sink:
    """A file for a pickler that keeps nothing but a hash."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.size = 0
        self.hash = blake3()

    def write(self, part: Any) -> int:
        view = memoryview(part)
        self.grow(view.nbytes)
        self.hash.update(view)
        return view.nbytes

    def grow(self, size: int) -> None:
        self.size += size
        if self.limit is not None and self.size > self.limit:
            raise _TooLarge


class _Pickler(pickle.Pickler):
    """Handles and Refs by what they say: their own reduction tells their port that they leave."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__(sink, protocol=5)
        self.sink = sink

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (Handle, Ref)):
            return str, (repr(value),)
        size = getattr(value, "nbytes", 0)
        if type(size) is int and self.sink.limit is not None and size > self.sink.limit:
            raise _TooLarge
        return NotImplemented


class Purity:
    """Says for a call what the state looks like; empty if this call is not checked."""

    def __init__(self, state: Callable[[], object], *, every: bool = False) -> None:
        self._state = state
        self._every = every
        self._checked: dict[str, list[int]] = {}

    def fingerprint(self, call: AsyncCall) -> bytes:
        """A hash of the state now, or nothing."""
        if not self._every:
            calls = self._checked.setdefault(call.method, [])
            if call.number not in calls:
                if len(calls) >= CHECKED_CALLS:
                    return b""
                calls.append(call.number)
        sink = _Sink(None if self._every else SMALL)
        try:
            _Pickler(sink).dump(self._state())
        except Exception:
            # Too large, or made of what only a capture can save: not checked, which is no fault.
            return b""
        digest: bytes = sink.hash.digest()
        return digest
