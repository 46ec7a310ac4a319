"""Whether a thread that is not Cutline's could write to a participant's state while it is captured.

Cutline's own threads have names that begin with ``cutline-``, and write to nobody's state; so does the
thread of grpc.aio that waits for its events, which has the name of its function.
"""

from __future__ import annotations

import sys
import threading

__all__ = ("others_run",)

_OURS, _POLLER = "cutline-", "(_poll_wrapper)"


def others_run() -> bool:
    """Whether the process has a thread that runs Python besides this one and Cutline's own."""
    ours = {
        thread.ident
        for thread in threading.enumerate()
        if thread.name.startswith(_OURS) or thread.name.endswith(_POLLER)
    }
    ours.add(threading.get_ident())
    return not ours.issuperset(sys._current_frames())
