"""How changes in regions are found: by the kernel, by hashes, or not at all; and that none is lost."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings

from cutline.errors import RefusedOption
from cutline.participant import page_tracker, tracking
from cutline.participant.ahead import FEW_PAGES, LEAD, PER_SLICE, SLICE_PAGES, Ahead
from cutline.participant.capture import Captured, Capturer
from cutline.participant.gather import gather
from cutline.participant.kernel_pages import PAGE, KernelRefused
from cutline.participant.memory import Bytes
from cutline.participant.page_log import PageLog, Picked
from cutline.participant.page_tracker import Span
from cutline.participant.runs import Runs
from cutline.participant.tracking import RegionTracker, chosen_tracking, insist
from tests.participant.edits import EDITS
from tests.participant.images import WAYS, Images, needs_kernel
from tests.participant.test_capture import CapturesInARow

SIZE = 1 << 20


class Agent:
    """A participant."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Line:
    """Captures in a row, each relative to the one before, each of them exact."""

    def __init__(self, agent: Any, tracking: str = "auto") -> None:
        self.agent, self.tracking = agent, tracking
        self.capturer = Capturer("p", tracking=tracking)
        self.images = Images()
        self.number = 0

    def take(self) -> Captured:
        base = self.number or None
        self.number += 1
        captured = self.capturer.capture(self.agent, number=self.number, against=base)
        self.images.put(captured, base)
        self.capturer.committed(self.number)
        restored = vars(self.images.restore(self.number))
        for name, value in vars(self.agent).items():
            assert np.array_equal(restored[name], value), name
        return captured

    def start_again(self) -> None:
        self.capturer = Capturer("p", tracking=self.tracking)
        restored = self.capturer.expecting()
        self.agent = self.images.restore(self.number, restored)
        self.capturer.adopt(self.number, self.agent, restored)


# -- which way ---------------------------------------------------------------------------------------------


@needs_kernel
def test_by_the_kernel_where_it_can_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(SIZE))
    line = Line(Agent(own=np.ones(SIZE), mapped=np.memmap(tmp_path / "file", np.uint8, mode="r+")))
    assert line.take().tracked == {"kernel": 8 * SIZE, "hash": SIZE}
    # By another way than through this mapping: only hashes see it.
    with open(tmp_path / "file", "r+b") as file:
        file.write(b"x")
    assert line.take().tracked == {"kernel": 8 * SIZE, "hash": SIZE}


@needs_kernel
def test_what_is_another_array_every_time_is_hashed() -> None:
    line = Line(Agent(a=np.zeros(SIZE)))
    line.take()
    kept = []
    for step in range(1, 6):
        kept.append(line.agent.a)
        line.agent.a = line.agent.a.copy()
        line.agent.a[step] = step
        captured = line.take()
    assert captured.tracked == {"hash": 8 * SIZE} and captured.changed_bytes <= 4096
    # And by the kernel again when it has settled; the change of ways costs no bytes.
    for step in range(20):
        line.agent.a[step] = -step
        captured = line.take()
        assert captured.changed_bytes <= 3 * PAGE
    assert captured.tracked == {"kernel": 8 * SIZE}


def test_the_option_and_the_environment() -> None:
    assert chosen_tracking(None, {}) == "auto"
    assert chosen_tracking(None, {"CUTLINE_TRACKING": "hash"}) == "hash"
    assert chosen_tracking("kernel", {"CUTLINE_TRACKING": "hash"}) == "kernel"
    with pytest.raises(RefusedOption, match="CUTLINE_TRACKING='pages': choose one of auto, kernel, hash"):
        chosen_tracking(None, {"CUTLINE_TRACKING": "pages"})


def test_the_kernel_is_asked_for_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "process_pages", lambda: KernelRefused("this sandbox forbids it"))
    with pytest.raises(RefusedOption, match="this sandbox forbids it"):
        insist("kernel")
    assert Line(Agent(a=np.zeros(SIZE)), "kernel").take().tracked == {"hash": 8 * SIZE}
    assert Line(Agent(a=np.zeros(SIZE))).take().tracked == {"hash": 8 * SIZE}


# -- nothing is lost ---------------------------------------------------------------------------------------


