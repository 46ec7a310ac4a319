"""The threads of a participant get the interpreter from a busy handler soon; Python itself waits long."""

from __future__ import annotations

import sys
from pathlib import Path

import cutline


class Asked:
    """Says how its process is set up."""

    def __init__(self, smaller: float = 0.0) -> None:
        if smaller:
            sys.setswitchinterval(smaller)

    def interval(self) -> int:
        """Microseconds after which a thread that waits for the interpreter asks for it."""
        return round(sys.getswitchinterval() * 1e6)


def test_a_thread_asks_for_the_interpreter_soon(tmp_path: Path) -> None:
    """Who lets go for moments makes waiting threads begin anew, so they must not wait long (decision 032)."""
    with cutline.start(tmp_path / "store", name="threads", interval=None, quiet=True) as system:
        asked = system.spawn("asked", Asked)
        assert cutline.get(asked.interval.remote()) == 100
        # A capture puts it back, to what the program has chosen too.
        own = system.spawn("own", Asked, 20e-6)
        for _ in range(3):
            system.checkpoint()
        assert cutline.get(asked.interval.remote()) == 100
        assert cutline.get(own.interval.remote()) == 20
