"""The transport of participants: Unix sockets between each other, gRPC to the coordinator."""

from __future__ import annotations

from collections.abc import Callable

from .transport import Post
from .transport_grpc import GrpcTransport
from .transport_stream import SCHEME, StreamTransport

__all__ = ("MixedTransport",)


class MixedTransport:
    """See `cutline.participant.transport.Transport`; ``listen`` as in `StreamTransport`."""

    def __init__(
        self,
        token: str | bytes,
        post: Post,
        listen: str | None,
        name: str,
        greeting: Callable[[], bytes] = bytes,
    ) -> None:
        self._stream = StreamTransport(token, post, listen, name, greeting)
        self._grpc = GrpcTransport(token, post, None, name)

    def start(self) -> str:
        address = self._stream.start()
        self._grpc.start()
        return address

    def connect(self, address: str, greeting: bytes, key: object) -> None:
        chosen = self._stream if address.startswith(SCHEME) else self._grpc
        chosen.connect(address, greeting, key)

    def close(self) -> None:
        self._stream.close()
        self._grpc.close()
