"""A driver that is killed, and started again, on a cluster that somebody else has started.

::

    python tests/cluster/leaves.py FOLDER GRACE COUNT

Counts to COUNT in a participant, a step at a time, and prints each; then waits to be killed.
"""

from __future__ import annotations

import sys
import time

import cutline

__all__ = ("Counter",)


@cutline.actor
class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def step(self) -> int:
        """One more."""
        self.count += 1
        return self.count


if __name__ == "__main__":
    folder, grace, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    system = cutline.start(folder, name="leaves", interval=None, runtime="ray", driver_grace=grace)
    counter = system.spawn("counter", Counter)
    print("resumed", system.resumed, flush=True)
    system.loop("count", count, lambda step: print("count", counter.step.remote().result(), flush=True))
    print("waits", flush=True)
    time.sleep(600)
