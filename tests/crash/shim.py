"""The shim of shim.c: compiled when it is needed, and spoken to from inside the process that loaded it."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ("HOWS", "MODES", "Shim", "built", "why_not")

_SOURCE = Path(__file__).with_name("shim.c")
MODES = ("kill", "EIO", "ENOSPC", "full")
# As the shim counts them: what happens, and with which error.
HOWS = {
    "": (0, 0),
    "kill": (1, 0),
    "EIO": (2, errno.EIO),
    "ENOSPC": (2, errno.ENOSPC),
    "full": (3, errno.ENOSPC),
}


def why_not() -> str:
    """Why the shim cannot be had here; "" if it can."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "the shim stands before the C library of 64-bit Linux alone"
    if shutil.which("cc") is None:
        return "no C compiler here (cc), so no operation of SQLite can be seen (Debian's package gcc)"
    return ""


@functools.cache
def built() -> Path:
    """The shim as a library, compiled once in a process."""
    reason = why_not()
    if reason:
        raise RuntimeError(reason)
    folder = Path(tempfile.mkdtemp(prefix="cutline-shim-"))
    made = folder / "shim.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", str(made), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the shim does not compile:\n{done.stderr}")
    return made


class Shim:
    """The shim in the calling process."""

    def __init__(self) -> None:
        if "shim.so" not in os.environ.get("LD_PRELOAD", ""):
            raise RuntimeError("this process was started without the shim")
        self._library = ctypes.CDLL(None)
        self._library.crash_count.restype = ctypes.c_long

    def begin(self, folder: Path, log: int, at: int, how: str) -> None:
        """From now on what is done below ``folder`` is written to ``log``; operation ``at`` is struck."""
        mode, error = HOWS[how]
        self._library.crash_begin(os.fsencode(folder), log, ctypes.c_long(at), mode, error)

    def mark(self, text: str) -> None:
        self._library.crash_mark(text.encode())

    def mend(self) -> None:
        self._library.crash_mend()

    def count(self) -> int:
        return int(self._library.crash_count())
