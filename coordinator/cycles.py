"""How often the coordinator's process looks for reference cycles.

Of each participant of an open checkpoint it keeps some twenty objects, which are in no cycle and go when the
checkpoint is decided. By its defaults Python looks through the youngest after 700 more, and through all of
them several times in a checkpoint of many participants: a third of the coordinator's processor time for
10,000. The process has nothing to do but coordinate, so it may look seldom.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ("seldom_looking",)

# Objects more than went, then collections of the young and of the middle-aged; Python's are 700, 10, 10.
THRESHOLD = (50_000, 10, 10)


@contextlib.contextmanager
def seldom_looking() -> Iterator[None]:
    """In this process, while it coordinates."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
