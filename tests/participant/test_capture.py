"""Captures in a row: exact, copied at once, small when little changed, and holding nothing of the state."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cutline.errors import CannotCapture
from cutline.participant.capture import Captured, Capturer, check_capturable
from cutline.participant.kernel_pages import PAGE
from cutline.participant.restore import restore
from cutline.storage.blobs import pack_key
from cutline.storage.image import ImageRef, read_image, write_image
from cutline.storage.memory import MemoryBlobs
from tests.participant.edits import EDITS, busy_agent
from tests.participant.images import WAYS, Images, Packs, graph_of

BIG = 1 << 20


class Agent:
    """A participant."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    """Attributes in slots, one of them private, one never set."""

    __slots__ = ("a", "unset", "__own", "__dict__")

    def __init__(self) -> None:
        self.a = [1]
        self.__own = self.a
        self.late = self

    def own(self) -> list[int]:
        return self.__own


class Guarded:
    """Refuses attributes after its birth, as frozen classes do."""

    def __init__(self, x: int) -> None:
        vars(self)["x"] = x

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class Demanding:
    """Cannot be made without an argument."""

    def __new__(cls, needed: int) -> Demanding:
        return super().__new__(cls)


def first(agent: object, **options: Any) -> tuple[Capturer, Images]:
    """A capturer whose capture 1 of `agent` committed."""
    capturer, images = Capturer("p", **options), Images()
    images.put(capturer.capture(agent, number=1, against=None), None)
    capturer.committed(1)
    return capturer, images


def written(captured: Captured) -> dict[str, int]:
    """Bytes in the result, by piece and region."""
    sizes = {piece.name: len(bytes(piece.content)) for piece in captured.pieces if piece.content is not None}
    sizes.update(
        (f"region {region.number}", sum(len(run) for _, run in region.extents))
        for region in captured.regions
        if region.extents
    )
    return sizes


def test_the_handler_may_go_on_at_once() -> None:
    agent: Any = Agent(
        big=np.ones(BIG),
        small=np.ones(10),
        raw=bytearray(b"a" * 100_000),
        large=bytearray(BIG),
        many=[{"k": [1]}],
    )
    before = copy.deepcopy(vars(agent))
    captured = Capturer("p").capture(agent, number=1, against=None)
    agent.big[:] = 2
    agent.small[:] = 2
    agent.raw[:] = b"b" * 100_000
    agent.large[:] = b"c" * BIG
    agent.many[0]["k"].append(2)
    images = Images()
    images.put(captured, None)
    restored = vars(images.restore(1))
    for name, value in before.items():
        assert np.array_equal(restored[name], value), name
    assert type(restored["large"]) is bytearray


@pytest.mark.parametrize("failing", (False, True))
def test_nothing_of_the_state_is_held(failing: bool) -> None:
    agent: Any = Agent(a=np.zeros(BIG), b=bytearray(BIG), c=bytearray(10), d={"x": np.zeros(5)})
    agent.view = np.frombuffer(agent.b, np.uint8)
    if failing:
        agent.code = lambda: None
    capturer = Capturer("p")
    kept = None
    try:
        capturer.capture(agent, number=1, against=None)
    except CannotCapture as error:
        kept = error
    assert (kept is not None) is failing
    del agent.view
    agent.b.append(1)
    agent.c.append(1)
    agent.a.resize(BIG + 1)
    agent.d["x"].resize(6)


@pytest.mark.parametrize("tracking", WAYS)
def test_one_page_is_one_page(tracking: str) -> None:
    agent: Any = Agent(a=np.zeros(BIG), b=np.zeros(BIG), n=0)
    capturer, images = first(agent, tracking=tracking)
    agent.a[5] = 1
    captured = capturer.capture(agent, number=2, against=1)
    # Pages at the edges belong to neighbours too, who may have written.
    edges = 3 * PAGE if tracking == "kernel" else 0
    assert 0 < captured.changed_bytes == sum(written(captured).values()) <= PAGE + edges
    assert captured.tracked == {tracking: 16 * BIG}
    assert captured.state_bytes > 16 * BIG
    assert captured.class_name == "tests.participant.test_capture:Agent"
    assert captured.stall > 0
    images.put(captured, 1)
    assert images.restore(2).a[5] == 1 and images.restore(1).a[5] == 0


def test_through_storage() -> None:
    """A chain of packs gives back what was captured, regions that changed size and place included."""
    agent: Any = Agent(a=np.zeros(BIG), raw=bytearray(BIG), log=[], n=0)
    capturer, blobs = Capturer("p"), MemoryBlobs()
    parent: ImageRef | None = None
    for number in range(1, 6):
        agent.a[number * 700] = number
        agent.raw.append(number)
        agent.log.append({"n": number})
        agent.n = np.arange(number * 40_000) if number % 2 else agent.a[::2]
        captured = capturer.capture(agent, number=number, against=None if parent is None else number - 1)
        parent = write_image(
            blobs,
            pack_key("s", "1f", 1, number, "p", 1),
            header={},
            sections={},
            pieces=captured.pieces,
            regions=captured.regions,
            parent=parent,
        )
        capturer.committed(number)
        image = read_image(blobs, parent)
        again: Any = restore(image.pieces, image.regions, participant="p")
        assert np.array_equal(again.a, agent.a) and np.array_equal(again.n, agent.n)
        assert (again.raw, again.log) == (agent.raw, agent.log)
        assert np.shares_memory(again.a, again.n) == np.shares_memory(agent.a, agent.n)


def test_numbers_follow_owners() -> None:
    agent: Any = Agent(a=np.full(BIG, 1.0), b=np.full(BIG, 2.0))
    capturer, images = first(agent, tracking="hash")
    agent.a, agent.b = agent.b, agent.a
    captured = capturer.capture(agent, number=2, against=1)
    assert set(written(captured)) <= {"header"}
    images.put(captured, 1)
    restored = images.restore(2)
    assert (restored.a[0], restored.b[0]) == (2.0, 1.0)
    # A new array in an old place takes over the number when the size is the same.
    agent.a = agent.a.copy()
    agent.a[0] = 5
    captured = capturer.capture(agent, number=3, against=2)
    assert written(captured)["region 1"] == 4096
    images.put(captured, 2)
    assert images.restore(3).a[0] == 5


def test_an_aborted_capture_takes_nothing_with_it() -> None:
    agent: Any = Agent(a=np.zeros(BIG), log=[1])
    capturer, images = first(agent)
    agent.a[0] = 1
    agent.log.append(2)
    capturer.capture(agent, number=2, against=1)
    agent.a[1000] = 1
    overlapping = capturer.capture(agent, number=3, against=1)
    capturer.aborted(2)
    images.put(overlapping, 1)
    # Both pages; the first may begin within the array's own, and those at the edges are the neighbours' too.
    assert PAGE < written(overlapping)["region 0"] <= 4 * PAGE
    capturer.committed(3)
    assert images.restore(3).a.sum() == 2 and images.restore(3).log == [1, 2]
    # Relative to a capture that is not known any more: everything.
    assert "header" in written(capturer.capture(agent, number=4, against=2))


@pytest.mark.parametrize("tracking", WAYS)
def test_adopted_state_makes_small_deltas(tracking: str) -> None:
    agent: Any = Agent(a=np.zeros(BIG), large=bytearray(BIG), d={"k": ["v"]}, n=0)
    _, images = first(agent)
    capturer = Capturer("p", tracking=tracking)
    restored = capturer.expecting()
    again = images.restore(1, restored)
    capturer.adopt(1, again, restored)
    if tracking == "hash":
        # Appending may move it, and an account of pages is about addresses.
        again.large.append(0)
        del again.large[-1]
    again.a.resize(BIG)
    again.a[7] = 1
    captured = capturer.capture(again, number=2, against=1)
    edges = 4 * PAGE if tracking == "kernel" else 0
    assert 0 < sum(written(captured).values()) <= 4096 + edges
    images.put(captured, 1)
    assert images.restore(2).a[7] == 1


def test_adopted_without_knowledge_writes_everything() -> None:
    agent: Any = Agent(a=np.zeros(BIG), n=0)
    _, images = first(agent)
    again = images.restore(1)
    capturer = Capturer("p")
    capturer.adopt(1, again)
    captured = capturer.capture(again, number=2, against=1)
    assert captured.changed_bytes == captured.state_bytes
    assert captured.regions[0].number not in {0}
    images.put(captured, 1)
    assert images.restore(2).a.tolist() == agent.a.tolist()


def test_stable_attributes_come_first() -> None:
    """A growing first attribute would shift the memo of all later ones; soon it comes last."""
    agent: Any = Agent(log=[], memory={f"k{i}": [str(i)] * 3 for i in range(2000)})
    agent.memory["again"] = agent.memory["k1"]
    capturer, images = first(agent)
    sizes = []
    for number in range(2, 30):
        agent.log.append({"n": [number]})
        captured = capturer.capture(agent, number=number, against=number - 1)
        images.put(captured, number - 1)
        capturer.committed(number)
        sizes.append(captured.changed_bytes)
    assert max(sizes[8:]) < 2000 < sizes[0]
    assert list(vars(images.restore(29))) == ["log", "memory"]


def test_slots_and_self_references() -> None:
    _, images = first(Slotted())
    restored = images.restore(1)
    assert restored.a == [1] and restored.own() is restored.a and restored.late is restored
    assert not hasattr(restored, "unset")


def test_attributes_go_around_setattr() -> None:
    _, images = first(Guarded(5))
    assert images.restore(1).x == 5


def test_what_would_not_load_is_refused_at_once() -> None:
    with pytest.raises(CannotCapture, match="Demanding"):
        check_capturable(Demanding(1), "p")
    with pytest.raises(CannotCapture, match=r"self\.inner\[0\]"):
        check_capturable(Agent(inner=[Demanding(1)]), "p")


class Checked:
    """Its loading looks at what a large array holds."""

    def __init__(self) -> None:
        self.weights = np.ones(BIG)

    def __setstate__(self, state: dict[str, Any]) -> None:
        assert state["weights"].all()
        vars(self).update(state)


def test_a_trial_knows_the_content_where_it_matters() -> None:
    agent = Agent(checked=Checked())
    _, images = first(agent)
    assert images.restore(1).checked.weights.all()
    check_capturable(agent, "p")


def test_collection_waits_for_the_end_of_a_capture() -> None:
    seen = []

    class Watching(Agent):
        def __reduce__(self) -> Any:
            seen.append(gc.isenabled())
            return Agent, ()

    Capturer("p").capture(Watching(), number=1, against=None)
    assert seen and not any(seen)
    assert gc.isenabled()


class CapturesInARow(RuleBasedStateMachine):
    """Random edits of a graph with shared parts, captures that overlap, commit or abort; each is exact."""

    tracking = "auto"
    stored: type[Images] = Images
    capturing: type[Capturer] = Capturer

    def __init__(self) -> None:
        super().__init__()
        self.agent = self.new_agent()
        self.capturer = self.new_capturer()
        self.images = self.stored()
        self.copies: dict[int, Any] = {}
        self.number = 0
        self.base: int | None = None
        self.undecided: list[int] = []

    def new_agent(self) -> Any:
        return busy_agent()

    def new_capturer(self) -> Capturer:
        return self.capturing("p", region_min=4096, block=64, tracking=self.tracking, part=16)

    def remember(self, captured: Captured, against: int | None) -> None:
        """What the capture that was just put into the images is to be like."""
        self.copies[self.number] = self._seen(self.agent)

    # One rule for all edits: captures and decisions come as often as all of them together.
    @rule(edits=st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 5000)), min_size=1, max_size=3))
    def edit(self, edits: list[tuple[Callable[[Any, int], None], int]]) -> None:
        for each, number in edits:
            each(self.agent, number)

    @precondition(lambda self: len(self.undecided) < 3)
    @rule(full=st.integers(0, 7))
    def capture(self, full: int) -> None:
        self.number += 1
        against = self.base if full else None
        captured = self.capturer.capture(self.agent, number=self.number, against=against)
        self.images.put(captured, against)
        self.remember(captured, against)
        self.undecided.append(self.number)

    @precondition(lambda self: self.undecided)
    @rule(which=st.integers(0, 2), commit=st.sampled_from((True, True, False)))
    def decide(self, which: int, commit: bool) -> None:
        number = self.undecided.pop(which % len(self.undecided))
        if not commit:
            self.capturer.aborted(number)
        elif self.base is None or number > self.base:
            self.base = number
            self.capturer.committed(number)

    @precondition(lambda self: self.base is not None and not self.undecided)
    @rule(known=st.booleans())
    def start_again(self, known: bool) -> None:
        assert self.base is not None
        self.capturer = self.new_capturer()
        restored = self.capturer.expecting() if known else None
        self.agent = self.images.restore(self.base, restored)
        self.capturer.adopt(self.base, self.agent, restored)

    @staticmethod
    def _seen(agent: Any) -> Any:
        return graph_of(agent), bool(np.shares_memory(agent.a, agent.v))

    @invariant()
    def every_capture_is_exact(self) -> None:
        if self.number not in self.copies:
            return
        assert self._seen(self.images.restore(self.number)) == self.copies[self.number]


class CapturesByHash(CapturesInARow):
    tracking = "hash"


class CapturesInPacks(CapturesInARow):
    """Through chains of packs, folded in between."""

    stored = Packs


TestCapturesInPacks = CapturesInPacks.TestCase
TestCapturesInPacks.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestCapturesInARow = CapturesInARow.TestCase
TestCapturesInARow.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestCapturesByHash = CapturesByHash.TestCase
TestCapturesByHash.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_adopted_memory_that_moved_keeps_its_number() -> None:
    agent: Any = Agent(a=np.zeros(BIG), b=np.ones(BIG))
    _, images = first(agent)
    capturer = Capturer("p", tracking="hash")
    restored = capturer.expecting()
    again = images.restore(1, restored)
    capturer.adopt(1, again, restored)
    again.a, again.b = again.a.copy(), again.b.copy()
    again.b[7] = 3
    assert written(capturer.capture(again, number=2, against=1)) == {"region 1": 4096}
