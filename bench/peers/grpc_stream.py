"""A plain gRPC stream of messages from one process to another, as grpcio's own guide writes it.

The receiver's service applies each message with the handler that our receiver has. ``batch`` messages travel
in one gRPC message, a msgpack list, if it is more than 1. Nothing is numbered, kept or sent again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from bench.peers.child import Child, serve
from bench.sender_receiver import Receiver

__all__ = ("GrpcStream",)

_METHOD = "/bench.Stream/Take"


def _taken(receiver: Receiver, batch: int, requests: Iterator[bytes]) -> None:
    import msgpack

    if batch == 1:
        for payload in requests:
            receiver.take(payload)
        return
    for body in requests:
        for payload in msgpack.unpackb(body):
            receiver.take(payload)


@contextmanager
def _receiving() -> Iterator[Callable[..., dict[str, Any]]]:
    import grpc

    receiver = Receiver()
    batch = 1

    def take(requests: Iterator[bytes], _context: Any) -> bytes:
        _taken(receiver, batch, requests)
        return b""

    def answer(messages: int = 0, **order: Any) -> dict[str, Any]:
        nonlocal batch
        if messages:
            batch = order["batch"]
            receiver.expect(messages)
            return {"port": port}
        return {"count": receiver.count, "bytes": receiver.bytes, "ended": receiver.ended}

    handlers = {"Take": grpc.stream_unary_rpc_method_handler(take)}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Stream", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield answer
    finally:
        server.stop(None)


def _bodies(payload: bytes, messages: int, batch: int) -> Iterator[bytes]:
    import msgpack

    if batch == 1:
        for _ in range(messages):
            yield payload
        return
    for first in range(0, messages, batch):
        yield msgpack.packb([payload] * min(batch, messages - first))


@contextmanager
def _sending() -> Iterator[Callable[..., dict[str, Any]]]:
    import grpc

    def answer(port: int, messages: int, size: int, batch: int) -> dict[str, Any]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
            call = channel.stream_unary(_METHOD)
            began = Receiver.clock()
            call(_bodies(bytes(size), messages, batch), timeout=60)
        return {"began": began}

    yield answer


class GrpcStream:
    """Both processes, and one measurement after the other."""

    def __init__(self) -> None:
        self._receiver = Child("bench.peers.grpc_stream", "receive")
        try:
            self._sender = Child("bench.peers.grpc_stream", "send")
        except BaseException:
            self._receiver.close()
            raise

    def rate(self, messages: int, size: int, batch: int = 1) -> float:
        """Messages a second, from the sender's first call to the receiver's last."""
        port = self._receiver.ask(messages=messages, batch=batch)["port"]
        began = self._sender.ask(port=port, messages=messages, size=size, batch=batch)["began"]
        found = self._receiver.ask()
        if (found["count"], found["bytes"]) != (messages, messages * size):
            raise AssertionError(f"the gRPC stream lost or doubled messages: {found} of {messages}")
        return messages / float(found["ended"] - began)

    def close(self) -> None:
        """Ends both."""
        self._sender.close()
        self._receiver.close()


if __name__ == "__main__":
    serve(_receiving if sys.argv[1] == "receive" else _sending)
