"""Runs a program where userfaultfd is forbidden, as container profiles do it.

    python -m tests.forbidding [--answer ENOSYS] MODULE ARGUMENTS...

Docker's profile answers EPERM, others ENOSYS, as a kernel without the call does. The filter (seccomp(2)) is
inherited by all that the program starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

__all__ = ("POSSIBLE", "forbid_userfaultfd", "run_forbidden")

_SYSCALLS = {"x86_64": (323, 16), "aarch64": (282, 29)}  # userfaultfd, ioctl
# Whether there is a filter for this machine.
POSSIBLE = sys.platform == "linux" and platform.machine() in _SYSCALLS
_NEW = 0xAA00  # the request that /dev/userfaultfd answers
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def forbid_userfaultfd(answer: int = errno.EPERM) -> None:
    """From now on, in this process and those it starts, both ways to a userfaultfd fail with this errno.

    Raises:
        OSError: the kernel takes no filter.
    """
    userfaultfd, ioctl = _SYSCALLS[platform.machine()]
    rows = [
        (_LOAD, 0, 0, 0),
        (_EQUALS, 3, 0, userfaultfd),
        (_EQUALS, 0, 3, ioctl),
        (_LOAD, 0, 0, 24),
        (_EQUALS, 0, 1, _NEW),
        (_RETURN, 0, 0, _FAIL | answer),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *row) for row in rows)
    program = _Program(len(rows), ctypes.cast(ctypes.create_string_buffer(code), ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments):
            failed = ctypes.get_errno()
            raise OSError(failed, os.strerror(failed))


def run_forbidden(*arguments: str, answer: str = "EPERM") -> str:
    """What the module that `arguments` begin with prints under the filter; it must end well."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.forbidding", "--answer", answer, *arguments],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    given, chosen = sys.argv[1:], errno.EPERM
    if given[0] == "--answer":
        chosen, given = getattr(errno, given[1]), given[2:]
    forbid_userfaultfd(chosen)
    os.execv(sys.executable, [sys.executable, "-m", *given])
