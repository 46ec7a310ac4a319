"""A thread of the program that writes to a state while it is captured is found out, whatever the way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cutline.errors import ConcurrentMutation
from cutline.participant import tracking
from cutline.participant.blocks import Hasher
from cutline.participant.capture import Captured, check_capturable
from cutline.participant.gather import gather
from cutline.participant.kernel_pages import PAGE
from cutline.participant.memory import Bytes
from cutline.participant.runs import Runs
from cutline.participant.tracking import RegionTracker, tracking_here
from cutline.storage.extents import Extents
from tests.participant.images import needs_kernel
from tests.participant.test_tracking import SIZE, Agent, Line

Patch = pytest.MonkeyPatch
# Of elements: the first and the last lie in pages that are not all the array's; the second is copied where
# only changes are, the third is not.
PLACES = (0, SIZE // 4, SIZE // 2, SIZE - 1)
CHANGED = 1


@pytest.fixture(params=("kernel", "hash", "whole"))
def way(request: pytest.FixtureRequest, monkeypatch: Patch) -> str:
    way = str(request.param)
    if way == "kernel" and tracking_here()[0] != "kernel":
        pytest.skip(tracking_here()[1])
    if way == "whole":
        # What it comes to in the end, where all changes all the time.
        monkeypatch.setattr(tracking._Habit, "is_written_whole", lambda *_: True)
    return way


def a_line(way: str, **attributes: Any) -> Line:
    """One capture has been taken."""
    line = Line(Agent(**attributes), "auto" if way == "whole" else way)
    assert list(line.take().tracked) == [way]
    return line


@contextlib.contextmanager
def a_thread(run: Callable[[], object]) -> Iterator[threading.Event]:
    """Calls `run` until the event is set, which it is at the end."""
    over = threading.Event()

    def again() -> None:
        while not over.is_set():
            run()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join()


@pytest.fixture
def idle() -> Iterator[None]:
    """A thread that does nothing: there is somebody who could write."""
    rest = threading.Event()
    with a_thread(rest.wait):
        yield
        rest.set()


def in_the_middle(patch: Patch, write: Callable[[], object], method: str = "end") -> None:
    """Has the tracker's method, by default the one after the copies, come after a write."""
    true = getattr(RegionTracker, method)

    def late(self: RegionTracker, *arguments: Any) -> Any:
        write()
        return true(self, *arguments)

    patch.setattr(RegionTracker, method, late)


@pytest.mark.parametrize("name", ("a", "b"))
@pytest.mark.parametrize("place", PLACES)
def test_a_write_after_the_copies(way: str, idle: None, name: str, place: int, monkeypatch: Patch) -> None:
    line = a_line(way, a=np.zeros(SIZE), b=np.zeros(SIZE))
    written = vars(line.agent)[name]
    line.agent.a[PLACES[CHANGED]] = line.agent.b[PLACES[CHANGED]] = 1
    with monkeypatch.context() as patch:
        in_the_middle(patch, lambda: written.__setitem__(place, 7))
        with pytest.raises(ConcurrentMutation, match=f"'p': something wrote to self.{name} while it was"):
            line.capturer.capture(line.agent, number=2, against=1)
    # Nothing of it is lost to the next one.
    captured = line.take()
    assert vars(line.images.restore(line.number))[name][place] == 7
    assert way == "whole" or captured.changed_bytes <= 8 * PAGE


@pytest.mark.parametrize("against", (1, None))
def test_what_was_copied_is_put_back(way: str, idle: None, against: int | None, monkeypatch: Patch) -> None:
    """What is there before and after is not what the copy has."""
    line = a_line(way, a=np.zeros(SIZE))
    line.agent.a[PLACES[CHANGED]] = 1

    def disturbed(memory: Bytes, runs: Runs) -> Extents:
        line.agent.a[PLACES[CHANGED]] = 2
        extents = gather(memory, runs)
        line.agent.a[PLACES[CHANGED]] = 1
        return extents

    monkeypatch.setattr(tracking, "gather", disturbed)
    if way == "kernel" and against:
        # It picks pages of its log, which is another way to copy.
        monkeypatch.setattr(RegionTracker, "_picked", lambda *_: None)
    with pytest.raises(ConcurrentMutation, match=r"something wrote to self\.a"):
        line.capturer.capture(line.agent, number=2, against=against)


