"""When a checkpoint begins, and which kind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cutline.coordinator.trigger import EARLY_PAUSE, Start, Trigger, Wanted, usual_pause


def test_periodic_ones_come_every_interval_and_rest_after_any_end() -> None:
    trigger = Trigger(5.0, min_pause=3.0)
    assert trigger.next_start(5.0, 0) == Start(True, None, ())
    trigger.ended(9.0, True, True)
    assert trigger.next_start(10.0, 0) is None
    assert trigger.patience(10.0) == 2.0
    assert trigger.next_start(12.0, 0) == Start(False, None, ())
    trigger.ended(12.5, False, False)
    assert trigger.next_start(17.0, 0) == Start(False, None, ())


def test_who_asks_does_not_wait_for_the_pause() -> None:
    trigger = Trigger(5.0, min_pause=3.0)
    trigger.ended(9.0, True, True)
    trigger.want(Wanted("a", None))
    assert trigger.next_start(9.1, 0) == Start(False, None, ("a",))


def test_the_usual_pause_is_half_of_the_interval_and_no_more_than_a_second() -> None:
    assert [usual_pause(interval) for interval in (None, 0.1, 2.0, 5.0)] == [0.0, 0.05, 1.0, 1.0]


def test_without_an_interval_only_requests_begin_one() -> None:
    trigger = Trigger(None)
    assert trigger.next_start(1e9, 0) is None
    trigger.want(Wanted("a", None))
    trigger.want(Wanted("b", "label"))
    trigger.want(Wanted("c", None))
    assert trigger.next_start(1e9, 0) == Start(True, None, ("a", "c"))
    assert trigger.next_start(1e9, 1) == Start(True, "label", ("b",))
    assert trigger.next_start(1e9, 0) is None


def test_no_more_than_the_most_are_open() -> None:
    trigger = Trigger(None, most_open=2)
    trigger.want(Wanted("a", "one"))
    assert trigger.next_start(0.0, 2) is None
    assert trigger.next_start(0.0, 1) is not None


@given(st.none() | st.integers(1, 5), st.lists(st.booleans(), min_size=1, max_size=40))
def test_every_so_manyth_is_full_and_an_aborted_full_is_made_up_for(
    full_every: int | None, fates: list[bool]
) -> None:
    trigger = Trigger(1.0, full_every=full_every)
    now, since_full = 0.0, None
    for committed in fates:
        now += 1.0
        start = trigger.next_start(now, 0)
        assert start is not None
        due = since_full is None or (full_every is not None and since_full + 1 >= full_every)
        assert start.full == due
        trigger.ended(now, start.full, committed)
        if committed:
            since_full = 0 if start.full else (since_full or 0) + 1


def test_early_ones_are_shared_and_come_only_so_often() -> None:
    trigger = Trigger(None)
    trigger.had_full = True
    for _ in range(3):
        trigger.want_early()
    assert trigger.patience(10.0) == 0.0
    assert trigger.next_start(10.0, 1) == Start(False, None, (), early=True)
    assert trigger.next_start(10.0, 1) is None
    trigger.want_early()
    soon = 10.0 + EARLY_PAUSE / 2
    assert trigger.next_start(soon, 0) is None
    assert 0 < trigger.patience(soon) <= EARLY_PAUSE / 2 + 1e-9
    assert trigger.next_start(11.0, 2) is None
    assert trigger.next_start(11.0, 1) == Start(False, None, (), early=True)


def test_early_ones_do_not_put_off_the_periodic_ones() -> None:
    trigger = Trigger(5.0, min_pause=1.0)
    trigger.had_full = True
    early = []
    for number in range(1, 90):
        now = number / 8
        trigger.want_early()
        start = trigger.next_start(now, 0)
        if start is not None:
            early.append(start.early)
            trigger.ended(now, start.full, True)
    # Though the pause after an end never passes.
    assert early.count(False) == 2 and len(early) > 50


def test_whatever_begins_holds_what_was_asked_for_before() -> None:
    trigger = Trigger(None)
    trigger.want_early()
    trigger.want(Wanted("a", None))
    assert trigger.next_start(1.0, 0) == Start(True, None, ("a",))
    assert trigger.next_start(2.0, 0) is None
