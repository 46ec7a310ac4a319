"""A driver that does what its standard input says, one Python expression a line, and prints what came of it.

Lines of the outcome begin with ``= `` (the repr of a value) or ``! `` (an error's type and text).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import cutline

__all__ = ("Note",)


@cutline.actor(num_cpus=0.1)
class Note:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, value: Any) -> int:
        """Keeps a value; returns how many there are."""
        self.kept.append(value)
        return len(self.kept)

    async def keep_later(self, seconds: float, value: Any) -> int:
        """The same, after a while in which checkpoints are taken."""
        await asyncio.sleep(seconds)
        return self.keep(value)

    def all(self) -> list[Any]:
        """What is kept."""
        return self.kept

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def sleep(self, seconds: float) -> None:
        """Takes its time, and no message meanwhile."""
        time.sleep(seconds)

    async def fail_later(self, seconds: float) -> None:
        """Raises after a while in which checkpoints are taken."""
        await asyncio.sleep(seconds)
        raise ValueError("nothing to be done")


class Session:
    """What the lines can use: the system, and a handle by name."""

    def __init__(self) -> None:
        self.system: Any = None

    def start(self, folder: str, **how: Any) -> int:
        """Starts or resumes the system; returns the checkpoint it went on from."""
        how = {"name": "session", "interval": None, "runtime": "ray", "quiet": True, **how}
        self.system = cutline.start(folder, **how)
        return int(self.system.resumed)

    def connect(self, name: str = "session", **how: Any) -> int:
        """Connects to a system; returns the coordinator's process."""
        self.system = cutline.connect(name, quiet=True, **how)
        return int(self.system.coordinator_pid)

    def __getattr__(self, name: str) -> Any:
        return self.system.handle(name)


if __name__ == "__main__":
    s = Session()
    for line in sys.stdin:
        try:
            print("=", repr(eval(line)), flush=True)
        except Exception as error:
            print("!", type(error).__name__, str(error).replace("\n", " "), flush=True)
