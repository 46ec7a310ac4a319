"""Memory for large copies is used again by the next capture, and by nothing else."""

from __future__ import annotations

import errno
import gc
import mmap
import weakref

import numpy as np
import pytest

from cutline.participant.large_copies import LargeCopies
from cutline.participant.memory import address
from cutline.participant.shared_memory import LARGEST, Buffers

SIZE = LARGEST + (1 << 20)


def test_what_nobody_refers_to_is_used_again() -> None:
    large = LargeCopies()
    first = large.room(SIZE)
    first[:] = 7
    place, view = address(first), memoryview(first[100:200].data)
    del first
    other = large.room(SIZE)
    assert address(other) != place, "somebody refers to a part of it"
    assert bytes(view) == b"\7" * 100
    del view
    again = large.room(SIZE)
    assert address(again) == place and (again[:10] == 7).all()
    del again
    assert address(large.room(2 * SIZE)) not in (place, address(other)), "it fits no other size"


def test_what_lies_idle_is_given_up() -> None:
    large = LargeCopies()
    gc.disable()
    try:
        for _ in range(20):
            del (_ := [large.room(SIZE) for _ in range(3)])[:]
        assert len(large._idle) == 3
        mapped = [weakref.ref(block.memory) for block in large._idle]
        large.give_up()
        assert all(memory() is None for memory in mapped), "at once, without a collection"
    finally:
        gc.enable()


def test_no_two_copies_meet() -> None:
    """Whoever refers to what was lent sees only what was written there."""
    large, random = LargeCopies(), np.random.default_rng(3)
    held: dict[int, memoryview] = {}
    for number in range(200):
        room = large.room(int(random.integers(1, 4)) * 65536)
        room[:] = number % 251
        held[number] = room.data
        del room
        for old in random.choice(list(held), 2).tolist():
            if len(held) > 5:
                held.pop(old, None)
        if not number % 17:
            large.give_up()
        assert all(set(bytes(view[::4096])) == {number % 251} for number, view in held.items())


def test_a_collection_takes_nothing_that_is_lent() -> None:
    large = LargeCopies()
    room = large.room(SIZE)
    place, view = address(room), memoryview(room.data)
    del room
    gc.collect()
    del view
    assert address(large.room(SIZE)) == place


def test_what_lies_idle_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    large = LargeCopies()
    large.room(SIZE)

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no more")

    monkeypatch.setattr(mmap, "mmap", refused)
    room = large.room(2 * SIZE)
    assert len(room) == 2 * SIZE and not large._idle


def test_an_image_gives_up_what_its_capture_did_not_take() -> None:
    pool = Buffers()
    place = address(pool.room(SIZE))
    assert address(pool.room(SIZE)) == place
    # The image of a capture that took nothing.
    pool.prepare()
    assert not pool.large._idle
