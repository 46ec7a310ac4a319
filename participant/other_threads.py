"""Whether a thread that is not Cutline's could write to a participant's state while it is captured.

Cutline's own threads have names that begin with ``cutline-``, and write to nobody's state; nor does the
thread of grpc.aio that waits for its events, which has the name of its function, or the one in which Ray's
workers collect garbage when Ray says so. Those in which the functions of effects run (``cutline-effect``) run
code of the program.

Threads that Python does not know, as of a library in C++, are not counted, nor are other processes that share
memory with this one.
"""

from __future__ import annotations

import sys
import threading

__all__ = ("others_run",)

_OURS, _EFFECTS, _POLLER, _RAYS = "cutline-", "cutline-effect", "(_poll_wrapper)", "PythonGCThread"


def others_run() -> bool:
    """Whether the process has a thread that runs Python besides this one, Cutline's own, and those two."""
    ours = {thread.ident for thread in threading.enumerate() if _is_ours(thread.name)}
    ours.add(threading.get_ident())
    return not ours.issuperset(sys._current_frames())


def _is_ours(name: str) -> bool:
    return (name.startswith(_OURS) and not name.startswith(_EFFECTS)) or name.endswith((_POLLER, _RAYS))
