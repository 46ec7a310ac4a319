"""One sync for all who wait for the same folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cutline.storage.shared_sync import SharedSync
from tests.system.living import until


class Slow:
    """Syncs that end when they are let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = threading.Semaphore(0)
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.begun += 1
        assert self.may_end.acquire(timeout=20)
        if self.error is not None:
            raise self.error


def _waiting(shared: SharedSync, perform: Callable[[], None], pool: ThreadPoolExecutor, others: int) -> list:  # type: ignore[type-arg]
    """One who syncs, and so many who came while it did."""
    calls = [pool.submit(shared.sync, "folder", perform)]
    assert isinstance(perform, Slow)
    until(lambda: perform.begun == 1, "the first sync")
    came = threading.Barrier(others + 1)

    def come() -> None:
        came.wait(20)
        shared.sync("folder", perform)

    calls += [pool.submit(come) for _ in range(others)]
    came.wait(20)
    return calls


def test_who_comes_during_a_sync_waits_for_another_one_and_shares_it() -> None:
    shared, slow = SharedSync(), Slow()
    with ThreadPoolExecutor(6) as pool:
        calls = _waiting(shared, slow, pool, 5)
        until(lambda: len(shared._next) == 1, "somebody to wait")
        assert slow.begun == 1 and not any(call.done() for call in calls)
        for _ in range(6):
            slow.may_end.release()
        for call in calls:
            call.result(20)
    # Who is slow to come may need one more; nobody has one of their own.
    assert 2 <= slow.begun <= 6
    assert not shared._running and not shared._next


def test_it_does_not_wait_for_the_sync_of_another_folder() -> None:
    shared, slow = SharedSync(), Slow()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(shared.sync, "folder", slow)
        until(lambda: slow.begun == 1, "the first sync")
        done: list[int] = []
        shared.sync("another", lambda: done.append(1))
        assert done == [1] and not call.done()
        slow.may_end.release()
        call.result(20)


def test_a_failure_is_told_to_all_whom_the_sync_was_for_and_to_nobody_later() -> None:
    shared, slow = SharedSync(), Slow()
    slow.error = OSError("the disk is gone")
    with ThreadPoolExecutor(4) as pool:
        calls = _waiting(shared, slow, pool, 3)
        for _ in range(4):
            slow.may_end.release()
        for call in calls:
            with pytest.raises(OSError, match="the disk is gone"):
                call.result(20)
    shared.sync("folder", lambda: None)


def test_who_is_interrupted_while_it_waits_for_its_turn_leaves_nobody_waiting() -> None:
    shared, slow = SharedSync(), Slow()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(shared.sync, "folder", slow)
        until(lambda: slow.begun == 1, "the first sync")
        before = shared._running["folder"]

        def wait(timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

        before.over.wait = wait  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            shared.sync("folder", slow)
        assert not shared._next
        later = pool.submit(shared.sync, "other", lambda: None)
        later.result(20)
        slow.may_end.release()
        first.result(20)
    assert not shared._running and not shared._next
