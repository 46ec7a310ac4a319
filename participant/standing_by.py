"""How a spare host learns whom it is to host: it says which launch it is, and waits for that one's document.

The coordinator's end is `coordinator.spares`. A connection that ends before the document is whole says that
there is nothing to do: the coordinator has let go of the spare, or is gone.
"""

from __future__ import annotations

import socket

__all__ = ("LAUNCH_BYTES", "await_document", "hand_over", "received")

# Letters of a launch's nonce.
LAUNCH_BYTES = 12
_LENGTH = 8


def await_document(path: str, launch: str) -> bytes:
    """What the coordinator has for this spare, however long that takes; empty if that is nothing."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            connection.sendall(launch.encode("ascii"))
            length = int.from_bytes(received(connection, _LENGTH), "big")
            document = received(connection, length)
        except OSError:
            return b""
    # Part of one is as good as none: the coordinator was lost while it wrote.
    return document if len(document) == length else b""


def hand_over(connection: socket.socket, document: bytes) -> bool:
    """Sends a spare its document and hangs up; whether it has gone out."""
    with connection:
        try:
            connection.sendall(len(document).to_bytes(_LENGTH, "big") + document)
        except OSError:
            return False
    return True


def received(connection: socket.socket, length: int) -> bytes:
    """So many bytes; fewer if the other end has closed."""
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)
