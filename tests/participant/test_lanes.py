"""Records of a lane: whatever goes in comes out, and nothing else is ever accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.participant.lanes import HEADER, Outbox, Reassembler, WireError
from cutline.participant.transport import CHUNK

SIZES = st.one_of(
    st.integers(0, 300),
    st.sampled_from((CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 17, CHUNK // 2)),
)


def drain(outbox: Outbox) -> list[tuple[bytes, int]]:
    messages = []
    while outbox:
        messages.append(outbox.take())
    return messages


@given(st.lists(SIZES, max_size=12))
def test_what_goes_in_comes_out_in_order(sizes: list[int]) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    outbox, reassembler = Outbox(), Reassembler()
    for payload in payloads:
        outbox.append(payload)
    messages = drain(outbox)
    assert sum(size for _, size in messages) == sum(sizes)
    got = [payload for message, _ in messages for payload in reassembler.feed(message)]
    assert got == payloads
    assert reassembler.feed(Outbox.farewell()) == []
    assert reassembler.ended


def test_no_piece_is_larger_than_a_chunk() -> None:
    outbox = Outbox()
    outbox.append(b"x" * (5 * CHUNK + 3))
    outbox.append(b"y")
    assert [size for _, size in drain(outbox)] == [CHUNK] * 5 + [3, 1]


def test_what_waits_together_shares_a_message() -> None:
    outbox = Outbox()
    for _ in range(100):
        outbox.append(b"z" * 100)
    assert len(drain(outbox)) == 1


@given(st.binary(max_size=40))
def test_garbage_raises_wire_error_or_is_a_row_of_records(message: bytes) -> None:
    reassembler = Reassembler()
    try:
        payloads = reassembler.feed(message)
    except WireError:
        return
    assert sum(len(payload) for payload in payloads) <= len(message)


def record(kind: int, body: bytes) -> bytes:
    return HEADER.pack(len(body) << 2 | kind) + body


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\x00",
        HEADER.pack(100 << 2) + b"short",
        record(2, b"a last piece first"),
        record(1, b"a piece") + record(0, b"another payload"),
        record(1, b"a piece") + record(3, b""),
        record(1, b""),
        record(3, b"bye with a body"),
        record(3, b"") + record(0, b"after the end"),
    ],
)
def test_records_out_of_order_are_refused(message: bytes) -> None:
    with pytest.raises(WireError):
        Reassembler().feed(message)


def test_nothing_is_accepted_after_the_end() -> None:
    reassembler = Reassembler()
    reassembler.feed(Outbox.farewell())
    with pytest.raises(WireError):
        reassembler.feed(record(0, b"more"))
