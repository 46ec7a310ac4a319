"""Whether a thread that is not Cutline's could write to a participant's state while it is captured.

Cutline's own threads have names that begin with ``cutline-``, and write to nobody's state; nor does the
thread of grpc.aio that waits for its events, which has the name of its function. Those in which the functions
of effects run (``cutline-effect``) run code of the program.
"""

from __future__ import annotations

import sys
import threading

__all__ = ("others_run",)

_OURS, _EFFECTS, _POLLER = "cutline-", "cutline-effect", "(_poll_wrapper)"


def others_run() -> bool:
    """Whether the process has a thread that runs Python besides this one and Cutline's own."""
    ours = {thread.ident for thread in threading.enumerate() if _is_ours(thread.name)}
    ours.add(threading.get_ident())
    return not ours.issuperset(sys._current_frames())


def _is_ours(name: str) -> bool:
    return (name.startswith(_OURS) and not name.startswith(_EFFECTS)) or name.endswith(_POLLER)
