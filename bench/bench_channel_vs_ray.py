"""Messages a second between two Ray actors: through the exactly-once channel, against a plain Ray call each.

Both sides are two actors on one local Ray. Ours are participants: handlers of the sender tell the receiver
messages of 100 bytes. The plain ones do what a program without Cutline does: each message is a call of the
receiver's method that nobody waits for. The receivers count messages and bytes, which is checked. Rates are
taken from the sender's first call to the receiver's last; a round of the plain side has fewer messages,
because it would take a minute.
"""

from __future__ import annotations

import tempfile

from bench.bench_channel_vs_transport import SIZE, ChannelPair
from bench.ray_peers import PlainPair, local_ray
from bench.row import Row, interleave

__all__ = ("measure",)


def measure(*, rounds: int = 8, messages: int = 200_000, plain: int = 5_000) -> Row:
    """The row; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, local_ray():
        channel = ChannelPair(folder, "ray")
        try:
            pair = PlainPair(SIZE)
            try:
                ours, baseline = interleave(rounds, lambda: channel.rate(messages), lambda: pair.rate(plain))
            finally:
                pair.close()
        finally:
            channel.close()
    return Row(
        name="channel_vs_ray",
        unit="messages/s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_least=100,
        note=f"{SIZE} B; {messages} messages a round through the channel, {plain} Ray calls, not waited for; "
        "counts checked on both sides",
    )
