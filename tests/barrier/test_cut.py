"""The check that every cut passes: each way to be wrong is seen, each right cut passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.barrier import ChannelTable, Frame, InPart, Member, OutPart
from cutline.barrier.cut import Claims, Departed, InClaim, OutClaim, check, claims_of, in_flight, named

A, B, C = Member("A", 1), Member("B", 2), Member("C", 3)
DIGESTS = [100 + n for n in range(20)]


def cut(out: OutClaim | None, into: InClaim | None) -> dict[Member, Claims]:
    """Claims of A and B about the channel A -> B."""
    return {
        A: Claims({}, {B: out} if out else {}),
        B: Claims({A: into} if into else {}, {}),
    }


def sent(last: int, released: int = 0, step: int = 1) -> OutClaim:
    ends = {n: DIGESTS[n] for n in (*range(released, last, step), last)}
    return OutClaim(last, released, ends)


def got(processed: int, upto: int) -> InClaim:
    return InClaim(processed, upto, DIGESTS[upto])


def fault(claims: dict[Member, Claims]) -> str:
    found = check(claims)
    assert len(found) < 2
    return found[0] if found else ""


def test_nobody_and_nothing_is_a_cut() -> None:
    assert check({}) == []
    assert check({A: Claims({}, {})}) == []


WHOLE = [(0, 0, 0), (0, 3, 0), (2, 3, 3), (3, 3, 1), (6, 6, 6)]


@pytest.mark.parametrize(("processed", "upto", "released"), WHOLE)
def test_a_channel_without_a_gap_passes(processed: int, upto: int, released: int) -> None:
    assert fault(cut(sent(6, released), got(processed, upto))) == ""


def test_a_channel_that_only_the_sender_names_passes() -> None:
    assert fault(cut(OutClaim(2, 0, {0: 0, 2: 7}), None)) == ""


def test_a_receiver_may_name_a_channel_of_nothing() -> None:
    assert fault(cut(None, InClaim(0, 0, 0))) == ""


def test_what_the_sender_never_sent_was_not_received() -> None:
    assert "received 1, but the sender's mark is 0" in fault(cut(None, InClaim(0, 1, 5)))


def test_processed_beyond_received() -> None:
    assert "processed 3 beyond what was received, 2" in fault(cut(sent(6), got(3, 2)))


def test_received_beyond_the_mark() -> None:
    assert "received 7, but the sender's mark is 6" in fault(cut(sent(6), got(0, 7)))


def test_released_beyond_received() -> None:
    assert "messages 3..4 are in neither image" in fault(cut(sent(6, released=4), got(1, 2)))


def test_released_without_a_receiver_s_part() -> None:
    assert "messages 1..2 are in neither image" in fault(cut(sent(6, released=2), None))


def test_received_up_to_no_frame_end() -> None:
    assert "the receiver ends at 3" in fault(cut(sent(6, released=2, step=2), got(0, 3)))


def test_another_digest() -> None:
    assert "digests of both ends differ at message 3" in fault(cut(sent(6), InClaim(0, 3, 1)))


def test_a_sender_s_part_that_ends_before_its_mark() -> None:
    out = OutClaim(6, 0, {0: 0, 4: DIGESTS[4]})
    assert "the sender's part ends at 4, its mark is 6" in fault(cut(out, got(0, 4)))


def test_a_sender_s_part_that_ends_beyond_its_mark() -> None:
    out = OutClaim(4, 0, {0: 0, 4: DIGESTS[4], 5: DIGESTS[5]})
    assert "the sender's part ends at 5, its mark is 4" in fault(cut(out, got(0, 4)))


def test_somebody_outside_released_nothing() -> None:
    claims = {A: Claims({}, {C: OutClaim(2, 0, {0: 0, 2: 7})})}
    assert check(claims) == []
    claims = {A: Claims({}, {C: OutClaim(2, 2, {2: 7})})}
    assert check(claims) == ["channel A#1 -> C#3: 2 messages were released by somebody outside the cut"]


OUTSIDE = [(InClaim(0, 0, 0), 0), (InClaim(0, 1, 7), 1), (InClaim(1, 0, 7), 1)]


@pytest.mark.parametrize(("into", "wrong"), OUTSIDE)
def test_nothing_of_somebody_outside_is_in_the_cut(into: InClaim, wrong: int) -> None:
    found = check({B: Claims({C: into}, {})})
    assert len(found) == wrong
    if found:
        assert f"{into.upto} messages from somebody outside the cut are in it" in found[0]


def test_each_channel_is_named_once() -> None:
    claims = {
        A: Claims({B: InClaim(0, 5, 1)}, {B: sent(6, released=2)}),
        B: Claims({A: InClaim(0, 1, 1)}, {A: OutClaim(0, 0, {0: 0})}),
    }
    found = check(claims)
    assert [line.split(":")[0] for line in found] == ["channel B#2 -> A#1", "channel A#1 -> B#2"]


def test_incarnations_are_different_ends() -> None:
    other = Member("B", 9)
    found = check({A: Claims({}, {other: sent(3, released=3)}), B: Claims({A: got(3, 3)}, {})})
    assert len(found) == 2


def test_a_channel_to_oneself_is_a_channel() -> None:
    claims = {A: Claims({A: got(1, 3)}, {A: sent(3, released=3)})}
    assert check(claims) == []
    claims = {A: Claims({A: got(1, 2)}, {A: sent(3, released=3)})}
    assert len(check(claims)) == 1


def test_claims_are_the_table_without_bodies() -> None:
    table = ChannelTable(
        {B: InPart(1, 3, 9, (Frame(2, 3, b"xx", 9),))},
        {C: OutPart(5, 2, 7, (Frame(3, 4, b"yy", 8), Frame(5, 5, b"z", 6)))},
    )
    assert claims_of(table) == Claims({B: InClaim(1, 3, 9)}, {C: OutClaim(5, 2, {2: 7, 4: 8, 5: 6})})


def test_in_flight_is_sent_and_not_processed() -> None:
    claims = {
        A: Claims({}, {B: sent(6), C: sent(2)}),
        B: Claims({A: got(4, 5)}, {A: sent(3)}),
    }
    assert in_flight(claims) == (6 - 4) + 2 + 3
    assert in_flight({}) == 0


@given(
    st.lists(st.integers(1, 4), max_size=6),
    st.data(),
)
def test_only_cuts_without_a_gap_pass(sizes: list[int], draw: st.DataObject) -> None:
    """Against the definition: processed, the receiver's part and the sender's part cover 1..mark."""
    ends = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    last = draw.draw(st.sampled_from(ends))
    released = draw.draw(st.sampled_from(ends))
    upto = draw.draw(st.sampled_from(ends))
    processed = draw.draw(st.integers(0, ends[-1]))
    out = OutClaim(last, released, {n: DIGESTS[n % 20] for n in ends if released <= n <= last})
    if not out.ends:
        return
    into = InClaim(processed, upto, DIGESTS[upto % 20])
    in_images = {*range(1, upto + 1), *range(released + 1, last + 1)}
    right = processed <= upto <= last and in_images == set(range(1, last + 1))
    assert (check(cut(out, into)) == []) is right


# -- who has left --------------------------------------------------------------------------------------


def test_the_last_claims_of_a_receiver_stand_for_it() -> None:
    left = {B: Departed(Claims({A: got(3, 3)}, {}))}
    assert check({A: Claims({}, {B: sent(5, 2)})}, left) == []
    assert check({A: Claims({}, {B: sent(5, 3)})}, left) == []
    (violation,) = check({A: Claims({}, {B: sent(5, 4)})}, left)
    assert "messages 4..4 are in neither image" in violation
    (violation,) = check({A: Claims({}, {B: sent(2, 1)})}, left)
    assert "received 3" in violation


def test_the_last_claims_of_a_sender_stand_for_it() -> None:
    left = {A: Departed(Claims({}, {B: OutClaim(3, 3, {3: DIGESTS[3]})}))}
    assert check({B: Claims({A: got(1, 3)}, {})}, left) == []
    (violation,) = check({B: Claims({A: got(1, 2)}, {})}, left)
    assert "messages 3..3 are in neither image" in violation


def test_who_has_closed_its_channel_says_nothing_and_is_asked_nothing() -> None:
    left = {B: Departed(Claims({A: got(3, 3)}, {A: OutClaim(3, 3, {3: DIGESTS[3]})}))}
    assert check({A: Claims({}, {})}, left) == []
    assert in_flight({A: Claims({}, {})}, left) == 0


def test_what_one_that_left_has_not_taken_is_in_flight_and_so_is_what_it_sent() -> None:
    left = {B: Departed(Claims({A: got(3, 3)}, {A: OutClaim(7, 7, {7: DIGESTS[7]})}))}
    assert in_flight({A: Claims({B: got(5, 7)}, {B: sent(5, 2)})}, left) == 2 + 2


def test_a_cut_speaks_of_who_is_named_by_a_channel_or_by_a_spawn() -> None:
    left = {
        A: Departed(Claims({}, {})),
        B: Departed(Claims({}, {}), (C, 4)),
        C: Departed(Claims({}, {})),
    }
    assert named({}, left) == {}
    assert list(named({C: Claims({A: got(0, 0)}, {})}, left)) == [A]
    assert list(named({C: Claims({}, {A: sent(0)})}, left)) == [A]
    assert list(named({C: Claims({}, {}, (3, 4))}, left)) == [B]
    assert list(named({C: Claims({}, {}, (3,)), A: Claims({}, {}, (4,))}, left)) == []