class Migrated:
    """Its migration writes into an array in place."""

    __cutline_version__: ClassVar[int] = 1

    def __init__(self) -> None:
        self.a = np.zeros(SIZE)

    @staticmethod
    def migrate(state: dict[str, Any], version: int) -> dict[str, Any]:
        state["a"][5] = 9
        return state


class Woken:
    """Writes into an array of its owner's when it is loaded."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.a[7] += 1


@pytest.mark.parametrize("way", WAYS)
def test_what_code_writes_at_a_restore_is_a_change(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, capturer = Images(), Capturer("p", tracking=way)
    images.put(capturer.capture(Migrated(), number=1, against=None), None)
    monkeypatch.setattr(Migrated, "__cutline_version__", 2)
    capturer = Capturer("p", tracking=way)
    restored = capturer.expecting()
    again = images.restore(1, restored)
    capturer.adopt(1, again, restored)
    images.put(capturer.capture(again, number=2, against=1), 1)
    assert images.restore(2).a[5] == 9


@pytest.mark.parametrize("way", WAYS)
def test_what_setstate_writes_is_a_change(way: str) -> None:
    images, capturer = Images(), Capturer("p", tracking=way)
    a = np.zeros(SIZE)
    images.put(capturer.capture(Agent(a=a, woken=Woken(a)), number=1, against=None), None)
    capturer = Capturer("p", tracking=way)
    restored = capturer.expecting()
    again = images.restore(1, restored)
    assert again.a[7] == 1
    capturer.adopt(1, again, restored)
    images.put(capturer.capture(again, number=2, against=1), 1)
    # Loaded, it writes once more.
    assert images.restore(2).a[7] == 2


@pytest.mark.parametrize("way", WAYS)
def test_after_a_restore_only_changes_are_written(way: str) -> None:
    line = Line(Agent(a=np.ones(SIZE), b=np.ones((SIZE // 8, 8), order="F"), c=bytearray(SIZE)), way)
    line.take()
    line.start_again()
    line.agent.a[3] = 5
    line.agent.c[100] = 1
    assert line.take().changed_bytes <= 10 * PAGE


def test_many_runs_are_copied_like_few(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Bytes = np.random.default_rng(3).integers(0, 256, 5000 * 64, np.uint8)
    starts = np.arange(0, len(memory), 64, dtype=np.int64)
    stops = starts + np.random.default_rng(4).integers(1, 64, len(starts))
    places = list(zip(starts.tolist(), stops.tolist(), strict=True))
    wanted = [(start, memory[start:stop].tobytes()) for start, stop in places]
    assert [(start, bytes(run)) for start, run in gather(memory, (starts, stops))] == wanted
    monkeypatch.setattr("cutline.participant.gather._libc", None)
    assert [(start, bytes(run)) for start, run in gather(memory, (starts, stops))] == wanted


# -- trackers that lie are found out -----------------------------------------------------------------------


class CapturesByKernel(CapturesInARow):
    tracking = WAYS[0]


TestCapturesByKernel = CapturesByKernel.TestCase
TestCapturesByKernel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def _drop_last_run(found: Runs) -> Runs:
    return found[0][:-1], found[1][:-1]


def _drop_first_run(found: Runs) -> Runs:
    return found[0][1:], found[1][1:]


def _drop_half_of_each(found: Runs) -> Runs:
    return found[0] + (found[1] - found[0]) // 2, found[1]


def drive(way: str, seed: int, **attributes: Any) -> None:
    """One run of the machine above, by a seed: hypothesis takes its time to get to what matters."""
    chance = random.Random(seed)
    machine = type("Driven", (CapturesInARow,), {"tracking": way, **attributes})()
    machine.capture(0)
    machine.decide(0, True)
    for _ in range(25):
        chosen = chance.random()
        if chosen < 0.5:
            machine.edit([(chance.choice(EDITS), chance.randrange(5000))])
        elif chosen < 0.8 and len(machine.undecided) < 3:
            machine.capture(1)
        elif chosen < 0.85 and machine.base is not None:
            machine.capturer.copy_ahead(machine.base, chance.randrange(1, 9))
        elif machine.undecided:
            machine.decide(chance.randrange(3), chance.random() < 0.7)
        elif machine.base is not None:
            machine.start_again(chance.random() < 0.7)
        machine.every_capture_is_exact()


@contextlib.contextmanager
def _planted(monkeypatch: pytest.MonkeyPatch, bug: Callable[[Runs], Runs]) -> Iterator[None]:
    true = RegionTracker._between

    def between(self: RegionTracker, memory: Bytes, base: Any, now: Any) -> Runs | None:
        found = true(self, memory, base, now)
        return found if found is None or not len(found[0]) else bug(found)

    with monkeypatch.context() as patch:
        patch.setattr(RegionTracker, "_between", between)
        # Beside a thread, such as one that another test has left, a capture would be refused for it.
        patch.setattr(tracking, "others_run", lambda: False)
        yield


@pytest.mark.parametrize("way", WAYS)
def test_driven_by_seeds_all_is_well(way: str) -> None:
    for seed in range(60):
        drive(way, seed)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bug", (_drop_last_run, _drop_first_run, _drop_half_of_each))
def test_a_tracker_that_drops_something_is_caught(
    way: str, bug: Callable[[Runs], Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _planted(monkeypatch, bug), pytest.raises(AssertionError):
        for seed in range(500):
            drive(way, seed)


@needs_kernel
def test_copies_that_count_too_long_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: PageLog, span: Span, serial: int, pages: Any, last: Any) -> Any:
        copies = self._spans.get(span)
        if copies is None or copies.serial != serial:
            return pages
        return pages[copies.at[pages] < 0]

    with monkeypatch.context() as patch:
        patch.setattr(PageLog, "stale", stale)
        with pytest.raises(AssertionError):
            for seed in range(500):
                drive("kernel", seed)


@needs_kernel
def test_what_was_copied_ahead_is_not_copied_again() -> None:
    line = Line(Agent(a=np.zeros(SIZE), b=np.zeros(SIZE)), "kernel")
    line.take()
    line.agent.a[:: SIZE // 64] = 1
    line.agent.b[:: SIZE // 32] = 2
    assert line.capturer.copy_ahead(1, 50) == 50
    assert line.capturer.copy_ahead(1, 500) >= 46
    assert line.capturer.copy_ahead(1, 500) <= 4
    line.agent.a[5] = 3
    captured = line.take()
    assert all(isinstance(region.extents, Picked) for region in captured.regions)
    # A page that is written after the capture is the next one's.
    line.agent.a[5] = 4
    captured = line.take()
    assert captured.changed_bytes <= 5 * PAGE
    line.agent.a[:] = 9
    line.capturer.copy_ahead(line.number, 100)
    assert line.take().changed_bytes >= 8 * SIZE


@pytest.mark.parametrize("way", WAYS)
def test_a_window_that_slides_over_its_memory(way: str) -> None:
    """The bytearray's beginning moves, and no page is written but the last."""
    raw = bytearray(np.random.default_rng(5).integers(0, 256, SIZE, np.uint8).tobytes())
    raw.extend(b"room" * 1000)
    del raw[-4000:]
    line = Line(Agent(raw=raw), way)
    line.take()
    for step in range(40):
        del raw[:16]
        raw.extend(bytes([step]) * 16)
        line.take()


