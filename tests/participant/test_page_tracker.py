"""Written pages are found, by whatever means they are written, and by everybody who asks."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutline.participant import kernel_pages, mappings
from cutline.participant.kernel_pages import PAGE, KernelPages, KernelRefused
from cutline.participant.mappings import eligible
from cutline.participant.memory import Bytes, span
from cutline.participant.page_tracker import PageTracker, _Places, process_pages, rounded
from cutline.participant.runs import Runs
from tests.participant.images import needs_kernel

PAGES = 64


pytestmark = needs_kernel


class Asker:
    """Whoever cares for memory."""


class Memory:
    """Pages of its own, tracked for one asker."""

    def __init__(self, tracker: PageTracker) -> None:
        self.tracker, self.asker = tracker, Asker()
        raw: Bytes = np.zeros((PAGES + 1) * PAGE, np.uint8)
        skipped = -raw.ctypes.data % PAGE
        self.bytes = raw[skipped : skipped + PAGES * PAGE]
        self.span = rounded(*span(self.bytes))
        assert tracker.watch(self.asker, [self.span]) == [True]
        self.seen = tracker.look(self.asker)

    def written(self) -> list[int]:
        """The pages written since the last time, by number."""
        since, self.seen = self.seen, self.tracker.look(self.asker)
        return self.pages_since(since)

    def pages_since(self, generation: int) -> list[int]:
        starts, stops = self.tracker.written(self.span, generation)
        return [
            page
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            for page in range(start // PAGE, stop // PAGE)
        ]


@pytest.fixture
def tracker() -> PageTracker:
    """The one of this process: two would be in each other's way."""
    pages = process_pages()
    assert isinstance(pages, PageTracker)
    return pages


@pytest.fixture
def memory(tracker: PageTracker) -> Memory:
    return Memory(tracker)


def test_nothing_written_is_nothing(memory: Memory) -> None:
    assert memory.written() == [] and memory.bytes.sum() == 0 and memory.written() == []


def test_every_way_to_write(memory: Memory, tmp_path: Path) -> None:
    memory.bytes[3 * PAGE] = 1
    assert memory.written() == [3]
    memory.bytes[: 5 * PAGE : 2 * PAGE] = 7
    assert memory.written() == [0, 2, 4]
    words: Any = memory.bytes.view(np.uint64)
    np.add.at(words, [0, PAGE], 1)
    assert memory.written() == [0, 8]
    np.multiply(words[:10], 3, out=words[:10])
    assert memory.written() == [0]
    with open(tmp_path / "file", "wb+") as file:
        file.write(b"x" * PAGE)
        file.seek(0)
        os.readv(file.fileno(), [memory.bytes[9 * PAGE + 5 : 9 * PAGE + 10].data])
    assert memory.written() == [9]
    memory.bytes[:] = 1
    assert memory.written() == list(range(PAGES))


def test_a_scan_of_many_runs_gets_to_the_end(tracker: PageTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker._kernel, "_vector", np.empty((3, 3), np.uint64))
    memory = Memory(tracker)
    memory.bytes[:: 2 * PAGE] = 1
    assert memory.written() == list(range(0, PAGES, 2))


def test_who_asks_later_hears_of_the_same(memory: Memory) -> None:
    tracker, begun = memory.tracker, memory.seen
    other = Asker()
    assert tracker.watch(other, [memory.span]) == [True]
    memory.bytes[PAGE] = 1
    between = tracker.look(other)
    memory.bytes[2 * PAGE] = 1
    assert memory.written() == [1, 2]
    assert memory.pages_since(between) == [2]
    assert memory.pages_since(begun) == [1, 2]


def test_pages_that_two_spans_share(tracker: PageTracker) -> None:
    memory = Memory(tracker)
    start = memory.span[0]
    left, right = (start, start + 3 * PAGE), (start + 2 * PAGE, start + 5 * PAGE)
    one, two = Asker(), Asker()
    tracker.watch(one, [left])
    tracker.watch(two, [right])
    since = tracker.look(two)
    memory.bytes[2 * PAGE] = 1
    tracker.look(one)
    assert tracker.written(right, since)[0].tolist() == [0]
    # The one that goes leaves the other its page.
    tracker.watch(one, [])
    since = tracker.look(two)
    memory.bytes[2 * PAGE] = 2
    tracker.look(two)
    assert tracker.written(right, since)[0].tolist() == [0]
    assert memory.written() == [2]


