"""A flight recorder: which message is being handled, and how many were, in a mapped file.

It survives SIGKILL, so after a loss the coordinator knows the message that was being handled (a message
that kills its process again and again must not do so for ever, RULES 6) and how many handlers had run. It
is also how a handler that holds the GIL for a minute can be named from outside.

A *run* is a row of messages of one channel that were all calls. Its counts are written once, at its
beginning; per message there are two stores: its number before the handler, and again after it. Layout,
unsigned 64-bit words in the machine's order: number in hand, last number done, first number of the run;
before the run: messages handled in this history, handlers run in this history, handlers run by this process;
birth of the sender, length of its name; then the name in UTF-8. Writes are plain stores to the mapping; there
is no fsync, and after a power loss the file means nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import MutableSequence
from pathlib import Path
from typing import NamedTuple, cast

from cutline.barrier import Member

__all__ = ("Flight", "FlightRecord", "read_flight", "IN_HAND", "DONE")

IN_HAND, DONE = 0, 1
_SIZE = 4096
_RUN = struct.Struct("=QQQQQQ")
_SENDER = struct.Struct("=QQ")
_NAME_AT = _RUN.size + _SENDER.size


class FlightRecord(NamedTuple):
    """What a recorder holds: counts so far, and the message in hand (None between two)."""

    handled: int
    handlers: int
    run: int
    sender: Member | None
    sequence: int


class Flight:
    """The writing side, owned by one participant; without a path nobody else can read it.

    ``words[IN_HAND]`` and ``words[DONE]`` are for the loop that handles messages.
    """

    def __init__(self, path: Path | None) -> None:
        if path is None:
            self._map = mmap.mmap(-1, _SIZE)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.ftruncate(descriptor, _SIZE)
                self._map = mmap.mmap(descriptor, _SIZE)
            finally:
                os.close(descriptor)
        self.words = cast(MutableSequence[int], memoryview(self._map).cast("Q"))
        self._sender: Member | None = None

    def open(self, handled: int, handlers: int, run: int, sender: Member, first: int) -> None:
        """A run begins: the counts before it, and the number of its first message."""
        if sender is not self._sender:
            name = sender.name.encode()[: _SIZE - _NAME_AT]
            _SENDER.pack_into(self._map, _RUN.size, sender.birth, len(name))
            self._map[_NAME_AT : _NAME_AT + len(name)] = name
            self._sender = sender
        _RUN.pack_into(self._map, 0, 0, first - 1, first, handled, handlers, run)

    def rest(self, handled: int, handlers: int, run: int) -> None:
        """No message is in hand: the counts of a history that has just begun here."""
        _RUN.pack_into(self._map, 0, 0, 0, 0, handled, handlers, run)


def read_flight(path: Path) -> FlightRecord | None:
    """What the recorder at `path` holds; None if there is none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < _SIZE:
        return None
    in_hand, done, first, handled, handlers, run = _RUN.unpack_from(raw, 0)
    so_far = done + 1 - first if first else 0
    birth, length = _SENDER.unpack_from(raw, _RUN.size)
    sender, sequence = None, 0
    if in_hand > done:
        name = raw[_NAME_AT : _NAME_AT + length].decode(errors="replace")
        sender, sequence = Member(name, birth), in_hand
    return FlightRecord(handled + so_far, handlers + so_far, run + so_far, sender, sequence)