@needs_kernel
def test_what_somebody_else_alone_still_watches_is_not_known() -> None:
    """Two participants share an array, and one of them has it written whole by now: its look misses it."""
    # Whole pages: what else lies in the first one and in the last may be written too.
    memory: Bytes = np.zeros(SIZE + PAGE, np.uint8)
    shared = memory[-memory.ctypes.data % PAGE :][: SIZE // PAGE * PAGE]
    one, other = RegionTracker(), RegionTracker()
    for tracker in (one, other):
        tracker.begin({1: shared})
    mark = one.mark(1, shared, None, None)
    shared[PAGE * 3] = 1
    runs = one.since(shared, mark)
    assert runs is not None and len(runs[0]) == 1
    one._habits[1].whole_for = 2
    one.begin({1: shared})
    assert one.ways == {1: "whole"}
    shared[PAGE * 9] = 1
    assert one.since(shared, mark) is None


@needs_kernel
def test_copying_ahead_what_is_gone() -> None:
    line = Line(Agent(a=np.zeros(32 * SIZE), b=np.zeros(SIZE)), "kernel")
    line.take()
    line.agent.a[:: SIZE // 64] = 1
    del line.agent.a
    line.capturer.copy_ahead(1, 5000)
    line.agent.b[0] = 1
    line.capturer.copy_ahead(1, 5000)
    line.agent.a = np.ones(32 * SIZE)
    line.take()
    assert line.capturer.copy_ahead(17, 10) == 0


def test_the_log_ends_at_its_budget() -> None:
    memory: Bytes = np.arange(64 * PAGE, dtype=np.int64).view(np.uint8)
    start = -(-memory.ctypes.data // PAGE) * PAGE
    span = (start, start + 32 * PAGE)
    log = PageLog(1)
    pages, room = np.arange(0, 32, 2), log.room
    assert log.copy(span, 1, pages, 5) and log.room == room - 16
    picked = log.pick(span, pages, (span[0] + 10, span[1]))
    wanted = [(max(0, page * PAGE - 10), page) for page in pages.tolist()]
    assert [offset for offset, _ in picked] == [offset for offset, _ in wanted]
    for (_, run), (_, page) in zip(picked, wanted, strict=True):
        low = start - memory.ctypes.data + page * PAGE
        assert bytes(run) == memory[low + (10 if page == 0 else 0) : low + PAGE].tobytes()
    assert len(log.stale(span, 1, pages, np.full(16, 5))) == 0
    assert len(log.stale(span, 1, pages, np.full(16, 6))) == 16
    assert len(log.stale(span, 2, pages, np.full(16, 5))) == 16
    while log.room >= 16:
        log.copy(span, 1, pages, 6)
    log.tidy({span})
    assert log.room == room and len(log.stale(span, 1, pages, np.full(16, 5))) == 16


@needs_kernel
def test_copies_end_with_the_regions_they_are_of() -> None:
    line = Line(Agent(a=np.zeros(SIZE)), "kernel")
    line.take()
    line.agent.a[:: SIZE // 64] = 1
    log = line.capturer._tracker._log
    room = log.room
    assert line.capturer.copy_ahead(1, 50) == 50 and log.room == room - 50
    del line.agent.a
    line.take()
    assert log.room == room and not log._chunks


def test_when_to_copy_ahead() -> None:
    ahead = Ahead()
    ahead.captured(10 * SLICE_PAGES)
    assert ahead.at is None
    ahead.expect(11.0, 1.0)
    assert ahead.at == pytest.approx(12.0 - LEAD - 10 * PER_SLICE)
    ahead.sliced(11.98, full=True)
    assert ahead.at == pytest.approx(11.981)
    ahead.sliced(11.982, full=False)
    assert ahead.at == pytest.approx(12.0 - LEAD)
    ahead.sliced(11.99, full=False)
    assert ahead.at == pytest.approx(11.993)
    # It did not come.
    ahead.sliced(12.04, full=True)
    assert ahead.at is None
    # At most a quarter of the time goes into it.
    ahead.captured(10_000 * SLICE_PAGES)
    ahead.expect(13.0, 1.0)
    assert ahead.at == pytest.approx(13.75)
    # What takes no time is not worth a look.
    ahead.captured(FEW_PAGES - 1)
    ahead.expect(14.0, 1.0)
    assert ahead.at is None
    ahead.captured(FEW_PAGES)
    ahead.expect(14.0, 1.0)
    ahead.forget()
    assert ahead.at is None


@needs_kernel
def test_a_generation_that_is_one_too_high_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that claims to have seen what was written after it."""
    true = page_tracker.PageTracker.look

    def look(self: page_tracker.PageTracker, asker: object, *only: Any) -> int:
        return true(self, asker, *only) + 2

    line = Line(Agent(a=np.zeros(SIZE)), "kernel")
    line.take()
    with monkeypatch.context() as patch:
        patch.setattr(page_tracker.PageTracker, "look", look)
        line.agent.a[0] = 1
        line.take()
        line.agent.a[SIZE // 2] = 1
        with pytest.raises(AssertionError):
            line.take()


assert os.sysconf("SC_PAGE_SIZE") == PAGE