def test_a_write_between_the_copies(way: str, idle: None, monkeypatch: Patch) -> None:
    """One region is copied before another one is looked at: both must be of one moment."""
    line = a_line(way, a=np.zeros(SIZE), b=np.zeros(SIZE))
    line.agent.a[5] = line.agent.b[5] = 1
    taken: list[int] = []

    def write() -> None:
        if taken:
            line.agent.a[9] = line.agent.b[9] = 1
        taken.append(1)

    in_the_middle(monkeypatch, write, "mark")
    with pytest.raises(ConcurrentMutation, match=r"something wrote to self\.a"):
        line.capturer.capture(line.agent, number=2, against=1)


def test_a_writer_that_ends_in_the_middle(way: str, monkeypatch: Patch) -> None:
    line = a_line(way, a=np.zeros(SIZE))
    line.agent.a[5] = 1
    seen = iter((True, False, False))
    monkeypatch.setattr(tracking, "others_run", lambda: next(seen))
    in_the_middle(monkeypatch, lambda: line.agent.a.__setitem__(5, 7))
    with pytest.raises(ConcurrentMutation):
        line.capturer.capture(line.agent, number=2, against=1)


def untorn(line: Line, captured: Captured, number: int) -> bool:
    """The writer's last line may be half done, never two of them."""
    line.images.put(captured, 1)
    steps = np.diff(line.images.restore(number).a)
    return steps[steps != 0].tolist() in ([], [-1.0])


def test_a_thread_that_writes_all_the_time(way: str, idle: None) -> None:
    """What is captured was so at one moment. In its rests captures succeed, with a thread beside them."""
    line, rounds, quiet = a_line(way, a=np.zeros(SIZE // 4)), 12, 0
    number = 1

    def write() -> None:
        line.agent.a[:] = line.agent.a[0] + 1

    for _ in range(rounds):
        with a_thread(write):
            for _ in range(8):
                number += 1
                with contextlib.suppress(ConcurrentMutation):
                    captured = line.capturer.capture(line.agent, number=number, against=1)
                    assert untorn(line, captured, number)
        number += 1
        captured = line.capturer.capture(line.agent, number=number, against=1)
        assert list(captured.tracked) == [way]
        line.images.put(captured, 1)
        assert np.array_equal(line.images.restore(number).a, line.agent.a)
        quiet += 1
    assert quiet == rounds


def test_of_the_state_nothing_is_held(way: str, idle: None, monkeypatch: Patch) -> None:
    line = a_line(way, c=bytearray(SIZE))
    line.agent.c.append(1)
    line.take()
    with monkeypatch.context() as patch:
        in_the_middle(patch, lambda: line.agent.c.__setitem__(SIZE // 2, 1))
        with contextlib.suppress(ConcurrentMutation):
            line.capturer.capture(line.agent, number=9, against=line.number)
            pytest.fail("nobody noticed")
    line.agent.c.append(2)
    line.take()


@needs_kernel
def test_a_neighbour_in_the_same_page_may_write(idle: None) -> None:
    memory = np.zeros(3 * SIZE, np.uint8)
    # Two arrays with a memory of their own, as an allocator that packs them would place them.
    one, other = memory[: SIZE + 8], memory[SIZE + 8 :]
    tracker = RegionTracker("kernel")
    for expected in ([], [0]):
        tracker.begin({0: one})
        mark = tracker.mark(0, one, None, None)
        copied = tracker.changed(0, one, None, mark)
        other[0] += 1
        if expected:
            one[-1] += 1
        assert tracker.end({0: tracking.Taken(one, mark, copied)}) == expected


def test_alone_nothing_is_looked_at_twice(way: str, monkeypatch: Patch) -> None:
    line = a_line(way, a=np.zeros(SIZE))
    monkeypatch.setattr(tracking, "others_run", lambda: False)
    monkeypatch.setattr(Hasher, "agree", None)
    monkeypatch.setattr(tracking, "is_copy", None)
    line.agent.a[5] = 1
    line.take()


def test_a_trial_is_not_a_matter_of_luck(idle: None, monkeypatch: Patch) -> None:
    """Its capture is thrown away, so nothing of it can be torn."""
    agent: Any = Agent(a=np.zeros(SIZE))
    in_the_middle(monkeypatch, lambda: agent.a.__setitem__(5, 7))
    check_capturable(agent, "p")
