"""Copies scattered runs of memory into one buffer, and compares them, without giving the GIL away.

A few runs are copied one by one; from some hundreds on the kernel does it for a thousand at a time
(process_vm_readv(2) of this process itself), where it is allowed.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from cutline.storage.extents import Extents

from .memory import Bytes, address
from .runs import Runs
from .shared_memory import room

__all__ = ("gather", "is_copy", "read_by_kernel")

_FEW = 400
_AT_ONCE = 1024

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def gather(memory: Bytes, runs: Runs) -> Extents:
    """The bytes of `memory` at `runs`, (starts, stops) inside it, copied."""
    starts, stops = runs
    lengths = stops - starts
    total = int(lengths.sum())
    copied = room(total)
    if len(starts) <= _FEW or not read_by_kernel(address(memory), starts, lengths, copied):
        with memory.data as source, copied.data as target:
            at = 0
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                target[at : at + length] = source[start : start + length]
                at += length
    return Extents(starts, lengths, [memoryview(copied.data)] if total else [])


def is_copy(extents: Extents, memory: Bytes) -> bool:
    """Whether `memory` holds now what was copied of it."""
    start = address(memory)
    return not any(
        _libc.memcmp(start + offset, address(np.frombuffer(run, np.uint8)), run.nbytes)
        for offset, run in extents
    )


def read_by_kernel(base: int, starts: Any, lengths: Any, copied: Bytes) -> bool:
    """Copies runs, `starts` counted from the address `base`, one after the other to `copied`.

    False: the kernel does not do that here, or some of the memory is not there.
    """
    read = getattr(_libc, "process_vm_readv", None)
    if read is None:
        return False
    read.restype = ctypes.c_ssize_t
    wanted = np.empty((len(starts), 2), np.uint64)
    wanted[:, 0] = starts
    wanted[:, 0] += np.uint64(base)
    wanted[:, 1] = lengths
    target = np.array([[address(copied), 0]], np.uint64)
    process = os.getpid()
    for first in range(0, len(wanted), _AT_ONCE):
        part = wanted[first : first + _AT_ONCE]
        size = int(lengths[first : first + _AT_ONCE].sum())
        target[0, 1] = size
        done = read(
            process,
            ctypes.c_void_p(address(target)),
            ctypes.c_ulong(1),
            ctypes.c_void_p(address(part)),
            ctypes.c_ulong(len(part)),
            ctypes.c_ulong(0),
        )
        if done != size:
            return False
        target[0, 0] += np.uint64(size)
    return True
