"""Memory for captured bytes that another process can map: where it comes from, and when it comes back."""

from __future__ import annotations

import os

import numpy as np
import pytest

from cutline.participant import shared_memory
from cutline.participant.shared_memory import CHUNK, LARGEST, Buffer, Buffers, mapped

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a name here")


def test_what_was_missed_lies_ready_the_next_time() -> None:
    pool = Buffers()
    first = pool.room(CHUNK)
    assert pool.place(first.data) is None
    pool.prepare()
    second = pool.room(CHUNK)
    place = pool.place(second.data)
    assert place is not None and place.size == CHUNK
    second[:] = 7
    buffer = pool.get(place.number)
    assert mapped(os.dup(buffer.descriptor), buffer.size)[place.start : place.start + 8] == b"\7" * 8


def test_small_copies_share_a_buffer() -> None:
    pool = Buffers()
    pool.room(1)
    pool.prepare()
    parts = [pool.room(1000) for _ in range(100)]
    for value, part in enumerate(parts):
        part[:] = value
    assert [set(part.tolist()) for part in parts] == [{value} for value in range(100)]
    places = [pool.place(part.data) for part in parts]
    assert None not in places and len({place.number for place in places if place is not None}) == 1


def test_no_more_lies_ready_than_would_have_been_needed() -> None:
    sizes = [300_000] * 50 + [CHUNK // 2] * 3 + [CHUNK // 2 + 1, 3 * CHUNK]
    pool = Buffers()
    for size in sizes:
        pool.room(size)
    pool.prepare()
    # 13 to a buffer, but for the halves; one more; one of its own; one of 16 MiB.
    assert pool.size == (4 + 2 + 1 + 1 + 4) * CHUNK
    parts = [pool.room(size) for size in sizes]
    assert None not in [pool.place(part.data) for part in parts]
    # Nothing was missed this time.
    before = pool.size
    pool.prepare()
    assert pool.size == before


def test_what_goes_to_nobody_else_misses_nothing_and_lets_go_of_what_lies_idle() -> None:
    pool = Buffers()
    for _ in range(1000):
        pool.room(4096)
        pool.prepare(worth=False)
    assert pool.size == 0
    pool.prepare()
    assert pool.size == 0
    for _ in range(3):
        pool.room(CHUNK)
    pool.prepare()
    assert pool.size == 4 * CHUNK
    for _ in range(20):
        pool.prepare(worth=False)
    assert pool.size == CHUNK


def test_a_buffer_comes_back_when_nobody_refers_to_any_part_of_it() -> None:
    pool = Buffers(CHUNK)
    pool.room(CHUNK)
    pool.prepare()
    view = memoryview(pool.room(CHUNK)[100:200].data)
    assert pool.place(view) is not None
    assert pool.place(pool.room(CHUNK).data) is None
    del view
    again = pool.room(CHUNK)
    assert pool.place(again.data) is not None


def test_it_takes_no_more_than_it_may_and_then_memory_is_the_process_s_own() -> None:
    pool = Buffers(3 * CHUNK)
    held = [pool.room(CHUNK) for _ in range(10)]
    pool.prepare()
    held = [pool.room(CHUNK) for _ in range(10)]
    assert pool.size == 3 * CHUNK
    assert sum(pool.place(each.data) is not None for each in held) == 3
    pool.prepare()
    assert pool.size == 3 * CHUNK
    # What lies idle makes room for another size.
    del held
    pool.room(2 * CHUNK)
    pool.prepare()
    assert pool.place(pool.room(2 * CHUNK).data) is not None
    assert pool.size <= 3 * CHUNK


def test_what_is_not_needed_any_more_is_given_up() -> None:
    pool = Buffers()
    held = [pool.room(CHUNK) for _ in range(5)]
    pool.prepare()
    assert pool.size == 6 * CHUNK
    for _ in range(20):
        held = [pool.room(CHUNK)]
        pool.prepare()
        held.clear()
    assert pool.size == 2 * CHUNK


def test_what_is_too_large_and_what_is_empty_is_the_process_s_own() -> None:
    pool = Buffers()
    assert pool.room(0).nbytes == 0
    pool.prepare()
    assert pool.size == 0
    large = pool.room(LARGEST + 1)
    assert large.nbytes == LARGEST + 1 and pool.place(large.data) is None


def test_room_for_what_changes_in_something_large_is_made_ahead() -> None:
    pool = Buffers()
    held = [pool.room(8 * LARGEST), pool.room(8 * LARGEST)]
    pool.prepare()
    size = pool.size
    assert CHUNK <= size <= 2 * LARGEST
    held = [pool.room(LARGEST // 100) for _ in range(20)]
    assert all(pool.place(each.data) is not None for each in held)
    assert pool.size == size


def test_memory_that_could_lose_pages_is_not_mapped() -> None:
    descriptor = os.memfd_create("shrinks", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 4096)
    with pytest.raises(OSError):
        mapped(descriptor, 4096)
    buffer = Buffer(8192)
    with pytest.raises(OSError):
        os.ftruncate(buffer.descriptor, 4096)
    with pytest.raises(OSError, match="not a buffer"):
        mapped(os.dup(buffer.descriptor), 4096)
    buffer.close()


def test_a_forked_child_does_not_write_to_it() -> None:
    pool = shared_memory.buffers()
    pool.room(CHUNK)
    pool.prepare()
    pid = os.fork()
    if not pid:
        os._exit(0 if shared_memory._process is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pool.place(np.asarray(pool.room(CHUNK)).data) is not None
