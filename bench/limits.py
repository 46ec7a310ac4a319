"""How long anybody is waited for: who hangs ends a row with an error, and not the run without one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ("PATIENCE", "kill_group", "polled")

T = TypeVar("T")

# Seconds for one order. The longest that are given take half a minute on two cores.
PATIENCE = 300.0


def polled(ask: Callable[[], T], done: Callable[[T], object], what: str, patience: float = PATIENCE) -> T:
    """Asks until the answer says that it is done; gives that answer.

    Raises:
        TimeoutError: it was not done in time; says ``what`` was waited for, and the newest answer.
    """
    until = time.monotonic() + patience
    while not done(found := ask()):
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not done after {patience:g} s, but {found!r}")
        time.sleep(0.05)
    return found


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Ends a process that leads a session, and what it has started with it: servers, a Java machine."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        # Nobody of them is left.
        process.poll()
    process.wait()
