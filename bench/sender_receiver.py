"""The handlers of channel_vs_transport, the same for both sides of the row.

The clock is the machine's monotonic one, so a time taken in the sender's process and one taken in the
receiver's can be subtracted.
"""

from __future__ import annotations

import time
from typing import Any

import cutline

__all__ = ("CHUNK", "Receiver", "Sender", "send_chunk")

CHUNK = 1000


def send_chunk(to: Any, payload: bytes, count: int) -> None:
    """Tells a receiver ``count`` messages."""
    for _ in range(count):
        to.take.tell(payload)


class Receiver:
    """Counts what it is told."""

    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.expect(0)

    def expect(self, goal: int) -> None:
        """A new measurement begins."""
        self.count = self.bytes = 0
        self.goal = goal
        self.ended = 0.0

    def take(self, payload: bytes) -> None:
        self.count += 1
        self.bytes += len(payload)
        if self.count == self.goal:
            self.ended = self.clock()

    def report(self) -> tuple[int, int, float]:
        """Messages and bytes since `expect`, and when the last one that was expected came."""
        return self.count, self.bytes, self.ended


class Sender:
    """Tells a receiver so many messages, a chunk per handler; tells itself to go on."""

    def __init__(self, to: Any, size: int) -> None:
        self.to = to
        self.payload = bytes(size)
        self.began = 0.0

    def start(self, messages: int) -> None:
        self.began = Receiver.clock()
        self.pump(messages)

    def pump(self, left: int) -> None:
        send_chunk(self.to, self.payload, min(CHUNK, left))
        if left > CHUNK:
            cutline.me().pump.tell(left - CHUNK)

    def report(self) -> float:
        """When the measurement began."""
        return self.began

    def nothing(self) -> None:
        """For the time of a question and its answer."""
