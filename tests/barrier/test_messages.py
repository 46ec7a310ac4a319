"""What travels: value types and the rolling digest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cutline.barrier import Member
from cutline.barrier.messages import chain

pieces = st.lists(st.tuples(st.integers(1, 2**40), st.binary(max_size=20)), max_size=5)


def rolled(frames: list[tuple[int, bytes]], start: int = 0) -> int:
    digest = start
    for last, body in frames:
        digest = chain(digest, last, body)
    return digest


@given(pieces)
def test_the_digest_fits_64_bits_and_depends_on_nothing_else(frames: list[tuple[int, bytes]]) -> None:
    assert 0 <= rolled(frames) < 2**64
    assert rolled(frames) == rolled(list(frames))


@given(pieces, pieces)
def test_frames_after_a_frame_continue_its_digest(
    first: list[tuple[int, bytes]], second: list[tuple[int, bytes]]
) -> None:
    assert rolled(second, rolled(first)) == rolled(first + second)


def test_the_digest_sees_each_of_its_arguments() -> None:
    some = [chain(0, 1, b"a"), chain(1, 1, b"a"), chain(0, 2, b"a"), chain(0, 1, b"b"), chain(0, 1, b"")]
    assert len(set(some)) == len(some)


def test_the_digest_sees_order_and_the_cut_of_frames() -> None:
    assert rolled([(1, b"a"), (2, b"b")]) != rolled([(1, b"b"), (2, b"a")])
    assert rolled([(1, b"a"), (2, b"b")]) != rolled([(2, b"ab")])


def test_the_digest_does_not_change_between_releases() -> None:
    assert chain(0, 1, b"message") == 0x73FB1CF20D561766
    assert chain(2**64 - 1, 2**40, b"message") == 0xEB8C07DBD00A76E7


def test_a_reused_name_is_another_member() -> None:
    assert Member("A", 1) != Member("A", 2)
    assert len({Member("A", 1): 0, Member("A", 2): 0, Member("A", 1): 1}) == 2
