"""Packets between a participant and the coordinator: msgpack maps with a ``kind``.

Every packet carries the epoch it was said in and, from the coordinator, its fencing ``token``; a
participant obeys only tokens at least as high as the highest it has seen. Kinds, participant to
coordinator: hello (the greeting), prepared, complained, restored, restore_failed, failed, resolve,
spawn, told_of_spawns, undelivered, trouble, beat, request. Coordinator to participant: welcome (the
greeting), born, initiate, settled, roll_back, resume, resolved, spawned, spawning, wait, halt, stop,
reply, notice.
"""

from __future__ import annotations

from typing import Any

import msgpack

__all__ = ("pack_control", "unpack_control")


def pack_control(kind: str, **fields: Any) -> bytes:
    """One packet."""
    packed: bytes = msgpack.packb({"kind": kind, **fields}, unicode_errors="surrogatepass")
    return packed


def unpack_control(packet: bytes) -> dict[str, Any]:
    """The reverse of `pack_control`.

    Raises:
        ValueError: bytes that are no such packet.
    """
    try:
        doc = msgpack.unpackb(
            packet,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            max_bin_len=len(packet),
            max_str_len=len(packet),
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"not a control packet: {error}") from error
    if not isinstance(doc, dict) or not isinstance(doc.get("kind"), str):
        raise ValueError("not a control packet: it has no kind")
    return doc
