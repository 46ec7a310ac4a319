"""The coordinator's process: from its launch document to its exit.

The driver starts it with a document on standard input and keeps the pipe open: its end means that the
driver is gone, and the system, which lives and dies with its driver here, stops at the newest checkpoint.
A driver that sees the coordinator die starts another one with ``take_over``.

The first line on standard output (base64 of msgpack) says which lineage runs, or which error kept it from
starting.
"""

from __future__ import annotations

import base64
import os
import signal
import sys
import threading
from typing import Any

import msgpack

from cutline.participant.messages import pack_error

from .begin import begin, coordinate
from .runner import Coordinator

__all__ = ("main",)


def main() -> int:
    """Entry of ``python -m cutline.coordinator.process``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    length = int.from_bytes(sys.stdin.buffer.read(4), "big")
    spec = msgpack.unpackb(sys.stdin.buffer.read(length), strict_map_key=False)
    try:
        coordinator, store = begin(spec)
    except Exception as error:
        _first_line({"error": pack_error(error, participant="coordinator")})
        return 1
    _watch_driver(coordinator)
    try:
        about: dict[str, Any] = {"lineage": coordinator.lineage, "resumed": coordinator.resumed}
        about["damaged"] = coordinator.damage
        _first_line(about)
    except BrokenPipeError:
        # The driver died while this began: what was begun is to be ended in order.
        coordinator.stop("the driver is gone")
    coordinate(coordinator, store, spec)
    return 0


def _first_line(doc: dict[str, Any]) -> None:
    sys.stdout.write(base64.b64encode(msgpack.packb(doc)).decode() + "\n")
    sys.stdout.flush()


def _watch_driver(coordinator: Coordinator) -> None:
    def watch() -> None:
        # Not through sys.stdin: its lock, held by a thread at exit, is fatal to the interpreter.
        while os.read(sys.stdin.fileno(), 4096):
            continue
        coordinator.post(lambda: coordinator.stop("the driver is gone"))

    threading.Thread(target=watch, name="cutline-driver-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
