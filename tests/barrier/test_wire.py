"""Packets as bytes: what is packed comes back, and nothing else does."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.barrier import ChannelTable, Frame, InPart, Mark, Member, OutPart, Positions, Spawn, Stamp, wire
from cutline.barrier.cut import InClaim, OutClaim, claims_of
from cutline.barrier.events import AckArrived, FrameArrived, MarkerArrived

numbers = st.integers(0, 2**63)
digests = st.integers(0, 2**64 - 1)
members = st.builds(Member, st.text(max_size=20), numbers)
stamps = st.builds(Stamp, st.text(max_size=20), numbers, members, members)
marks = st.lists(st.builds(Mark, numbers, numbers, st.booleans()), max_size=4).map(tuple)
frames = st.builds(Frame, numbers, numbers, st.binary(max_size=50), digests)
some_frames = st.lists(frames, max_size=3).map(tuple)
tables = st.builds(
    ChannelTable,
    st.dictionaries(members, st.builds(InPart, numbers, numbers, digests, some_frames), max_size=3),
    st.dictionaries(members, st.builds(OutPart, numbers, numbers, digests, some_frames), max_size=3),
    st.lists(st.builds(Spawn, numbers, st.text(max_size=9), st.binary(max_size=9)), max_size=3).map(tuple),
)

A, B = Member("A", 1), Member("B", 2)
STAMP = Stamp("run", 3, A, B)
FRAME = Frame(1, 2, b"xy", 7)
FIELDS: dict[str, list[Any]] = {
    "frame": list(msgpack.unpackb(wire.pack_frame(STAMP, (Mark(5, 1, True),), 4, FRAME))),
    "marker": list(msgpack.unpackb(wire.pack_marker(STAMP, (Mark(5, 1, True),), 4))),
    "ack": list(msgpack.unpackb(wire.pack_ack(STAMP, Positions(3, 2, 9)))),
}


@given(stamps, marks, numbers, frames)
def test_a_frame_comes_back(stamp: Stamp, marks: tuple[Mark, ...], committed: int, frame: Frame) -> None:
    packet = wire.pack_frame(stamp, marks, committed, frame)
    assert wire.unpack(packet) == FrameArrived(stamp, marks, committed, frame)


@given(stamps, marks, numbers)
def test_a_marker_comes_back(stamp: Stamp, marks: tuple[Mark, ...], committed: int) -> None:
    assert wire.unpack(wire.pack_marker(stamp, marks, committed)) == MarkerArrived(stamp, marks, committed)


@given(stamps, st.builds(Positions, numbers, numbers, numbers))
def test_an_ack_comes_back(stamp: Stamp, positions: Positions) -> None:
    assert wire.unpack(wire.pack_ack(stamp, positions)) == AckArrived(stamp, positions)


def test_what_comes_back_has_the_types_of_what_went() -> None:
    event = wire.unpack(wire.pack_frame(STAMP, [Mark(5, 1, True)], 4, FRAME))
    assert isinstance(event, FrameArrived)
    assert [type(part) for part in (event.stamp, event.stamp.sender, event.stamp.receiver)] == [
        Stamp,
        Member,
        Member,
    ]
    assert isinstance(event.marks, tuple) and isinstance(event.marks[0], Mark)
    assert isinstance(event.frame, Frame)


def test_no_marks_come_back_as_a_tuple() -> None:
    event = wire.unpack(wire.pack_marker(STAMP, [], 4))
    assert event == MarkerArrived(STAMP, (), 4)


def test_a_body_larger_than_any_default_limit_comes_back() -> None:
    frame = Frame(1, 1, bytes(3 << 20), 7)
    assert wire.unpack(wire.pack_frame(STAMP, (), 0, frame)) == FrameArrived(STAMP, (), 0, frame)


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error(packet: bytes) -> None:
    with pytest.raises(ValueError):
        wire.unpack(packet)


scalars = st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats() | st.text() | st.binary()
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=14) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)
likely_fields = (1, 2, 3, "A", "run", (), [[1, 2, True]], [[1, 2]], b"x", True)
likely = st.lists(st.sampled_from(likely_fields), max_size=14)


@given(documents | likely)
def test_any_document_is_a_packet_or_a_value_error(document: Any) -> None:
    packet = msgpack.packb(document)
    try:
        event = wire.unpack(packet)
    except ValueError:
        return
    again = {
        FrameArrived: lambda e: wire.pack_frame(e.stamp, e.marks, e.committed, e.frame),
        MarkerArrived: lambda e: wire.pack_marker(e.stamp, e.marks, e.committed),
        AckArrived: lambda e: wire.pack_ack(e.stamp, e.positions),
    }[type(event)](event)
    assert msgpack.unpackb(again) == msgpack.unpackb(packet)


@pytest.mark.parametrize("kind", FIELDS)
def test_the_whole_packet_is_one(kind: str) -> None:
    wire.unpack(msgpack.packb(FIELDS[kind]))


@pytest.mark.parametrize(
    ("kind", "place", "wrong"),
    [
        (kind, place, wrong)
        for kind, fields in FIELDS.items()
        for place in range(len(fields))
        for wrong in (None, 1.5, True, "1", b"1", 7, [], [1], {"a": 1})
        if type(wrong) is not type(fields[place]) or (place == 0 and wrong == 7) or wrong == [1]
    ],
)
def test_a_field_of_another_type_is_refused(kind: str, place: int, wrong: Any) -> None:
    fields = list(FIELDS[kind])
    fields[place] = wrong
    with pytest.raises(ValueError, match="no peer sends"):
        wire.unpack(msgpack.packb(fields))


@pytest.mark.parametrize("kind", FIELDS)
def test_a_field_less_or_more_is_refused(kind: str) -> None:
    for fields in (FIELDS[kind][:-1], [*FIELDS[kind], 1]):
        with pytest.raises(ValueError):
            wire.unpack(msgpack.packb(fields))


@pytest.mark.parametrize("mark", [[], [1, 2], [1, 2, 3], [1, 2, True, 4], ["1", 2, True], 5, "abc", None])
def test_a_mark_of_another_shape_is_refused(mark: Any) -> None:
    fields = list(FIELDS["marker"])
    fields[-1] = [[5, 1, True], mark]
    with pytest.raises(ValueError, match="marks"):
        wire.unpack(msgpack.packb(fields))


@given(st.sampled_from(sorted(FIELDS)), st.data())
def test_a_cut_packet_is_a_value_error(kind: str, draw: st.DataObject) -> None:
    packet = msgpack.packb(FIELDS[kind])
    with pytest.raises(ValueError):
        wire.unpack(packet[: draw.draw(st.integers(0, len(packet) - 1))])


@given(tables)
def test_the_sections_of_an_image_come_back(table: ChannelTable) -> None:
    packed = msgpack.packb(
        [wire.incoming_to_doc(table), wire.outgoing_to_doc(table), wire.spawns_to_doc(table)]
    )
    assert wire.table_from_docs(*msgpack.unpackb(packed)) == table


@given(tables)
def test_claims_come_back(table: ChannelTable) -> None:
    packed = msgpack.packb(wire.claims_to_doc(table))
    assert wire.claims_from_doc(msgpack.unpackb(packed)) == claims_of(table)


def test_claims_hold_no_bodies() -> None:
    table = ChannelTable({A: InPart(1, 2, 7, (FRAME,))}, {B: OutPart(2, 0, 0, (FRAME,))})
    assert b"xy" not in msgpack.packb(wire.claims_to_doc(table))
    claims = wire.claims_from_doc(wire.claims_to_doc(table))
    assert claims.incoming == {A: InClaim(1, 2, 7)}
    assert claims.outgoing == {B: OutClaim(2, 0, {0: 0, 2: 7})}


def test_a_packet_of_a_later_kind_is_refused() -> None:
    for kind in (0, 4):
        with pytest.raises(ValueError, match=f"kind {kind}"):
            wire.unpack(msgpack.packb([kind, *FIELDS["ack"][1:]]))


def test_the_protocol_has_a_number() -> None:
    assert wire.PROTOCOL == 1
