"""Long pieces in parts: what did not change is not written, and everything comes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128

from cutline.errors import CannotRestore
from cutline.participant.capture import Captured, Capturer
from cutline.participant.parts import SMALLEST, Cutter, Part, part_size
from cutline.participant.restore import restore
from cutline.storage.image import Piece
from cutline.storage.part_names import part_name, piece_of
from tests.participant.images import Images, Packs, graph_of
from tests.participant.test_tracking import drive

KIB = 1024
# The Pickler's frames end at the first opcode after 64 KiB.
FRAME = 66 * KIB


class Agent:
    """A participant with a long story."""

    def __init__(self, entries: int = 2000) -> None:
        self.name = "teller"
        self.story = [entry(number) for number in range(entries)]
        self.told = 0


def entry(number: int, words: int = 24) -> dict[str, Any]:
    text = " ".join(str(number * step % 999_983) for step in range(7919, 7919 + words))
    return {"number": number, "text": text, "tags": ["new"]}


class Line:
    """Captures in a row, each relative to the one before, and restored at once."""

    def __init__(self, agent: Any, images: Images | None = None, **options: Any) -> None:
        self.agent = agent
        self.capturer = Capturer("p", **options)
        self.images = images or Images()
        self.number = 0

    def take(self) -> Captured:
        against = self.number or None
        self.number += 1
        captured = self.capturer.capture(self.agent, number=self.number, against=against)
        self.images.put(captured, against)
        self.capturer.committed(self.number)
        assert graph_of(self.images.restore(self.number)) == graph_of(self.agent)
        return captured

    def go_on(self, **options: Any) -> None:
        """As after a loss: another capturer, which restores."""
        self.capturer = Capturer("p", **options)
        restored = self.capturer.expecting()
        self.agent = self.images.restore(self.number, restored)
        self.capturer.adopt(self.number, self.agent, restored)


def header(captured: Captured) -> dict[str, Any]:
    content = captured.pieces[0].content
    assert captured.pieces[0].name == "header" and content is not None
    doc: dict[str, Any] = msgpack.unpackb(content)
    return doc


def written(captured: Captured) -> list[str]:
    return [piece.name for piece in captured.pieces if piece.content is not None and piece.name != "header"]


# -- what is written ---------------------------------------------------------------------------------------


def test_what_is_appended_writes_the_last_part() -> None:
    line = Line(Agent())
    first = line.take()
    size, count = header(first)["parts"]["attr:story"]
    assert size == SMALLEST and count == len(first.pieces) - 3 > 5
    for number in range(3):
        line.agent.story += [entry(10_000 + number) for _ in range(10)]
        captured = line.take()
        assert set(written(captured)) <= {part_name("attr:story", at) for at in (count - 1, count)}
        assert 0 < captured.changed_bytes <= 2 * FRAME
        assert captured.changed_bytes == sum(len(p.content) for p in captured.pieces if p.content is not None)
    assert 0 < captured.detecting <= captured.stall
    assert captured.state_bytes > first.state_bytes > (count - 1) * SMALLEST
    assert line.take().changed_bytes == 0


def test_an_edit_of_the_same_length_writes_one_part() -> None:
    line = Line(Agent())
    line.take()
    line.agent.story[1000]["text"] = line.agent.story[1000]["text"][::-1]
    captured = line.take()
    assert len(written(captured)) == 1 and captured.changed_bytes <= FRAME


def test_a_large_string_is_cut_at_fixed_places() -> None:
    agent: Any = Agent(3)
    agent.text = "a" * (10 * SMALLEST + 100)
    agent.raw = bytearray(3 * SMALLEST)
    line = Line(agent)
    line.take()
    agent.text = agent.text[: 5 * SMALLEST + 7] + "b" + agent.text[5 * SMALLEST + 8 :]
    agent.raw[-1] = 1
    assert written(line.take()) == [part_name("attr:text", 5), part_name("attr:raw", 2)]


def test_a_bytearray_in_parts_is_copied_at_once() -> None:
    agent: Any = Agent(3)
    agent.raw = bytearray(3 * SMALLEST)
    captured = Capturer("p").capture(agent, number=1, against=None)
    agent.raw[:] = b"x" * len(agent.raw)
    agent.raw.append(1)
    images = Images()
    images.put(captured, None)
    assert images.restore(1).raw == bytes(3 * SMALLEST)


def test_after_a_restore_too() -> None:
    line = Line(Agent())
    line.take()
    line.go_on()
    line.agent.story.append(entry(1))
    assert len(written(line.take())) <= 2


def test_an_instance_that_is_one_piece() -> None:
    class_: Any = type("Loose", (list,), {"__module__": __name__})
    globals()["Loose"] = class_
    try:
        line = Line(class_(entry(number) for number in range(2000)))
        line.take()
        line.agent.append(entry(1))
        captured = line.capturer.capture(line.agent, number=2, against=1)
        assert 0 < captured.changed_bytes <= 2 * FRAME
        line.images.put(captured, 1)
        assert line.images.restore(2) == line.agent
    finally:
        del globals()["Loose"]


# -- the size of parts -------------------------------------------------------------------------------------


def test_a_story_that_grows_and_shrinks() -> None:
    """Parts have another size then, once in a while, and stay what they are between."""
    line = Line(Agent(10), Packs(), part=64)
    sizes = []
    lengths = [10 * 2**n for n in range(9)] + [10 * 2**n for n in range(8, -1, -1)]
    for length in lengths:
        del line.agent.story[length:]
        line.agent.story += [entry(number) for number in range(len(line.agent.story), length)]
        # As whoever restores sees it, so that every header is there.
        line.take()
        line.go_on(part=64)
        size, count = line.capturer._latest.cuts["attr:story"]
        # The size follows one capture later.
        assert count <= 513
        sizes.append(size)
        # A new size writes everything once more.
        line.take()
        assert line.take().changed_bytes == 0
    changes = [(one, other) for one, other in zip(sizes, sizes[1:], strict=False) if one != other]
    assert 0 < len(changes) <= 6 and all(max(pair) >= 4 * min(pair) for pair in changes)
    assert sizes[0] == sizes[-1] == 64 and max(sizes) >= 1024


@settings(deadline=None)
@given(st.integers(0, 1 << 40), st.integers(0, 24))
def test_a_size_changes_only_when_it_is_far_off(length: int, power: int) -> None:
    before = SMALLEST << power
    size = part_size(length, before)
    assert size >= SMALLEST and size & (size - 1) == 0
    assert length <= 256 * size and (size <= 2 * SMALLEST or length > 32 * size)
    assert part_size(length, size) == size
    assert size == before or max(size, before) >= 4 * min(size, before)


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), st.sampled_from((1, 16, 64)), st.data())
def test_boundaries_follow_from_what_comes_before(lengths: list[int], size: int, data: st.DataObject) -> None:
    chunks = [bytes([number]) * length for number, length in enumerate(lengths)]
    parts = cut(chunks, size)
    assert b"".join(chunk for part in parts for chunk in part.chunks) == b"".join(chunks)
    assert all(size <= part.length <= 3 * size for part in parts[:-1])
    fewer = cut(chunks[: data.draw(st.integers(1, len(chunks)))], size)
    assert fewer[:-1] == parts[: len(fewer) - 1]
    # What is known is not kept, and nothing else is left out.
    every = data.draw(st.integers(1, 4))
    lies = [b"" if at % every else part.quick for at, part in enumerate(parts)]
    again = cut(chunks, size, lies)
    assert [part.known for part in again] == [quick != b"" for quick in lies]
    assert [part._replace(known=False, chunks=()) for part in again] == [
        part._replace(chunks=()) for part in parts
    ]
    assert [list(part.chunks) for part in again] == [
        [] if part.known else list(whole.chunks) for part, whole in zip(again, parts, strict=True)
    ]


def cut(chunks: list[bytes], size: int, known: list[bytes] | None = None) -> list[Part]:
    cutter = Cutter(size, 7, known or ())
    for chunk in chunks:
        cutter.write(chunk)
    return cutter.parts()


def test_a_bytearray_that_is_written_is_copied() -> None:
    cutter, raw = Cutter(64, 7), bytearray(b"a" * 1000)
    cutter.write(raw)
    raw[:] = b"b" * 1000
    raw.append(1)
    assert b"".join(chunk for part in cutter.parts() for chunk in part.chunks) == b"a" * 1000


# -- reading -----------------------------------------------------------------------------------------------


def pieces_of(captured: Captured) -> list[tuple[str, bytes]]:
    return [(piece.name, bytes(piece.content or b"")) for piece in captured.pieces]


def test_a_state_of_the_version_before_is_read_and_built_on() -> None:
    """It had no parts, however long a piece was."""
    line = Line(Agent(), part=1 << 40)
    captured = line.take()
    assert [piece.name for piece in captured.pieces] == ["header", "attr:name", "attr:story", "attr:told"]
    assert header(captured)["format"] == 1 and "parts" not in header(captured)
    line.go_on()
    line.agent.story.append(entry(1))
    captured = line.take()
    assert header(captured)["format"] == 2 and "attr:name" not in written(captured)
    line.agent.story.append(entry(2))
    assert len(written(line.take())) <= 2


def test_a_reader_of_before_is_told_only_where_there_are_parts() -> None:
    """It refuses format 2, and reads what it can read."""
    assert header(Capturer("p").capture(Agent(3), number=1, against=None))["format"] == 1
    assert header(Capturer("p").capture(Agent(), number=1, against=None))["format"] == 2


@pytest.mark.parametrize(
    "spoil",
    (
        lambda pieces: pieces.pop(3),
        lambda pieces: pieces.pop(),
        lambda pieces: pieces.insert(2, (part_name("attr:name", 1), b"")),
        lambda pieces: pieces.insert(3, pieces.pop(4)),
        lambda pieces: pieces.pop(2),
    ),
)
def test_missing_or_strange_parts_are_refused(spoil: Callable[[list[tuple[str, bytes]]], Any]) -> None:
    agent = Agent()
    del agent.told
    pieces = pieces_of(Capturer("p").capture(agent, number=1, against=None))
    assert [name for name, _ in pieces[:4]] == [
        "header",
        "attr:name",
        "attr:story",
        part_name("attr:story", 1),
    ]
    spoil(pieces)
    with pytest.raises(CannotRestore, match="'p'.*parts that its header names"):
        restore(pieces, {}, participant="p")


def test_names_of_parts() -> None:
    for name in ("state", "header", "attr:a", "slot:part:1:x", "attr:part:2:attr:b", "attr:"):
        assert piece_of(name) == name == part_name(name, 0)
        assert {piece_of(part_name(name, at)) for at in range(12)} == {name}
        assert len({part_name(name, at) for at in range(12)}) == 12


def test_attributes_of_any_name() -> None:
    agent = Agent(3)
    vars(agent).update({"part:1:attr:story": agent.story, "story:1": ["x" * 300], "": agent.story})
    assert len(Line(agent, part=64).take().pieces) > 10


# -- the order of pieces -----------------------------------------------------------------------------------


def test_order_is_about_whole_pieces() -> None:
    """What grows comes last, although most of its parts never change."""
    line = Line(Agent(1500), Packs(), part=16 * KIB)
    # What comes after the story changes with it, as it refers back by position.
    tags = ["later"]
    line.agent.later = [{**entry(number), "tags": tags} for number in range(1500)]
    sizes = []
    for number in range(12):
        line.agent.story.append(entry(number))
        sizes.append(line.take().changed_bytes)
    assert (
        line.capturer._order.arrange(["attr:story", "attr:later", "attr:name", "attr:told"])[-1]
        == "attr:story"
    )
    assert sizes[1] > 100 * KIB and max(sizes[6:]) <= 2 * FRAME


# -- lies are found out ------------------------------------------------------------------------------------


class Forgetful(Capturer):
    """Calls changed parts unchanged."""

    def _part(self, name: str, part: Any, table: Any, base: Any) -> Piece:
        piece = super()._part(name, part, table, base)
        before = base.pieces.get(name) if base is not None and piece_of(name) != name else None
        if piece.content is not None and before and before[1] == len(piece.content):
            return Piece(name, before[0], None)
        return piece


@pytest.mark.parametrize("stored", (Images, Packs))
def test_a_changed_part_that_is_called_unchanged_is_caught(stored: type[Images]) -> None:
    with pytest.raises((AssertionError, CannotRestore)):
        for seed in range(500):
            drive("hash", seed, stored=stored, capturing=Forgetful)


def rewrite(seed: int) -> None:
    """Random edits of a story of many frames, several to a part."""
    chance = random.Random(seed)
    line = Line(Agent(2000), Packs(), part=128 * KIB)
    for number in range(10):
        line.take()
        story = line.agent.story
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(story))
            match chance.randrange(5):
                case 0:
                    story.append(entry(number))
                case 1:
                    story[at]["text"] = story[at]["text"][::-1]
                case 2:
                    story[at] = entry(number, words=chance.randrange(40))
                case 3:
                    story[at] = story[chance.randrange(len(story))]
                case 4:
                    del story[at : at + chance.randrange(3)]


def test_frames_are_put_together_exactly() -> None:
    for seed in range(2):
        rewrite(seed)


def test_a_hash_over_less_than_the_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_of(chunks: Sequence[bytes | memoryview]) -> bytes:
        digest: bytes = blake3(chunks[0]).digest()
        return digest

    monkeypatch.setattr("cutline.participant.capture.digest_of", digest_of)
    with pytest.raises((AssertionError, CannotRestore)):
        for seed in range(40):
            rewrite(seed)


def test_a_quick_hash_over_less_than_the_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty:
        """Hears the beginning of every part."""

        def __init__(self, seed: int) -> None:
            self.hash = xxh3_128(seed=seed)
            self.heard = 0

        def update(self, some: bytes | memoryview) -> None:
            if not self.heard:
                self.hash.update(some)
            self.heard += len(some)

        def digest(self) -> bytes:
            return self.hash.digest()

    monkeypatch.setattr("cutline.participant.parts.xxh3_128", Hasty)
    with pytest.raises((AssertionError, CannotRestore)):
        for seed in range(40):
            rewrite(seed)
