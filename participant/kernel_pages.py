"""The kernel's account of written pages: userfaultfd in asynchronous write-protect mode, and PAGEMAP_SCAN.

Memory is registered once; from then on the kernel notes which of its pages are written, by whatever means of
this process, and a scan answers them and begins anew. No root, no signal, no subclass of anything. Sources:
userfaultfd(2), Linux Documentation/admin-guide/mm/userfaultfd.rst and pagemap.rst (PAGEMAP_SCAN and
WP_ASYNC: Linux 6.7), include/uapi/linux/userfaultfd.h and fs.h.

What the kernel does not note: writes by another process or through another mapping to shared memory, and by
devices that were handed the memory before a scan (O_DIRECT under way, io_uring, RDMA). So only private
memory without a file is eligible (`cutline.participant.mappings`), and scans happen at message boundaries.

Calls go through PyDLL: they take microseconds, and giving the GIL away may cost five milliseconds.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from typing import Any

import numpy as np

from .runs import Runs

__all__ = ("PAGE", "KernelPages", "KernelRefused")

PAGE = os.sysconf("SC_PAGE_SIZE")

_SYSCALL = {"x86_64": 323, "aarch64": 282, "riscv64": 282}
_USER_MODE_ONLY = 1
_API = 0xAA
_FEATURES = 1 << 15 | 1 << 13  # WP_ASYNC, WP_UNPOPULATED
_WRITE_PROTECT = 2
_NEW = 0xAA00
_WRITTEN = 1 << 1
_PROTECT_FOUND, _REFUSE_OTHERS = 1 << 0, 1 << 1
_VECTOR = 32_768


def _iowr(kind: int, number: int, size: int) -> int:
    return 3 << 30 | size << 16 | kind << 8 | number


_UFFDIO_API = _iowr(_API, 0x3F, 24)
_UFFDIO_REGISTER = _iowr(_API, 0, 32)
_UFFDIO_UNREGISTER = 2 << 30 | 16 << 16 | _API << 8 | 1
_UFFDIO_WRITEPROTECT = _iowr(_API, 6, 24)
_PAGEMAP_SCAN = _iowr(ord("f"), 16, 96)


class KernelRefused(Exception):
    """This kernel, or this sandbox, gives no account of written pages; says why and what would help."""


class KernelPages:
    """The two descriptors of this process. Addresses are multiples of `PAGE`.

    Raises:
        KernelRefused: there is no such account here; it was tried out on four pages.
    """

    def __init__(self) -> None:
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        self._uffd = self._pagemap = -1
        self._vector = np.empty((_VECTOR, 3), np.uint64)
        self._scan = np.zeros(12, np.uint64)
        try:
            self._uffd = self._open()
            self._ioctl(self._uffd, _UFFDIO_API, np.array([_API, _FEATURES, 0], np.uint64))
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            self._try_out()
        except OSError as error:
            self.close()
            raise KernelRefused(_explain(error)) from error
        except KernelRefused:
            self.close()
            raise

    def _open(self) -> int:
        number = _SYSCALL.get(platform.machine())
        if number is None:
            raise KernelRefused(f"userfaultfd has no known number on {platform.machine()}")
        opened = self._libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        if opened >= 0:
            return int(opened)
        refused = ctypes.get_errno()
        try:
            # Where the call is forbidden, as in Docker, the device may have been given to the container.
            device = os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            raise OSError(refused, os.strerror(refused)) from None
        try:
            opened = self._libc.ioctl(device, _NEW, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        finally:
            os.close(device)
        if opened < 0:
            raise OSError(refused, os.strerror(refused))
        return int(opened)

    def _ioctl(self, descriptor: int, request: int, argument: np.ndarray[Any, Any]) -> int:
        while True:
            answer = int(self._libc.ioctl(descriptor, request, argument.ctypes.data))
            if answer >= 0:
                return answer
            failed = ctypes.get_errno()
            if failed not in (errno.EINTR, errno.EAGAIN):
                raise OSError(failed, os.strerror(failed))

    def _try_out(self) -> None:
        """Four pages, the second written: the scan must say exactly that."""
        with mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[:] = b"\1" * len(memory)
            view: Any = np.frombuffer(memory, np.uint8)
            start = int(view.ctypes.data)
            try:
                self.protect(start, start + 4 * PAGE)
                view[PAGE] = 2
                starts, stops = self.scan(start, start + 4 * PAGE)
                again = self.scan(start, start + 4 * PAGE)
            finally:
                del view
        found = list(zip((starts - start).tolist(), (stops - start).tolist(), strict=True))
        if found != [(PAGE, 2 * PAGE)] or len(again[0]):
            raise KernelRefused(f"the kernel's account of written pages is wrong in a trial: {found}")

    def protect(self, start: int, stop: int) -> None:
        """From now on writes to these pages are noted. Raises OSError where that cannot be."""
        self._ioctl(
            self._uffd, _UFFDIO_REGISTER, np.array([start, stop - start, _WRITE_PROTECT, 0], np.uint64)
        )
        self._ioctl(self._uffd, _UFFDIO_WRITEPROTECT, np.array([start, stop - start, 1], np.uint64))

    def release(self, start: int, stop: int) -> None:
        """Ends it. Memory that is gone meanwhile needs no release."""
        if start >= stop:
            return
        try:
            self._ioctl(self._uffd, _UFFDIO_UNREGISTER, np.array([start, stop - start], np.uint64))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOMEM):
                raise

    def scan(self, start: int, stop: int) -> Runs:
        """The pages written since the last scan, as address ranges; noting begins anew.

        Raises:
            OSError: some of the memory is not what was registered (EPERM); what was found until then is lost,
                so every page must be taken for written.
        """
        found: list[np.ndarray[Any, Any]] = []
        argument = self._scan
        at = start
        while at < stop:
            argument[:] = (
                96,
                _PROTECT_FOUND | _REFUSE_OTHERS,
                at,
                stop,
                0,
                self._vector.ctypes.data,
                len(self._vector),
                0,
                0,
                _WRITTEN,
                0,
                _WRITTEN,
            )
            count = self._ioctl(self._pagemap, _PAGEMAP_SCAN, argument)
            if count:
                found.append(self._vector[:count, :2].astype(np.int64))
            reached = int(argument[4])
            if reached <= at:
                raise OSError(errno.EIO, f"a scan from {at:#x} to {stop:#x} does not get on")
            at = reached
        if not found:
            return _NONE
        every = found[0] if len(found) == 1 else np.concatenate(found)
        return every[:, 0], every[:, 1]

    def close(self) -> None:
        """Closes both; in a forked child, its own copies of them."""
        for descriptor in (self._uffd, self._pagemap):
            if descriptor >= 0:
                os.close(descriptor)
        self._uffd = self._pagemap = -1


_NONE: Runs = (np.empty(0, np.int64), np.empty(0, np.int64))


def _explain(error: OSError) -> str:
    why = f"{os.strerror(error.errno or 0)}"
    if error.errno == errno.EPERM:
        return (
            f"userfaultfd is forbidden here ({why}): container profiles often leave it out; allow the system "
            "call userfaultfd, or give the container the device /dev/userfaultfd"
        )
    if error.errno == errno.ENOSYS:
        return f"the kernel, or its sandbox, has no userfaultfd ({why})"
    if error.errno in (errno.EINVAL, errno.ENOTTY):
        return f"the kernel is older than Linux 6.7, which brought PAGEMAP_SCAN ({why})"
    return f"the kernel's account of written pages cannot be had ({why})"
