"""Messages a second through the exactly-once channel, against the same batches and sockets without it.

Two participants in processes of their own: a sender whose handlers tell N messages of 100 bytes, a receiver
that counts them. The baseline (`bench.stream_peer`) has two processes as well, the same transport, encoding,
batches, dispatch and handlers. Messages and bytes are counted by the receivers and checked. Checkpoints are
off here: what they cost is another row's business. The note says what the ratio would be against a bare loop
that has no handles and no desks either.
"""

from __future__ import annotations

import tempfile
import time
from statistics import median
from typing import Any

import cutline
from bench.limits import polled
from bench.row import Row, interleave
from bench.sender_receiver import Receiver, Sender
from bench.stream_peer import StreamPair

__all__ = ("ChannelPair", "measure")

SIZE = 100


class ChannelPair:
    """A system of a sender and a receiver, and one measurement after the other."""

    def __init__(self, folder: str, runtime: str = "process") -> None:
        self.system = cutline.start(
            folder, name="channel", interval=None, fresh=True, quiet=True, runtime=runtime
        )
        self.receiver: Any = self.system.spawn("receiver", Receiver)
        self.sender: Any = self.system.spawn("sender", Sender, self.receiver, SIZE)

    @staticmethod
    def _ask(method: Any, *args: Any) -> Any:
        return method.options(durable=False).remote(*args).result(timeout=60)

    def rate(self, messages: int) -> float:
        """Messages a second, from the sender's first call to the receiver's last."""
        self._ask(self.receiver.expect, messages)
        self._ask(self.sender.start, messages)
        count, size, ended = polled(
            lambda: self._ask(self.receiver.report),
            lambda report: report[2],
            f"the receiver, of {messages} messages through the channel",
        )
        if (count, size) != (messages, messages * SIZE):
            raise AssertionError(f"the channel lost or doubled messages: {count}, {size} bytes of {messages}")
        return messages / float(ended - self._ask(self.sender.report))

    def question(self, times: int) -> float:
        """Seconds from a question of the driver to its answer, one at a time: the median."""
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            self._ask(self.sender.nothing)
            taken.append(time.perf_counter() - began)
        return median(taken)

    def close(self) -> None:
        self.system.stop()


def measure(*, rounds: int = 9, messages: int = 200_000, questions: int = 500) -> Row:
    """The row; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        channel = ChannelPair(folder)
        try:
            stream = StreamPair()
            try:
                ours, baseline = interleave(
                    rounds, lambda: channel.rate(messages), lambda: stream.rate(messages, SIZE)
                )
                again, bare = interleave(
                    max(1, rounds // 3),
                    lambda: channel.rate(messages),
                    lambda: stream.rate(messages, SIZE, bare=True),
                    warm=0,
                )
                question = channel.question(questions)
            finally:
                stream.close()
        finally:
            channel.close()
    return Row(
        name="channel_vs_transport",
        unit="messages/s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_least=0.85,
        note=f"{messages} messages of {SIZE} B a round, counts checked on both sides; against a bare loop "
        f"{median(a / b for a, b in zip(again, bare, strict=True)):.2f}; a question of the driver that is "
        f"not logged is answered in {question * 1e6:.0f} us (median of {questions})",
    )
