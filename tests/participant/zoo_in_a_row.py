"""Random changes to awkward state, captures that overlap, abort and are folded, restores: each is exact.

The machine of `test_capture`, over everything in the catalogue and the zoo. What a capture is compared with
is the live state itself, right after it was taken: by every bit and by what is shared (`same`). Whoever
writes a capture does so later, so it is written to storage when it has been decided on, and must then still
say what it said; chains in storage are folded all the time.
"""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from cutline.participant.capture import Captured, Capturer
from cutline.participant.page_tracker import PageTracker, Span
from cutline.participant.restore import restore
from cutline.storage.blobs import pack_key
from cutline.storage.image import Held, ImageRef, read_image, write_image
from cutline.storage.memory import MemoryBlobs
from tests.participant.animals import CATALOGUE, Open, small_zoo, torch
from tests.participant.mutating import everything_in, found_in, mutate
from tests.participant.test_capture import CapturesInARow

__all__ = ("ZooInARow", "drive")

zoo: Any = importlib.import_module("tests.inputs.state_zoo")
ANIMALS: dict[str, Callable[[random.Random], Any]] = {
    **CATALOGUE,
    **{f"zoo {name}": make for name, make in small_zoo().items()},
}
# Packs in a chain of storage.
_MOST = 2


class Picky:
    """The page tracker of this process, to one who may not have it for some memory, and later for other."""

    def __init__(self, pages: PageTracker) -> None:
        self._pages = pages
        self._turn = itertools.count()

    def _refuses(self, span: Span) -> bool:
        return (span[0] // 4096 + next(self._turn) // 40) % 3 == 0

    def watch(self, asker: object, spans: Sequence[Span]) -> list[bool]:
        given = [span for span in spans if not self._refuses(span)]
        known = dict(zip(given, self._pages.watch(asker, given), strict=True))
        return [known.get(span, False) for span in spans]

    def watch_too(self, asker: object, span: Span) -> tuple[int, int] | None:
        return None if self._refuses(span) else self._pages.watch_too(asker, span)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pages, name)


