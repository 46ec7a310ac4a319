"""The transport of participants: Unix sockets on one machine, gRPC to the coordinator and other machines."""

from __future__ import annotations

from collections.abc import Callable

from .attendance import Attendance
from .places import both, nearest
from .transport import Post
from .transport_grpc import GrpcTransport
from .transport_stream import SCHEME, StreamTransport

__all__ = ("MixedTransport",)


class MixedTransport:
    """See `cutline.participant.transport.Transport`; ``listen`` as in `StreamTransport`.

    ``network``: ``tls:HOST:0``, where participants on other machines reach this one; None: nowhere.
    """

    def __init__(
        self,
        token: str | bytes,
        post: Post,
        listen: str | None,
        name: str,
        greeting: Callable[[], bytes] = bytes,
        network: str | None = None,
    ) -> None:
        self._stream = StreamTransport(token, post, listen, name, greeting)
        self._grpc = GrpcTransport(token, post, None, name, greeting, network)

    def start(self) -> str:
        near = self._stream.start()
        try:
            return both(near, self._grpc.start())
        except BaseException:
            self._stream.close()
            raise

    @property
    def attendance(self) -> Attendance | None:
        return self._stream.attendance

    def connect(self, address: str, greeting: bytes, key: object) -> None:
        address = nearest(address)
        chosen = self._stream if address.startswith(SCHEME) else self._grpc
        chosen.connect(address, greeting, key)

    def close(self) -> None:
        self._stream.close()
        self._grpc.close()
