"""Memory for large copies, which the next capture uses again.

Theory of operation. The first touch of memory is dear, most of all in a virtual machine whose host has to
find it: a GiB took 2.4 s there, and 0.1 s where it had been touched before. A state that changes everywhere
all the time is copied whole by each capture, so what one of them copied to is worth keeping for the next one.
It lies here from when nobody refers to it any more, which is when the image is written, and is given up if
the capture after that does not take it, or if none comes for a while: see `give_up`.

As in `cutline.participant.shared_memory` there is no lock that the handler's thread could have to wait for.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from typing import Any

import numpy as np

from .memory import Bytes

__all__ = ("LargeCopies",)

_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


class _Block:
    """Anonymous memory of this process, on huge pages where there are any."""

    __slots__ = ("memory", "out")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # While it is lent: tells when nobody refers to any part of it any more.
        self.out: Any = None
        if _HUGE is not None:
            try:
                self.memory.madvise(_HUGE)
            except OSError:
                # A kernel without them: then its pages are small.
                return


class LargeCopies:
    """Those of one process. `room` is the handler's thread's, `give_up` anybody's."""

    def __init__(self) -> None:
        self._idle: deque[_Block] = deque()
        # Those that are lent. A block and its weak reference hold each other: if nobody else held them, a
        # collection would take both, and nothing would come back.
        self._out: set[_Block] = set()

    def room(self, size: int) -> Bytes:
        """Memory for that many bytes, its content undefined."""
        for _ in range(len(self._idle)):
            try:
                block = self._idle.popleft()
            except IndexError:
                break
            if len(block.memory) == size:
                return self._lent(block)
            self._idle.append(block)
        try:
            return self._lent(_Block(size))
        except OSError:
            # Too little of it, most likely. Without what lies here it may do; else numpy says so.
            self.give_up()
            return np.empty(size, np.uint8)

    def _lent(self, block: _Block) -> Bytes:
        root: Bytes = np.frombuffer(block.memory, np.uint8)
        self._out.add(block)
        block.out = weakref.ref(root, lambda _reference: self._returned(block))
        return root

    def _returned(self, block: _Block) -> None:
        """In any thread, at any moment."""
        self._idle.append(block)
        self._out.discard(block)

    def give_up(self) -> None:
        """What lies here was not taken by the last capture, or there was none for long: it goes."""
        while self._idle:
            try:
                block = self._idle.popleft()
            except IndexError:
                return
            # Else it would be part of a circle, and go when the collector comes.
            block.out = None
