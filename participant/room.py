"""How much input of user threads may wait for the driver's runner, and how long they wait for room.

Input waits while the system is brought back to a checkpoint, while what it may follow from has not happened
again, while receivers have not taken what was sent, and while the disk syncs. Without a bound a program that
goes on meanwhile would fill the memory; so over it a call waits before anything of it is submitted. Who gives
up waiting knows that his call was not taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ("WAITING_BYTES", "WAITING_INPUTS", "Room", "input_size")

WAITING_INPUTS = 10_000
WAITING_BYTES = 64 << 20
# Seconds between two looks at whether the system has ended meanwhile.
_LOOK = 1.0
# What an input takes besides its arguments.
_OVERHEAD = 200


def input_size(arguments: Any) -> int:
    """About how many bytes of memory packed arguments take."""
    if type(arguments) is list:
        return _OVERHEAD + sum(len(each) if type(each) in (str, bytes) else 8 for each in arguments)
    return _OVERHEAD + (len(arguments) if type(arguments) is bytes else 0)


class Room:
    """Counts what waits. One input always finds room where nothing waits, however large it is."""

    def __init__(self, inputs: int = WAITING_INPUTS, size: int = WAITING_BYTES) -> None:
        self.most_inputs, self.most_bytes = inputs, size
        self.inputs = self.bytes = 0
        # Whether nobody may come in, however little waits: receivers have not taken what was sent.
        self.is_shut = False
        self._waiting = 0
        self._changed = threading.Condition(threading.Lock())

    def enter(
        self, size: int, patience: float | None, gone: Callable[[], bool], *, waits: bool = True
    ) -> bool:
        """Takes room for one input, and waits for it; whether it was to be had within `patience` seconds.

        `gone`: whether there is nobody any more who could make room; then it is given. ``waits`` False: the
        caller must not wait, since it is he who makes room.
        """
        with self._changed:
            if waits and not self._has_room(size) and not self._wait(size, patience, gone):
                return False
            self.inputs += 1
            self.bytes += size
        return True

    def _has_room(self, size: int) -> bool:
        if self.is_shut:
            return False
        return not self.inputs or (self.inputs < self.most_inputs and self.bytes + size <= self.most_bytes)

    def _wait(self, size: int, patience: float | None, gone: Callable[[], bool]) -> bool:
        until = None if patience is None else time.monotonic() + patience
        self._waiting += 1
        try:
            while not self._has_room(size) and not gone():
                left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True
        finally:
            self._waiting -= 1

    def leave(self, size: int) -> None:
        """An input waits no more."""
        with self._changed:
            self.inputs -= 1
            self.bytes -= size
            # Not for each one: whoever is woken would only wait for the interpreter.
            half = self.inputs * 2 <= self.most_inputs and self.bytes * 2 <= self.most_bytes
            if self._waiting and (half or not self.inputs):
                self._changed.notify_all()

    def shut(self, is_shut: bool) -> None:
        """Whether nobody may come in for now."""
        if is_shut != self.is_shut:
            with self._changed:
                self.is_shut = is_shut
                self._changed.notify_all()