def test_who_comes_later_takes_no_write_from_its_neighbour(tracker: PageTracker) -> None:
    memory = Memory(tracker)
    start = memory.span[0]
    tracker.watch(memory.asker, [])
    left, right = (start, start + 3 * PAGE), (start + 2 * PAGE, start + 5 * PAGE)
    one, two = Asker(), Asker()
    tracker.watch(one, [left])
    since = tracker.look(one)
    memory.bytes[2 * PAGE] = 1
    tracker.watch(two, [right])
    tracker.look(one)
    assert tracker.written(left, since)[0].tolist() == [2 * PAGE]


def test_an_asker_that_is_gone_is_forgotten(memory: Memory) -> None:
    tracker = memory.tracker
    memory.asker = Asker()
    gc.collect()
    tracker.watch(memory.asker, [])
    assert tracker.serial(memory.span) is None


def test_other_memory_at_the_same_place(tracker: PageTracker) -> None:
    """Freed and mapped anew: all pages count as written, whatever they hold."""
    size = 64 * PAGES * PAGE
    asker = Asker()
    for _ in range(20):
        array: Bytes = np.zeros(size, np.uint8)
        place = rounded(*span(array))
        tracker.watch(asker, [place])
        serial, since = tracker.serial(place), tracker.look(asker)
        del array
        again: Bytes = np.zeros(size, np.uint8)
        if rounded(*span(again)) == place:
            break
    else:
        pytest.skip("the allocator never gave the same place again")
    assert tracker.watch(asker, [place]) == [True]
    tracker.look(asker)
    known = tracker.serial(place) == serial
    assert not known or len(tracker.written(place, since)[0]) == 1
    now = tracker.look(asker)
    again[5 * PAGE] = 1
    tracker.look(asker)
    assert sum((tracker.written(place, now)[1] - tracker.written(place, now)[0]).tolist()) == PAGE


def _map_anew(start: int, stop: int) -> None:
    """Other memory at these addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
    assert libc.mmap(start, stop - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == start


@pytest.mark.parametrize("of_both", (False, True))
def test_other_memory_beside_it_is_no_write(tracker: PageTracker, of_both: bool) -> None:
    """A neighbour's memory, one page of which belongs to both, is replaced: the rest has not been written."""
    with mmap.mmap(-1, 9 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = bytes(len(memory))
        shown: Any = np.frombuffer(memory, np.uint8)
        start = int(shown.ctypes.data)
        left, right = (start, start + 4 * PAGE), (start + 3 * PAGE, start + 8 * PAGE)
        one, other = Asker(), Asker()
        tracker.watch(one, [left])
        tracker.watch(other, [right])
        since = tracker.look(one)
        before = tracker.look(other)
        _map_anew(right[0] + (0 if of_both else PAGE), right[1])
        tracker.look(other)
        # All of the one, and of the other what they share.
        assert [each.tolist() for each in tracker.written(right, before)] == [[0], [5 * PAGE]]
        assert [each.tolist() for each in tracker.written(left, since)] == [[3 * PAGE], [4 * PAGE]]
        assert not tracker.written_inside(start, start + 3 * PAGE + 100, since)
        assert tracker.written_inside(start, start + 4 * PAGE, since)
        # Writes are noted as before, by both where both have the page.
        since, before = tracker.look(one), tracker.look(other)
        shown[3 * PAGE] = shown[6 * PAGE] = shown[PAGE] = 1
        tracker.look(other)
        tracker.look(one)
        assert tracker.written(left, since)[0].tolist() == [PAGE, 3 * PAGE]
        assert tracker.written(right, before)[0].tolist() == [0, 3 * PAGE]
        tracker.watch(one, [])
        tracker.watch(other, [])
        del shown


def test_memory_that_is_not_its_own_is_refused(tracker: PageTracker, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(16 * PAGE))
    for mode in ("r+", "c", "r"):
        mapped: Any = np.memmap(tmp_path / "file", np.uint8, mode=mode)
        assert tracker.watch(Asker(), [rounded(*span(mapped))]) == [False]
    assert eligible([(PAGE, 2 * PAGE)]) == [False]


def test_memory_with_a_stranger_in_it_is_not_private() -> None:
    size = 64 * PAGE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view: Any = np.frombuffer(memory, np.uint8)
        start = int(view.ctypes.data)
        del view
        assert eligible([(start, start + size), (start + PAGE, start + 2 * PAGE)]) == [True, True]
        beyond = (start, 1 << 47)
        assert eligible([beyond, (1 << 62, (1 << 62) + PAGE)]) == [False, False]


def test_asking_for_a_place_and_reading_all_of_them_agree() -> None:
    lines = mappings._lines()
    places = [tuple(int(end, 16) for end in line.split()[0].split(b"-")) for line in lines]
    spans = [(start, stop) for start, stop in places if stop < 1 << 47]
    spans += [(start, stop + PAGE) for start, stop in spans]
    asked = mappings._ask(spans)
    if asked is None:
        pytest.skip("PROCMAP_QUERY is of Linux 6.11")
    assert any(asked) and not all(asked)
    # What the process itself did meanwhile may have made a mapping grow.
    later = mappings._lines()
    for place, told in zip(spans, asked, strict=True):
        assert told in {mappings._is_private(lines, *place), mappings._is_private(later, *place)}


def test_an_older_kernel_is_read_in_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "_PROCMAP_QUERY", mappings._PROCMAP_QUERY + 7)
    size = 64 * PAGE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view: Any = np.frombuffer(memory, np.uint8)
        start = int(view.ctypes.data)
        del view
        assert mappings._ask([(start, start + size)]) is None
        assert eligible([(start, start + size), (PAGE, 2 * PAGE)]) == [True, False]


