"""A program that writes: two participants emit numbered lines for one file, one of them by async handlers.

Run with a folder and a number of lines; it may be killed and run again at any moment, and prints ``written``
when all lines were emitted and the system has stopped in order.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cutline
from cutline.errors import RolledBack
from tests.effects.points import at, i_am

__all__ = ("main",)

TABLE = "sinks.written"


class Sync:
    """Emits from sync handlers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.written = 0

    def write(self, number: int) -> int:
        self.emit(number)
        self.written += 1
        return self.written

    def emit(self, number: int) -> None:
        at("emit")
        for sink in ("lines", "ears", *(["rows"] if os.environ.get("OUTPUT_URL") else [])):
            cutline.emit(sink, {"who": self.name, "number": number})


class Async(Sync):
    """Emits from async handlers, that are run again."""

    async def write(self, number: int) -> int:  # type: ignore[override]
        self.emit(number)
        await cutline.me().rest.remote()
        self.written += 1
        return self.written

    def rest(self) -> None:
        """Nothing."""


def hear(value: Any, key: str) -> None:
    """A function that appends whatever it is given."""
    at("call")
    descriptor = os.open(os.environ["OUTPUT_HEARD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{value['who']} {value['number']} {key}\n".encode())
    os.close(descriptor)
    at("called")


def _again(call: Any) -> Any:
    while True:
        try:
            return call()
        except RolledBack:
            continue


def _write(writer: cutline.Handle, number: int) -> Any:
    return writer.write.options(key=f"{writer!r} {number}").remote(number).result()


def main() -> int:
    """Entry."""
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    i_am("driver")
    sinks: dict[str, Any] = {"lines": cutline.FileSink(folder / "lines"), "ears": hear}
    if url := os.environ.get("OUTPUT_URL"):
        sinks["rows"] = cutline.PostgresSink(url, TABLE)
    with cutline.start(folder / "store", name="writing", interval=0.2, quiet=True, sinks=sinks) as system:
        writers = [system.spawn("ann", Sync, "ann"), system.spawn("bob", Async, "bob")]
        for number in range(times):
            for writer in writers:
                _again(partial(_write, writer, number))
    print("written", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
