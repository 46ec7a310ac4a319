"""Messages a second from a participant to another, exactly once, against what people send messages with.

On plain processes: a gRPC stream and a Redis stream, one message at a time and in batches of 100. On Ray:
calls of an actor's method that take 100 messages each (one call a message is `channel_vs_ray`). Messages have
100 bytes; every receiver applies each with a handler that counts it, and messages and bytes are checked. A
peer that is slow gets fewer messages a round. None of the peers sends again what was lost, but Redis for a
consumer that comes back; that is what ours does on top. A gRPC stream of payloads in batches is a limit more
than a peer: it names no method, and its row has no target (`channel_vs_transport` compares like with like).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from bench.bench_channel_vs_transport import SIZE, ChannelPair
from bench.peers.grpc_stream import GrpcStream
from bench.peers.redis_stream import RedisStream
from bench.peers.turns import Peers, in_turns
from bench.reasons import first_line
from bench.row import NOT_IN_QUICK, Missing, Row

__all__ = ("GROUP", "measure")

GROUP = "channel"
BATCH = 100
# (row, peer, what it is, target)
_ROWS: tuple[tuple[str, str, str, float | None], ...] = (
    ("channel_vs_grpc", "grpc", "a gRPC stream, each message its own", 1.0),
    ("channel_vs_grpc_batched", "grpc", f"a gRPC stream, {BATCH} payloads in one", None),
    ("channel_vs_redis", "redis", "a Redis stream, each XADD waited for", 1.0),
    ("channel_vs_redis_batched", "redis", f"a Redis stream, {BATCH} XADD in a pipeline", 1.0),
)


def _row(
    name: str, against: str, target: float | None, ours: list[float], theirs: list[float], note: str
) -> Row:
    return Row(
        name=name,
        unit="messages/s",
        samples_ours=ours,
        samples_baseline=theirs,
        at_least=target,
        against=against,
        group=GROUP,
        note=note,
    )


def _on_processes(rounds: int, messages: int, slow: int) -> list[Row | Missing]:
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, Peers() as peers:
        channel = ChannelPair(folder)
        peers.callback(channel.close)
        sides: dict[str, Callable[[], float]] = {"ours": lambda: channel.rate(messages)}
        grpc = peers.open("grpc", GrpcStream)
        if grpc is not None:
            sides["channel_vs_grpc"] = peers.side("grpc", lambda: grpc.rate(slow, SIZE))
            sides["channel_vs_grpc_batched"] = peers.side("grpc", lambda: grpc.rate(messages, SIZE, BATCH))
        redis = peers.open("redis", RedisStream)
        if redis is not None:
            sides["channel_vs_redis"] = peers.side("redis", lambda: redis.rate(slow, SIZE))
            sides["channel_vs_redis_batched"] = peers.side("redis", lambda: redis.rate(messages, SIZE, BATCH))
        samples = in_turns(rounds, sides)
    note = f"{messages:,} messages of {SIZE} B a round ({slow:,} of a peer that sends one at a time), counted"
    rows: list[Row | Missing] = [
        _row(name, against, target, samples["ours"], samples[name], note)
        for name, peer, against, target in _ROWS
        if name in samples and peer not in peers.failed
    ]
    return rows + list(peers.rows({name: peer for name, peer, _against, _target in _ROWS}))


def _on_ray(rounds: int, messages: int) -> Row | Missing:
    try:
        from bench.ray_peers import PlainPair, local_ray
    except ImportError as error:
        return Missing("channel_vs_ray_batched", first_line(error))
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, local_ray(), Peers() as opened:
        channel = ChannelPair(folder, "ray")
        opened.callback(channel.close)
        pair = opened.open("ray", lambda: PlainPair(SIZE, batch=BATCH))
        sides: dict[str, Callable[[], float]] = {"ours": lambda: channel.rate(messages)}
        if pair is not None:
            sides["ray"] = opened.side("ray", lambda: pair.rate(messages))
        samples = in_turns(rounds, sides)
    if "ray" in opened.failed:
        return opened.rows({"channel_vs_ray_batched": "ray"})[0]
    note = f"{messages:,} messages of {SIZE} B a round, counted on both sides"
    against = f"calls between two Ray actors, {BATCH} messages in one, none waited for"
    return _row("channel_vs_ray_batched", against, 1.0, samples["ours"], samples["ray"], note)


def measure(
    *, rounds: int = 5, messages: int = 100_000, slow: int = 5_000, ray: bool = True
) -> list[Row | Missing]:
    """The rows; see the module's head. ``ray`` False: without starting a Ray."""
    rows = _on_processes(rounds, messages, slow)
    rows.append(_on_ray(rounds, messages) if ray else Missing("channel_vs_ray_batched", NOT_IN_QUICK))
    return rows
