"""Going back in place: memory that nobody else refers to is kept, and what differs in it is read."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from cutline.participant.capture import Captured, Capturer
from cutline.participant.kernel_pages import PAGE
from cutline.participant.memory import address, taken_over
from cutline.participant.restore import restore
from cutline.participant.standing import Standing
from cutline.storage import ImageRef, MemoryBlobs, pack_key, read_image, write_image
from cutline.storage.image import Image
from tests.participant.images import WAYS

SIZE = 1 << 20
BLOCK = 4096
# Pages at the edges of two arrays belong to neighbours too, who may have written.
EDGES = 4 * PAGE


class Holder:
    """What is captured."""

    def __init__(self) -> None:
        self.name = "holder"
        self.large = np.arange(SIZE // 4, dtype=np.uint32)
        self.table = np.arange(SIZE // 8, dtype=np.float64).reshape(-1, 128)


class Undoing(Holder):
    """Writes into its memory when it goes."""

    def __del__(self) -> None:
        self.large[:] = 1


def store(blobs: MemoryBlobs, captured: Captured) -> ImageRef:
    return write_image(
        blobs,
        pack_key("s", "l", 0, captured.number, "p", 1),
        header={},
        sections={},
        pieces=captured.pieces,
        regions=captured.regions,
        parent=None,
    )


class Life:
    """One participant's state, captured once as number 1."""

    def __init__(self, state: Holder, tracking: str) -> None:
        self.blobs = MemoryBlobs()
        self.tracking = tracking
        self.capturer = Capturer("p", tracking=tracking)
        self.state: Any = state
        self.ref = store(self.blobs, self.capturer.capture(state, number=1, against=None))

    def standing(self) -> Standing:
        return self.capturer.standing(1, self.state)

    def back(self, standing: Standing) -> Image:
        """The old state goes, the cut's comes."""
        self.state = None
        image = read_image(self.blobs, self.ref, standing.alone())
        self.capturer = Capturer("p", tracking=self.tracking)
        restored = self.capturer.expecting(standing)
        self.state = restore(image.pieces, image.regions, participant="p", restored=restored)
        self.capturer.adopt(1, self.state, restored)
        return image

    def places(self) -> set[int]:
        return {address(self.state.large), address(self.state.table)}

    def check(self) -> None:
        fresh = Holder()
        assert np.array_equal(self.state.large, fresh.large) and self.state.large.dtype == np.uint32
        assert np.array_equal(self.state.table, fresh.table) and self.state.table.shape == fresh.table.shape
        assert self.state.large.flags.owndata and self.state.large.flags.writeable


@pytest.fixture(params=WAYS)
def life(request: pytest.FixtureRequest) -> Life:
    return Life(Holder(), request.param)


def test_memory_stays_where_it_is(life: Life) -> None:
    life.state.large[5000:9000] = 0
    life.state.table[0, 0] = -1
    before = life.places()
    life.back(life.standing())
    assert life.places() == before
    life.check()


def test_the_next_delta_is_small(life: Life) -> None:
    life.back(life.standing())
    life.state.large[0] = 77
    captured = life.capturer.capture(life.state, number=2, against=1)
    assert 0 < sum(len(run) for region in captured.regions for _, run in region.extents) <= BLOCK + EDGES


def test_only_what_differs_is_read(life: Life) -> None:
    life.state.large[0] = 77
    standing = life.standing()
    life.state = None
    held = standing.alone()
    assert held is not None
    offered = [held(number, SIZE) for number in standing.marks]
    runs = [run for each in offered if each is not None for run in each[1]]
    assert any(start == 0 for start, _ in runs)
    assert sum(stop - start for start, stop in runs) <= BLOCK + EDGES


def test_what_somebody_else_holds_is_left_to_them(life: Life) -> None:
    theirs = life.state.large
    theirs[:] = 3
    life.back(life.standing())
    assert life.state.large is not theirs and (theirs == 3).all()
    life.check()
    life.state.large[:] = 4
    assert (theirs == 3).all()


def test_a_view_and_a_weak_reference_hold_it_too(life: Life) -> None:
    view, weak = life.state.large[10:20], weakref.ref(life.state.table)
    life.back(life.standing())
    assert view.base is not life.state.large and weak() is None
    life.check()


def test_a_state_that_refers_to_itself_goes_all_the_same(life: Life) -> None:
    life.state.itself = life.state
    before = life.places()
    gc.disable()
    try:
        life.back(life.standing())
    finally:
        gc.enable()
    assert life.places() == before
    life.check()


@pytest.mark.parametrize("tracking", WAYS)
def test_what_a_destructor_writes_is_undone(tracking: str) -> None:
    life = Life(Undoing(), tracking)
    life.back(life.standing())
    life.check()


def test_arrays_that_took_another_form_are_found(life: Life) -> None:
    life.state.large = np.zeros(SIZE // 4, np.uint32)
    life.state.table = np.zeros((SIZE // 8,), np.int64)
    life.state.more = np.zeros(SIZE, np.uint8)
    life.back(life.standing())
    life.check()
    assert not hasattr(life.state, "more")


def test_a_state_that_cannot_be_saved_any_more_is_read_whole(life: Life) -> None:
    life.state.bad = lambda: None
    standing = life.standing()
    assert standing.alone() is None
    life.back(standing)
    life.check()


def test_a_capture_that_is_not_known_gives_nothing(life: Life) -> None:
    standing = life.capturer.standing(7, life.state)
    assert standing.alone() is None


def test_arrays_that_are_taken_over() -> None:
    memory = np.zeros(64, np.uint8)
    place = address(memory)
    made = taken_over(memory, np.dtype("<f4"), (4, 4))
    assert made is memory and made.shape == (4, 4) and made.dtype == np.float32 and address(made) == place
    again = taken_over(made, np.dtype([("a", "<u2"), ("b", "<u2")]), (16,))
    assert again is memory and again["b"].sum() == 0
    memory.flags.writeable = False
    assert taken_over(memory, np.dtype("M8[s]"), (8,)) is memory and memory.flags.writeable


@pytest.mark.parametrize(
    ("memory", "dtype", "shape"),
    [
        (bytearray(8), np.dtype(np.uint8), (8,)),
        (np.zeros(16, np.uint8)[:8], np.dtype(np.uint8), (8,)),
        (np.zeros(8, np.uint8), np.dtype(np.uint8), (9,)),
        (np.zeros(8, np.uint8), np.dtype(np.uint64), ()),
        (np.zeros(8, np.uint8), np.dtype(object), (1,)),
        (np.zeros(8, np.uint8), np.dtype("(2,)u4"), (1,)),
        (np.zeros((4, 4), np.uint8, order="F"), np.dtype(np.uint8), (16,)),
        (np.zeros(0, np.uint8), np.dtype(np.uint8), (0,)),
    ],
)
def test_what_is_not_taken_over(memory: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    assert taken_over(memory, dtype, shape) is None
