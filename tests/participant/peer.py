"""A process at the other end of a link, for tests of the transport: ``python -m tests.participant.peer``.

Arguments: kind of transport, token, address to listen on ("-": none), address to dial ("-": none). Prints
its address. Then it echoes packets on the lane they came on, except: ``count`` on the control lane asks how
many bytes have come on the data lane, ``hang`` leaves by returning from main while links stand, ``drop``
closes the link.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable

from cutline.participant.transport import Event, LinkDown, LinkUp, PacketIn, Post, Transport
from cutline.participant.transport_grpc import GrpcTransport
from cutline.participant.transport_stream import StreamTransport

__all__ = ("KINDS", "main")


def _tls(token: str, post: Post, listen: str | None, name: str, greeting: Callable[[], bytes]) -> Transport:
    """Where a private socket was asked for: loopback, with the certificates of other machines."""
    return GrpcTransport(token, post, "tls:127.0.0.1:0" if listen == "unix:" else listen, name, greeting)


KINDS: dict[str, Callable[..., Transport]] = {"grpc": GrpcTransport, "stream": StreamTransport, "tls": _tls}


def main() -> None:
    kind, token, listen, dial = sys.argv[1:]
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    transport = KINDS[kind](token, events.put, None if listen == "-" else listen, "peer", lambda: b"peer")
    print(transport.start(), flush=True)
    if dial != "-":
        transport.connect(dial, b"dialer", "out")
    received = 0
    links = 0
    while True:
        event = events.get()
        if isinstance(event, LinkUp):
            links += 1
        elif isinstance(event, PacketIn):
            if event.payload == b"hang":
                return
            if event.payload == b"drop":
                event.link.close()
            elif event.payload == b"count":
                event.link.send_control(str(received).encode())
            elif event.control:
                event.link.send_control(event.payload)
            else:
                received += len(event.payload)
                event.link.send(event.payload)
        elif isinstance(event, LinkDown):
            links -= 1
            if not links:
                break
    transport.close()


if __name__ == "__main__":
    main()
