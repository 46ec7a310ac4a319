"""What kind of memory lies at an address: the mappings of this process.

Few spans are asked for one by one (PROCMAP_QUERY, Linux 6.11, include/uapi/linux/fs.h), many, or all on an
older kernel, are looked up in the whole text of /proc/self/maps (proc_pid_maps(5)): a process of many arrays
has thousands of lines.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import os
from collections.abc import Sequence

import numpy as np

__all__ = ("count_mappings", "eligible")

_MAPS = "/proc/self/maps"
_FEW = 32
_PROCMAP_QUERY = 3 << 30 | 104 << 16 | ord("f") << 8 | 17
_WRITABLE, _SHARED = 2, 8
_STOP, _FLAGS, _INODE = 4, 5, 8

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)


def count_mappings() -> int:
    """How many there are; 0 where that cannot be read."""
    return len(_lines())


def eligible(spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Which address ranges are private memory without a file, writable, whole.

    Where that cannot be read, as by a process that may open no more files, none are.
    """
    if len(spans) <= _FEW:
        asked = _ask(spans)
        if asked is not None:
            return asked
    lines = _lines()
    return [_is_private(lines, *span) for span in spans]


def _lines() -> list[bytes]:
    try:
        with open(_MAPS, "rb") as maps:
            return maps.read().splitlines()
    except OSError:
        return []


def _ask(spans: Sequence[tuple[int, int]]) -> list[bool] | None:
    """None: the kernel does not answer such questions."""
    try:
        with open(_MAPS, "rb", buffering=0) as maps:
            return [_is_private_there(maps.fileno(), *span) for span in spans]
    except OSError as error:
        return None if error.errno in (errno.ENOTTY, errno.EINVAL) else [False] * len(spans)


def _is_private_there(maps: int, start: int, stop: int) -> bool:
    query = np.zeros(13, np.uint64)
    while start < stop:
        query[:3] = query.nbytes, 0, start
        if _libc.ioctl(maps, _PROCMAP_QUERY, query.ctypes.data) < 0:
            failed = ctypes.get_errno()
            if failed == errno.ENOENT:
                # Nothing is mapped there.
                return False
            raise OSError(failed, os.strerror(failed))
        if int(query[_FLAGS]) & (_WRITABLE | _SHARED) != _WRITABLE or query[_INODE]:
            return False
        start = int(query[_STOP])
    return True


def _is_private(lines: Sequence[bytes], start: int, stop: int) -> bool:
    at = bisect.bisect_right(lines, start, key=lambda line: int(line[: line.index(b"-")], 16)) - 1
    while start < stop:
        if not 0 <= at < len(lines):
            return False
        place, mode, _, _, inode = lines[at].split(None, 5)[:5]
        low, high = (int(end, 16) for end in place.split(b"-"))
        if not low <= start < high or mode[1:2] != b"w" or mode[3:4] != b"p" or inode != b"0":
            return False
        start, at = high, at + 1
    return True