class ZooInARow(CapturesInARow):
    """`way`: "kernel", "hash", or "mixed", where some regions go one way and some the other, and change."""

    way = "mixed"

    def __init__(self) -> None:
        self.blobs = MemoryBlobs()
        self.refs: dict[int, ImageRef] = {}
        self.taken: dict[int, tuple[Captured, int | None]] = {}
        self.log: list[str] = []
        super().__init__()

    def new_agent(self) -> Any:
        return Open()

    def new_capturer(self) -> Capturer:
        tracking = "auto" if self.way == "mixed" else self.way
        capturer = Capturer("p", region_min=2048, block=64, tracking=tracking, part=64)
        tracker: Any = capturer._tracker
        if self.way == "mixed" and tracker._pages is not None:
            tracker._pages = Picky(tracker._pages)
        return capturer

    @initialize(
        names=st.lists(st.sampled_from(sorted(ANIMALS)), min_size=1, max_size=3), seed=st.integers(0, 255)
    )
    def begin(self, names: list[str], seed: int) -> None:
        for number, name in enumerate(names):
            self.add(f"x{number}", name, seed)

    def add(self, attribute: str, name: str, seed: int) -> None:
        self.log.append(f"{attribute} = {name}({seed})")
        setattr(self.agent, attribute, ANIMALS[name](random.Random(seed)))

    @rule(
        edits=st.lists(
            st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 5000)), min_size=1, max_size=3
        )
    )
    def edit(self, edits: list[tuple[int, int, int]]) -> None:
        for which, how, number in edits:
            self.log.append(mutate(self.agent, which, how, number))

    @rule(name=st.sampled_from(sorted(ANIMALS)), seed=st.integers(0, 255))
    def another(self, name: str, seed: int) -> None:
        self.add(f"y{seed % 2}", name, seed)

    @precondition(lambda self: self.base is not None)
    @rule(most=st.integers(1, 9))
    def copy_ahead(self, most: int) -> None:
        assert self.base is not None
        self.capturer.copy_ahead(self.base, most)

    def remember(self, captured: Captured, against: int | None) -> None:
        self.log.append(f"capture {self.number} against {against}, {captured.tracked}")
        self.taken[self.number] = captured, against
        self._is(self.images.restore(self.number), self.agent)

    @rule(which=st.integers(0, 2), commit=st.sampled_from((True, True, False)))
    @precondition(lambda self: self.undecided)
    def decide(self, which: int, commit: bool) -> None:
        number = self.undecided[which % len(self.undecided)]
        self.log.append(f"{'commit' if commit else 'abort'} {number}")
        super().decide(which, commit)
        captured, against = self.taken.pop(number)
        if commit:
            self._write(captured, against)

    def _write(self, captured: Captured, against: int | None) -> None:
        """What happened to the state since the capture is none of its business."""
        number = captured.number
        ref = write_image(
            self.blobs,
            pack_key("s", "1f", 1, number, "p", 1),
            header={},
            sections={},
            pieces=captured.pieces,
            regions=captured.regions,
            parent=None if against is None else self.refs[against],
            most=_MOST,
        )
        self.refs[number] = ref
        pieces, regions = self.images.images[number]
        image = read_image(self.blobs, ref)
        assert image.pieces == pieces
        assert {region: memory.tobytes() for region, memory in image.regions.items()} == regions

    @precondition(lambda self: self.base is not None and not self.undecided)
    @rule(known=st.booleans())
    def start_again(self, known: bool) -> None:
        self.log.append(f"restore {self.base}")
        super().start_again(known)

    @precondition(lambda self: self.base is not None and not self.undecided)
    @rule(known=st.booleans())
    def go_back_in_place(self, known: bool) -> None:
        """What still holds what the cut holds is taken over."""
        assert self.base is not None
        self.log.append(f"back to {self.base}")
        standing = self.capturer.standing(self.base, self.agent)
        self.agent = None
        held: Held | None = standing.alone()
        image = read_image(self.blobs, self.refs[self.base], held)
        self.capturer = self.new_capturer()
        restored = self.capturer.expecting(standing if known else None)
        self.agent = restore(image.pieces, image.regions, participant="p", restored=restored)
        self.capturer.adopt(self.base, self.agent, restored)
        self._is(self.agent, self.images.restore(self.base))

    def every_capture_is_exact(self) -> None:
        """It was, when it was taken, and is looked at again when it is written."""

    def _is(self, got: Any, wanted: Any) -> None:
        try:
            zoo.same(vars(wanted), vars(got))
            if torch is not None:
                # Which the zoo does not know.
                zoo.same(_memory_of(wanted), _memory_of(got))
        except AssertionError as error:
            raise AssertionError(f"{error}, after:\n" + "\n".join(self.log)) from None


def _memory_of(state: Any) -> list[Any]:
    """What arrays and tensors show, as arrays, and of tensors whether they are trained."""
    found: list[Any] = []
    for here in everything_in(state):
        if isinstance(here, torch.Tensor):
            found += [here.requires_grad, here.detach().numpy()]
        elif type(here) is np.ndarray and here.dtype.kind in "iuf":
            found.append(here)
    return found


def machine(way: str) -> ZooInARow:
    """One that is not run by hypothesis."""
    made: ZooInARow = type("Driven", (ZooInARow,), {"way": way})()
    return made


def drive(way: str, seed: int, steps: int = 25) -> None:
    """One run of the machine, by a seed: hypothesis takes its time to get to what matters."""
    chance = random.Random(seed)
    driven = machine(way)
    names = sorted(ANIMALS)
    driven.begin(
        [chance.choice(sorted(CATALOGUE)), *chance.choices(names, k=chance.randrange(3))], seed % 256
    )
    driven.capture(0)
    driven.decide(0, True)
    for _ in range(steps):
        chosen = chance.random()
        if chosen < 0.45:
            many = len(found_in(driven.agent))
            driven.edit(
                [(chance.randrange(many), chance.randrange(40), chance.randrange(5000)) for _ in range(3)]
            )
        elif chosen < 0.5:
            driven.another(chance.choice(names), chance.randrange(256))
        elif chosen < 0.8 and len(driven.undecided) < 3:
            driven.capture(chance.randrange(8))
        elif chosen < 0.85 and driven.base is not None:
            driven.copy_ahead(chance.randrange(1, 9))
        elif driven.undecided:
            driven.decide(chance.randrange(3), chance.random() < 0.7)
        elif driven.base is not None:
            again = driven.start_again if chance.random() < 0.5 else driven.go_back_in_place
            again(chance.random() < 0.7)
