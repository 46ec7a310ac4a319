"""While a capture is taken: no garbage collection, and the GIL comes back soon when a call has given it away.

Collections would run destructors of the state in the middle. A thread that wants the GIL back waits for the
switch interval, five milliseconds, before it asks a busy one for it: as long as several whole captures.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

__all__ = ("undisturbed",)

_SOON = 20e-6

_lock = threading.Lock()
_inside = 0
_usual = 0.0


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Several threads may be inside; the last one to leave puts the switch interval back."""
    global _inside, _usual
    collecting = gc.isenabled()
    gc.disable()
    with _lock:
        if not _inside:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(_SOON)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                sys.setswitchinterval(_usual)
        if collecting:
            gc.enable()
