"""While a capture is taken: no garbage collection, and the GIL comes back soon when a call has given it away.

Collections would run destructors of the state in the middle. A thread that wants the GIL back waits for the
switch interval before it asks a busy one for it: as long as some whole captures, several times in one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator

__all__ = ("set_switch_interval", "undisturbed")

_SOON = 20e-6

_lock = threading.Lock()
_inside = 0
_usual = 0.0
_collecting = True


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Several threads may be inside; the last one to leave puts both back."""
    global _inside, _usual, _collecting
    with _lock:
        if not _inside:
            _usual, _collecting = sys.getswitchinterval(), gc.isenabled()
            sys.setswitchinterval(_SOON)
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside = max(0, _inside - 1)
            if not _inside:
                _put_back()


def set_switch_interval(seconds: float) -> None:
    """`sys.setswitchinterval`, rounded: Python cuts it to whole microseconds, and says of some of them that
    they are a little less, so that one would be lost each time that it is put back."""
    sys.setswitchinterval(seconds + 5e-7)


def _put_back() -> None:
    set_switch_interval(_usual)
    if _collecting:
        gc.enable()


def _after_fork_in_child() -> None:
    """The threads that were inside are not there to leave."""
    global _lock, _inside
    _lock = threading.Lock()
    if _inside:
        _inside = 0
        _put_back()


os.register_at_fork(after_in_child=_after_fork_in_child)