def test_who_may_open_nothing_tracks_nothing(monkeypatch: pytest.MonkeyPatch, tracker: PageTracker) -> None:
    monkeypatch.setattr(mappings, "_MAPS", "/nowhere/maps")
    array = np.zeros(PAGES * PAGE, np.uint8)
    assert tracker.watch(Asker(), [rounded(*span(array))]) == [False]


@pytest.mark.parametrize("error", (MemoryError(), KeyboardInterrupt(), OSError(5, "what is that")))
def test_a_look_that_fails_loses_no_write(
    memory: Memory, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells once; whoever could not listen takes everything for written."""
    true = KernelPages.scan

    def scan(self: KernelPages, start: int, stop: int) -> Runs:
        true(self, start, stop)
        raise error

    memory.bytes[3 * PAGE] = 1
    with monkeypatch.context() as patch:
        patch.setattr(KernelPages, "scan", scan)
        with pytest.raises(type(error)):
            memory.tracker.look(memory.asker)
    assert 3 in memory.written() and memory.written() == []


def test_which_spans_overlap() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        places = _Places()
        there: set[tuple[int, int]] = set()
        for _ in range(60):
            start = chance.randrange(100)
            span = (start, start + chance.choice((1, 2, 5, 60)))
            if there and chance.random() < 0.4:
                places.remove(gone := chance.choice(sorted(there)))
                there.remove(gone)
            elif span not in there:
                places.add(span)
                there.add(span)
            start = chance.randrange(100)
            stop = start + chance.choice((1, 3, 30))
            assert places.around(start, stop) == sorted(
                (low, high) for low, high in there if low < stop and high > start
            )


def test_a_child_takes_nothing_from_its_parent() -> None:
    shared = process_pages()
    assert isinstance(shared, PageTracker)
    memory = Memory(shared)
    memory.bytes[PAGE] = 1
    pid = os.fork()
    if not pid:
        code = 1
        try:
            own = process_pages()
            fresh = isinstance(own, PageTracker) and own is not shared
            memory.bytes[3 * PAGE] = 1
            again = Memory(own) if isinstance(own, PageTracker) else memory
            again.bytes[2 * PAGE] = 1
            code = 0 if fresh and again.written() == [2] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    memory.bytes[5 * PAGE] = 1
    assert memory.written() == [1, 5]


def test_looking_while_others_write(memory: Memory) -> None:
    """No write is missed between two scans, however they fall."""
    stop = threading.Event()
    counts: list[int] = []

    def write() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            memory.bytes[(count * 7 % PAGES) * PAGE] = count % 251
        counts.append(count)

    begun = memory.seen
    thread = threading.Thread(target=write)
    thread.start()
    copy = np.zeros_like(memory.bytes)
    for _ in range(200):
        since, memory.seen = memory.seen, memory.tracker.look(memory.asker)
        for page in memory.pages_since(since):
            copy[page * PAGE : (page + 1) * PAGE] = memory.bytes[page * PAGE : (page + 1) * PAGE]
    stop.set()
    thread.join()
    for page in memory.written():
        copy[page * PAGE : (page + 1) * PAGE] = memory.bytes[page * PAGE : (page + 1) * PAGE]
    assert counts[0] and np.array_equal(copy, memory.bytes) and memory.pages_since(begun)


def test_a_limit_of_mappings_is_kept(tracker: PageTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "_most", 0)
    array = np.zeros(PAGES * PAGE, np.uint8)
    assert tracker.watch(Asker(), [rounded(*span(array))]) == [False]


def test_why_there_is_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_pages, "_SYSCALL", {})
    with pytest.raises(KernelRefused, match="no known number"):
        KernelPages()
    monkeypatch.undo()
    monkeypatch.setattr(kernel_pages, "_PAGEMAP_SCAN", kernel_pages._UFFDIO_API)
    with pytest.raises(KernelRefused, match=r"Linux 6\.7"):
        KernelPages()
