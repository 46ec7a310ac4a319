"""A flight recorder: which message is being handled, and how many were, in a mapped file.

It survives SIGKILL, so after a loss the coordinator knows the message that was being handled (a message
that kills its process again and again must not do so for ever, RULES 6) and how many handlers had run. It
is also how a handler that holds the GIL for a minute can be named from outside. Layout, little endian:
messages handled in this history (u64), handlers run in this history (u64), handlers run by this process
(u64), sequence number in hand or 0 (u64), birth of its sender (u64), length and UTF-8 bytes of its name.
Writes are plain stores to the mapping; there is no fsync, and after a power loss the file means nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from cutline.barrier import Member

__all__ = ("Flight", "FlightRecord", "read_flight")

_SIZE = 4096
_COUNTS = struct.Struct("<QQQQ")
_SENDER = struct.Struct("<QH")


class FlightRecord(NamedTuple):
    """What a recorder holds: counts so far, and the message in hand (None between two)."""

    handled: int
    handlers: int
    run: int
    sender: Member | None
    sequence: int


class Flight:
    """The writing side, owned by one participant process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._sender: Member | None = None
        self._write = _COUNTS.pack_into

    def begin(self, handled: int, handlers: int, run: int, sender: Member, sequence: int) -> None:
        """A message is taken in hand."""
        if sender is not self._sender:
            name = sender.name.encode()[: _SIZE - 64]
            _SENDER.pack_into(self._map, 32, sender.birth, len(name))
            self._map[42 : 42 + len(name)] = name
            self._sender = sender
        self._write(self._map, 0, handled, handlers, run, sequence)

    def end(self, handled: int, handlers: int, run: int) -> None:
        """It was handled."""
        self._write(self._map, 0, handled, handlers, run, 0)


def read_flight(path: Path) -> FlightRecord | None:
    """What the recorder at `path` holds; None if there is none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < _SIZE:
        return None
    handled, handlers, run, sequence = _COUNTS.unpack_from(raw, 0)
    birth, length = _SENDER.unpack_from(raw, 32)
    name = raw[42 : 42 + length].decode(errors="replace")
    return FlightRecord(handled, handlers, run, Member(name, birth) if sequence else None, sequence)
