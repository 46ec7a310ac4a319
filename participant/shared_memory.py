"""Memory that captured bytes are copied to, and that another process can read without copying them again.

Theory of operation. A `Buffer` is anonymous memory with a descriptor (memfd_create(2)): it has no name that
could be left behind, and whoever is sent the descriptor can map it. The first touch of a page is dear, so
buffers are used again, and are touched before they are handed out, by a thread that is not the handler's
(`Buffers.prepare`). The handler only takes what lies ready (`room`); where nothing does it gets memory of the
process's own, and what it would have needed lies ready the next time. Large copies always go to memory of the
process's own (`cutline.participant.large_copies`).

A buffer is given back when the last array, view or memoryview of it is gone: whoever still writes an image,
or may have to write it again, refers to its bytes. That is found out by a weak reference, which may be
called back in any thread at any moment, so all that the handler's thread and such a call touch are deques,
whose ends are moved atomically. There is no lock that the handler could have to wait for.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from .large_copies import LargeCopies
from .memory import Bytes, address

__all__ = ("CHUNK", "Buffer", "Buffers", "Place", "buffers", "mapped", "room")

# The smallest buffer, which many small copies share; the largest one is for a single copy.
CHUNK = 4 << 20
LARGEST = 16 << 20
# Bytes that the buffers of a process take at most.
MOST = 192 << 20
_REMEMBERED = 8
# The part of a large copy for which room is made ahead: as much as may change in it until the next one.
_AHEAD = 16
_STEP = 1 << 20
_POPULATE_WRITE = 23
# F_ADD_SEALS, F_GET_SEALS; F_SEAL_SHRINK | F_SEAL_GROW: the other end must not die of a page that went.
_ADD_SEALS, _GET_SEALS, _SEALED = 1033, 1034, 2 | 4

_numbers = itertools.count(1)
# Populating lets other threads run.
_libc = ctypes.CDLL(None, use_errno=True)


class Place(NamedTuple):
    """Where bytes lie: the number of a buffer, and the part of it."""

    number: int
    start: int
    size: int


class Buffer:
    """One piece of shared memory of `size` bytes.

    Raises:
        OSError: there is no such memory here, or no more of it.
    """

    def __init__(self, size: int) -> None:
        self.number = next(_numbers)
        self.size = size
        self.descriptor = os.memfd_create("cutline-captured", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEALED)
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.start = address(np.frombuffer(self._map, np.uint8))

    def touch(self) -> None:
        """Makes every page be there. Other threads run meanwhile, and only short pieces hold up the others'
        page faults."""
        _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for at in range(0, self.size, _STEP):
            if _libc.madvise(self.start + at, min(_STEP, self.size - at), _POPULATE_WRITE) == 0:
                continue
            if ctypes.get_errno() != errno.EINVAL:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            # Linux before 5.14.
            os.posix_fallocate(self.descriptor, at, min(_STEP, self.size - at))

    def memory(self, given_back: Any) -> Bytes:
        """All of it; `given_back` is called when nobody refers to any part of it any more."""
        root: Bytes = np.frombuffer(self._map, np.uint8)
        # The reference keeps itself alive for as long as the buffer is out.
        self._out: Any = weakref.ref(root, given_back)
        return root

    def close(self) -> None:
        """Gives the memory up; nobody refers to it."""
        self._map.close()
        os.close(self.descriptor)


class Buffers:
    """The buffers of one process. `most`: bytes that they take."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.large = LargeCopies()
        self._ready: dict[int, deque[Buffer]] = {}
        size = CHUNK
        while size <= LARGEST:
            self._ready[size] = deque()
            size *= 2
        self._missed: deque[int] = deque()
        self._lows = {size: deque[int](maxlen=_REMEMBERED) for size in self._ready}
        self._chunk: Bytes = np.empty(0, np.uint8)
        # Of those who prepare and look up; the handler's thread never takes it.
        self._lock = threading.Lock()
        self._all: dict[int, Buffer] = {}

    @property
    def size(self) -> int:
        """Bytes that all buffers have."""
        with self._lock:
            return sum(buffer.size for buffer in self._all.values())

    # -- the handler's thread --------------------------------------------------------------------------

    def room(self, size: int) -> Bytes:
        """Memory for that many bytes, its content undefined: shared if some lies ready."""
        if size > LARGEST:
            # All of something large. Of what changes in it the first copy should not meet cold memory either.
            self._missed.extend([CHUNK] * min(-(-size // (_AHEAD * CHUNK)), LARGEST // CHUNK))
            return self.large.room(size)
        if not size:
            return np.empty(0, np.uint8)
        if size > CHUNK // 2:
            whole = self._take(size, size)
            return np.empty(size, np.uint8) if whole is None else whole[:size]
        # Parts begin where a line of the processor's cache does.
        chunk = self._chunk
        if len(chunk) < size:
            taken = self._take(CHUNK, size)
            if taken is None:
                return np.empty(size, np.uint8)
            chunk = taken
        self._chunk = chunk[-(-size // 64) * 64 :]
        return chunk[:size]

    def _take(self, least: int, size: int) -> Bytes | None:
        ready = self._ready[_whole(least)]
        try:
            buffer = ready.popleft()
        except IndexError:
            self._missed.append(size)
            return None
        return buffer.memory(lambda _reference: ready.append(buffer))

    # -- any other thread ------------------------------------------------------------------------------

    def prepare(self, *, worth: bool = True) -> None:
        """Gets ready what was missed, and gives up what has not been needed for a while.

        `worth`: whether what was captured last would have gone to another process; else nothing was missed.
        """
        self.large.give_up()
        with self._lock:
            missed = [self._missed.popleft() for _ in range(len(self._missed))]
            wanted = _buffers_for(missed) if worth else []
            for size in wanted:
                if not self._make(size, keep=wanted):
                    break
            if CHUNK in wanted:
                # Whoever takes the next one should not miss it either.
                self._make(CHUNK, keep=self._ready)
            for size, lows in self._lows.items():
                lows.append(len(self._ready[size]))
                # One chunk more than was ever needed of late is kept.
                if len(lows) == _REMEMBERED and min(lows) > (size == CHUNK):
                    self._drop(size)

    def _make(self, size: int, keep: Collection[int]) -> bool:
        total = sum(buffer.size for buffer in self._all.values())
        for other in sorted(self._ready, reverse=True):
            # What lies idle in another size makes room.
            while other not in keep and total + size > self._most and self._drop(other):
                total -= other
        if total + size > self._most:
            return False
        try:
            buffer = Buffer(size)
        except OSError:
            # Without it captures take memory of the process's own.
            return False
        try:
            buffer.touch()
        except OSError:
            buffer.close()
            return False
        self._all[buffer.number] = buffer
        self._ready[size].append(buffer)
        return True

    def _drop(self, size: int) -> bool:
        try:
            buffer = self._ready[size].popleft()
        except IndexError:
            return False
        try:
            buffer.close()
        except BufferError:
            # Its last array is just going.
            self._ready[size].append(buffer)
            return False
        del self._all[buffer.number]
        return True

    def place(self, view: memoryview | Bytes) -> Place | None:
        """Where in shared memory these bytes lie; None: they do not."""
        array: Bytes = np.frombuffer(view, np.uint8)
        start, size = address(array), array.nbytes
        with self._lock:
            for buffer in self._all.values():
                if buffer.start <= start and start + size <= buffer.start + buffer.size:
                    return Place(buffer.number, start - buffer.start, size)
        return None

    def get(self, number: int) -> Buffer:
        """One that somebody refers to."""
        with self._lock:
            return self._all[number]

    def numbers(self) -> set[int]:
        """Those that there are."""
        with self._lock:
            return set(self._all)


def _whole(size: int) -> int:
    """The size of the buffer for one copy of that many bytes."""
    wanted = CHUNK
    while wanted < size:
        wanted *= 2
    return wanted


def _buffers_for(sizes: Sequence[int]) -> list[int]:
    """The sizes of the buffers that would have had room for copies of these sizes, one after the other."""
    wanted, left = [], 0
    for size in sizes:
        if size > CHUNK // 2:
            wanted.append(_whole(size))
            continue
        if left < size:
            wanted.append(CHUNK)
            left = CHUNK
        left -= -(-size // 64) * 64
    return wanted


def mapped(descriptor: int, size: int) -> memoryview:
    """Maps another process's buffer for reading; closes the descriptor.

    Raises:
        OSError: it is no such memory, or could lose pages.
    """
    try:
        seals = fcntl.fcntl(descriptor, _GET_SEALS)
        if seals & _SEALED != _SEALED or os.fstat(descriptor).st_size != size:
            raise OSError(errno.EINVAL, "not a buffer of captured bytes")
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)


_process: Buffers | None = None
_made = threading.Lock()


def buffers() -> Buffers:
    """Those of this process; from now on captures use them."""
    global _process
    with _made:
        if _process is None:
            _process = Buffers()
        return _process


def room(size: int) -> Bytes:
    """Memory for a copy of captured bytes, its content undefined."""
    return np.empty(size, np.uint8) if _process is None else _process.room(size)


def _after_fork_in_child() -> None:
    """Shared memory is not copied at a fork: what a child captures must not go there."""
    global _process, _made
    _process, _made = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
