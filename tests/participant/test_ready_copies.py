"""Copies made ahead that are ready: the capture adds only what was written since."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from cutline.errors import ConcurrentMutation
from cutline.participant import page_log, page_tracker, tracking
from cutline.participant.kernel_pages import PAGE
from cutline.participant.other_threads import others_run
from cutline.storage.extents import Extents
from tests.participant.images import needs_kernel
from tests.participant.test_tracking import SIZE, Agent, Line

pytestmark = needs_kernel


def ready(line: Line) -> None:
    """Everything that was written is copied."""
    while line.capturer.copy_ahead(line.number, 10_000):
        pass


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How regions were captured: from what was ready, or by looking through everything."""
    ways: list[str] = []
    for name in ("pick", "pick_ready"):
        true = getattr(page_log.PageLog, name)

        def picking(*arguments: Any, name: str = name, true: Any = true) -> Extents:
            ways.append(name)
            found: Extents = true(*arguments)
            counted = found.nbytes
            assert counted == int(found.lengths.sum()) == sum(part.nbytes for part in found.parts)
            return found

        monkeypatch.setattr(page_log.PageLog, name, picking)
    return ways


@pytest.mark.parametrize("seed", range(6))
def test_at_any_place_and_written_again(seed: int, counted: list[str]) -> None:
    """The first and the last page, which the region has in part, among them; each capture is exact."""
    chance = random.Random(seed)
    line = Line(Agent(a=np.zeros(SIZE, np.uint8), b=np.zeros(SIZE + 8 * PAGE // 3, np.uint8)), "kernel")
    line.take()

    def write(times: int) -> None:
        for _ in range(times):
            array = chance.choice([line.agent.a, line.agent.b])
            array[chance.choice([0, -1, chance.randrange(len(array)), chance.randrange(3 * PAGE)])] += 1

    for _ in range(6):
        for _ in range(3):
            write(chance.randrange(12))
            ready(line)
        write(chance.randrange(12))
        line.take()
    assert counted.count("pick_ready") > 8


def test_what_is_too_much_is_looked_through(counted: list[str]) -> None:
    line = Line(Agent(a=np.zeros(4 * SIZE, np.uint8)), "kernel")
    line.take()
    line.agent.a[: 40 * PAGE : PAGE] = 1
    ready(line)
    line.agent.a[::PAGE] += 1
    line.take()
    line.agent.a[0] += 1
    ready(line)
    # Nothing new in more looks than are remembered, then something.
    for _ in range(page_tracker._SCANS + 3):
        line.agent.a[PAGE] += 1
        ready(line)
    line.take()
    assert counted == ["pick_ready"]


def test_what_was_ready_for_another_capture_is_not_taken(counted: list[str]) -> None:
    """Copies are ready for a delta on one capture; after that comes another one."""
    line = Line(Agent(a=np.zeros(SIZE, np.uint8)), "kernel")
    line.take()
    line.agent.a[5 * PAGE] = 1
    ready(line)
    line.take()
    line.agent.a[9 * PAGE] = 1
    assert line.take().changed_bytes < 3 * PAGE
    assert counted == ["pick_ready"]


def test_a_copy_that_is_not_the_newest_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written after the copies were ready is left out."""
    line = Line(Agent(a=np.zeros(SIZE, np.uint8)), "kernel")
    line.take()
    line.agent.a[5 * PAGE] = 1
    ready(line)
    line.agent.a[5 * PAGE] = 2
    nothing = np.empty(0, np.int64)
    monkeypatch.setattr(page_tracker.PageTracker, "written_lately", lambda *_: nothing)
    with pytest.raises(AssertionError, match="a"):
        line.take()


def test_lately_is_what_all_pages_say() -> None:
    """By random writes and looks: both ways to ask for pages written since agree, or one does not know."""
    tracker, chance, known = page_tracker.PageTracker(), random.Random(5), 0
    try:
        memory = np.ones(3 * 1024 * PAGE, np.uint8)
        span = page_tracker.rounded(memory.ctypes.data, memory.ctypes.data + len(memory))
        generations = [0]
        assert tracker.watch(tracking, [span]) == [True]
        for _ in range(300):
            for _ in range(chance.choice([0, 1, 3])):
                memory[chance.randrange(len(memory))] += 1
            if chance.random() < 0.02:
                memory[:] = 0
            generations.append(tracker.look(tracking))
            since = generations[-chance.randrange(1, min(len(generations), 90) + 1)]
            lately = tracker.written_lately(span, since)
            if lately is not None:
                known += 1
                assert lately.tolist() == tracker.pages_written(span, since)[0].tolist()
        assert known > 100
    finally:
        tracker.close()


# -- the look after the copies -----------------------------------------------------------------------------


def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the tracker is asked to look at from now on; None: at everything."""
    seen: list[Any] = []
    true = page_tracker.PageTracker.look

    def look(self: page_tracker.PageTracker, asker: object, only: Any = None) -> int:
        seen.append(only)
        return true(self, asker, only)

    monkeypatch.setattr(page_tracker.PageTracker, "look", look)
    return seen


def test_only_what_was_read_where_nobody_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "others_run", lambda: False)
    line = Line(Agent(a=np.zeros(SIZE, np.uint8), b=np.zeros(SIZE, np.uint8)), "kernel")
    line.take()
    line.agent.a[5 * PAGE] = 1
    ready(line)
    line.agent.a[7 * PAGE] = 1
    seen = looks(monkeypatch)
    line.take()
    first, second = seen
    assert first is None and [stop - start for start, stop in second] == [PAGE]


def test_everything_where_somebody_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that writes where the capture has nothing to read is found out."""
    line = Line(Agent(a=np.zeros(SIZE, np.uint8), b=np.zeros(SIZE, np.uint8)), "kernel")
    line.take()
    line.agent.a[5 * PAGE] = 1
    ready(line)
    line.agent.a[7 * PAGE] = 1
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    true = page_log.PageLog.copy

    def copy(self: Any, *arguments: Any, **options: Any) -> bool:
        line.agent.b[3 * PAGE] += 1
        return true(self, *arguments, **options)

    try:
        monkeypatch.setattr(page_log.PageLog, "copy", copy)
        with pytest.raises(ConcurrentMutation, match=r"something wrote to self\.b"):
            line.take()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("others", [False, True])
def test_who_runs(others: bool) -> None:
    """Threads of the program, and those in which functions of effects run, are others."""
    over = threading.Event()

    def start(name: str) -> threading.Thread:
        thread = threading.Thread(target=over.wait, name=name)
        thread.start()
        return thread

    names = ["Thread-7 (work)", "cutline-effect-1", "cutline-effect-loop"] if others else []
    ours = ["cutline-persist-p", "Thread-1 (_poll_wrapper)", "PythonGCThread"]
    before, threads = others_run(), [start(name) for name in ours]
    try:
        assert others_run() == before
        for name in names:
            threads.append(start(name))
            assert others_run()
            over.set()
            threads[-1].join()
            over.clear()
    finally:
        over.set()
        for thread in threads:
            thread.join()
