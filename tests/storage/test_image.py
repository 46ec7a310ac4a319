"""Images: what is written is read, deltas cost what changed, and a wrong base is refused."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.errors import Corrupt, Misuse, RefusedOption
from cutline.storage import (
    DirectoryBlobs,
    ImageRef,
    MemoryBlobs,
    Piece,
    Region,
    pack_key,
    read_header,
    read_image,
    write_image,
)
from cutline.storage.codec import canonical, decode, digest_of
from cutline.storage.image import Image, Memory
from cutline.storage.layers import _seen
from cutline.storage.pack import EXTENT

PAGE = 4096


def test_pieces_that_are_left_unread_are_checked_when_they_are_read(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    large = random.Random(1).randbytes(2_500_000)
    pieces = [Piece("a", digest_of(b"a"), b"a"), Piece("large", digest_of(large), large)]
    first = write_image(
        blobs, "p/1f/1/1/a.pack", header={}, sections={}, pieces=pieces, regions=[], parent=None
    )
    # Of a delta too, which leaves it out.
    pieces = [Piece("a", digest_of(b"b"), b"b"), Piece("large", digest_of(large), None)]
    ref = write_image(
        blobs, "p/1f/1/2/a.pack", header={}, sections={}, pieces=pieces, regions=[], parent=first
    )
    image = read_image(blobs, ref, left=lambda name, size: size > 1000)
    assert image.pieces == [("a", b"b")] and image.unread["large"].digest == digest_of(large)
    unread = image.unread["large"]
    assert unread.read(1_000_000, 500_000) == large[1_000_000:1_500_000] and unread.whole() == large
    with pytest.raises(ValueError, match="none at"):
        unread.read(2_499_999, 2)
    path = tmp_path / "p/1f/1/1/a.pack"
    content = bytearray(path.read_bytes())
    content[1_200_000] ^= 1
    with open(path, "r+b") as file:
        file.write(content)
    assert unread.read(0, 1000) == large[:1000]
    with pytest.raises(Corrupt, match="damaged extent 1"):
        unread.read(1_100_000, 200_000)
    path.unlink()
    assert unread.read(2_400_000, 1000) == large[2_400_000:2_401_000]
    with pytest.raises(Corrupt, match="is missing"):
        read_image(blobs, ref, left=lambda name, size: size > 1000)


def key(checkpoint: int) -> str:
    return pack_key("s", "l", 0, checkpoint, "p", 1)


def write(
    blobs: MemoryBlobs | DirectoryBlobs,
    checkpoint: int = 1,
    *,
    sections: dict[str, bytes] | None = None,
    pieces: dict[str, bytes | None] | None = None,
    regions: list[Region] | None = None,
    parent: ImageRef | None = None,
) -> ImageRef:
    table = [Piece(name, digest_of(body or b"old"), body) for name, body in (pieces or {}).items()]
    return write_image(
        blobs,
        key(checkpoint),
        header={"class": "m:C"},
        sections=sections or {},
        pieces=table,
        regions=regions or [],
        parent=parent,
    )


def forget() -> None:
    """As in a new process."""
    _seen.__init__()  # type: ignore[misc]


def regions_of(image: Image) -> dict[int, bytes]:
    return {number: memory.tobytes() for number, memory in image.regions.items()}


def test_a_full_image() -> None:
    blobs = MemoryBlobs()
    content = os.urandom(3 * EXTENT + 17)
    ref = write(
        blobs,
        sections={"small": b"s", "large": b"large" * 2000, "none": b""},
        pieces={"b": b"bb", "a": b"", "c": b"c" * 2 * EXTENT},
        regions=[Region(7, len(content), ((0, content),)), Region(3, 0, ())],
    )
    image = read_image(blobs, ref)
    assert image.header == read_header(blobs, ref) == {"class": "m:C"}
    assert image.sections == {"small": b"s", "large": b"large" * 2000, "none": b""}
    assert image.pieces == [("b", b"bb"), ("a", b""), ("c", b"c" * 2 * EXTENT)]
    assert regions_of(image) == {7: content, 3: b""}
    assert (ref.kind, ref.chain, ref.size) == ("full", (ref.key,), blobs.size(ref.key))


def test_regions_come_back_writable_and_apart() -> None:
    blobs = MemoryBlobs()
    ref = write(blobs, regions=[Region(n, PAGE, ((0, bytes(PAGE)),)) for n in (1, 2)])
    image = read_image(blobs, ref)
    image.regions[1][0] = 9
    np.frombuffer(image.regions[1], np.uint8)[1] = 8
    assert bytes(image.regions[1][:2]) == b"\x09\x08"
    assert image.regions[2][0] == 0


def test_a_delta_names_only_what_changed() -> None:
    blobs = MemoryBlobs()
    full = write(
        blobs,
        sections={"queue": b"1"},
        pieces={"a": b"old", "b": b"b1", "gone": b"x"},
        regions=[Region(1, 4 * PAGE, ((0, b"1" * 4 * PAGE),)), Region(2, PAGE, ((0, b"2" * PAGE),))],
    )
    delta = write(
        blobs,
        2,
        sections={"queue": b"2"},
        pieces={"new": b"n", "b": b"b2", "a": None},
        regions=[Region(1, 4 * PAGE, ((PAGE, b"x" * PAGE), (0, b"y" * 10))), Region(5, 2, ((0, b"zz"),))],
        parent=full,
    )
    assert (delta.kind, delta.chain) == ("delta", (full.key, delta.key))
    image = read_image(blobs, delta)
    assert image.sections == {"queue": b"2"}
    assert image.pieces == [("new", b"n"), ("b", b"b2"), ("a", b"old")]
    first = b"y" * 10 + b"1" * (PAGE - 10)
    assert regions_of(image) == {1: first + b"x" * PAGE + b"1" * 2 * PAGE, 5: b"zz"}
    assert read_image(blobs, full).pieces[0] == ("a", b"old")


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "new process"])
def test_a_wrong_base_is_refused_at_the_checkpoint(fresh: bool) -> None:
    blobs = MemoryBlobs()
    full = write(blobs, pieces={"a": b"other"}, regions=[Region(1, PAGE, ((0, bytes(PAGE)),))])
    if fresh:
        forget()
    before = list(blobs.list())
    wrong: list[tuple[dict[str, bytes | None], list[Region]]] = [
        ({"a": None}, []),
        ({"nobody": None}, []),
        ({}, [Region(2, PAGE, ())]),
        ({}, [Region(1, 2 * PAGE, ((0, bytes(PAGE)),))]),
        ({}, [Region(1, PAGE // 2, ())]),
    ]
    for pieces, regions in wrong:
        with pytest.raises(Misuse, match="parent does not hold"):
            write(blobs, 2, pieces=pieces, regions=regions, parent=full)
    assert list(blobs.list()) == before


@pytest.mark.parametrize(
    "regions",
    [
        [Region(1, 10, ((0, b"x" * 6), (5, b"y" * 5)))],
        [Region(1, 10, ((0, b"x" * 11),))],
        [Region(1, 10, ((5, b"x" * 5),))],
        [Region(1, 1, ((0, b"x"),)), Region(1, 1, ((0, b"x"),))],
    ],
)
def test_regions_that_make_no_sense(regions: list[Region]) -> None:
    with pytest.raises(Misuse):
        write(MemoryBlobs(), regions=regions)


def test_two_pieces_of_one_name() -> None:
    with pytest.raises(Misuse, match="twice"):
        write_image(
            MemoryBlobs(),
            key(1),
            header={},
            sections={},
            pieces=[Piece("a", bytes(32), b"1"), Piece("a", bytes(32), b"2")],
            regions=[],
            parent=None,
        )


def test_a_header_that_is_no_document_is_misuse_and_leaves_nothing(tmp_path: os.PathLike[str]) -> None:
    blobs = DirectoryBlobs(tmp_path)
    with pytest.raises(Misuse):
        write_image(blobs, key(1), header={"x": object()}, sections={}, pieces=[], regions=[], parent=None)
    assert [*blobs.list(), *blobs.unfinished()] == []


def test_any_buffer_is_content() -> None:
    blobs = MemoryBlobs()
    array = np.arange(1000, dtype=np.float64)
    ref = write_image(
        blobs,
        key(1),
        header={},
        sections={},
        pieces=[Piece("a", bytes(32), bytearray(b"x")), Piece("b", bytes(32), memoryview(b"yy"))],
        regions=[Region(1, 8000, ((0, memoryview(array)),))],  # type: ignore[arg-type]
        parent=None,
    )
    image = read_image(blobs, ref)
    assert image.pieces == [("a", b"x"), ("b", b"yy")]
    assert image.regions[1].tobytes() == array.tobytes()


def test_references_travel_as_documents() -> None:
    blobs = MemoryBlobs()
    full = write(blobs)
    delta = write(blobs, 2, parent=full)
    for ref in (full, delta):
        assert ImageRef.from_doc(decode(canonical(ref.to_doc()))) == ref
    doc = delta.to_doc()
    changes: list[dict[str, Any]] = [
        {"digest": b"short"},
        {"chain": []},
        {"kind": "full"},
        {"size": "1"},
        {"key": "other"},
        {"chain": None},
    ]
    for change in changes:
        with pytest.raises(ValueError):
            ImageRef.from_doc({**doc, **change})
    for hostile in ("../../etc/passwd", "/etc/passwd", "a/../../b"):
        with pytest.raises(RefusedOption):
            ImageRef.from_doc({**doc, "chain": [hostile, delta.key]})


@pytest.mark.parametrize("unaligned", [0, 5])
def test_written_bytes_are_the_changed_bytes(unaligned: int) -> None:
    """64 MiB, 1 % of the pages at random: at most 5 % more is written than changed."""
    blobs = MemoryBlobs()
    chance = random.Random(1)
    size = (64 << 20) + unaligned
    content = bytearray(chance.randbytes(size))
    full = write(blobs, regions=[Region(1, size, ((0, content),))])
    dirty = sorted(chance.sample(range((64 << 20) // PAGE), 164))
    runs = tuple((page * PAGE, chance.randbytes(PAGE)) for page in dirty)
    if unaligned:
        runs = (*runs, (size - unaligned, b"z" * unaligned))
    delta = write(blobs, 2, regions=[Region(1, size, runs)], parent=full)
    assert delta.size / sum(len(run) for _, run in runs) <= 1.01
    assert full.size / size <= 1.001
    for offset, run in runs:
        content[offset : offset + len(run)] = run
    assert read_image(blobs, delta).regions[1].tobytes() == content


def test_small_pieces_share_extents() -> None:
    blobs = MemoryBlobs()
    ref = write(blobs, pieces={f"{n}": os.urandom(10) for n in range(1000)})
    assert ref.size < 1000 * (10 + 32 + 16)


def test_an_overwritten_pack_is_not_read() -> None:
    """A region written whole again needs nothing of the older packs but their documents."""

    class Counting(MemoryBlobs):
        got = 0

        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            content = super().read(key, start, length)
            self.got += len(content)
            return content

        def read_into(self, key: str, start: int, target: memoryview) -> int:
            self.got += target.nbytes
            return super().read_into(key, start, target)

    blobs = Counting()
    size = 8 << 20
    ref = write(blobs, regions=[Region(1, size, ((0, os.urandom(size)),))])
    for checkpoint in range(2, 5):
        ref = write(blobs, checkpoint, regions=[Region(1, size, ((0, os.urandom(size)),))], parent=ref)
    read_image(blobs, ref)
    assert blobs.got < size * 1.1


@dataclass
class Step:
    """What happens to a participant between two captures; at least one thing is always written."""

    pieces: dict[str, bytes]
    number: int
    size: int
    edits: list[tuple[int, bytes]]


steps = st.builds(
    Step,
    pieces=st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=40)),
    number=st.integers(1, 3),
    size=st.integers(0, 300),
    edits=st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=50)), max_size=5),
)


def edit(regions: dict[int, bytearray], step: Step) -> list[tuple[int, bytes]]:
    """Changes one region; the runs that a capture would write for it."""
    region = regions.get(step.number)
    if region is None or len(region) != step.size:
        regions[step.number] = region = bytearray(os.urandom(step.size))
        return [(0, bytes(region))]
    runs: list[tuple[int, bytes]] = []
    end = 0
    for offset, body in sorted(step.edits):
        if offset >= end and offset + len(body) <= step.size:
            end = offset + len(body)
            region[offset:end] = body
            runs.append((offset, body))
    return runs


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=1, max_size=7), st.booleans())
def test_a_chain_reads_like_a_full(history: list[Step], one_process: bool) -> None:
    """The dumb twin: always write everything."""
    blobs = MemoryBlobs()
    ref: ImageRef | None = None
    regions: dict[int, bytearray] = {}
    known: dict[str, bytes] = {}
    for checkpoint, step in enumerate(history, 1):
        runs = {step.number: edit(regions, step)}
        rows = [Region(number, len(regions[number]), tuple(runs.get(number, ()))) for number in regions]
        table = [
            Piece(name, digest_of(body), None if known.get(name) == body else body)
            for name, body in step.pieces.items()
        ]
        if not one_process:
            forget()
        ref = write_image(
            blobs, key(checkpoint), header={}, sections={}, pieces=table, regions=rows, parent=ref
        )
        known = step.pieces
        image = read_image(blobs, ref)
        assert image.pieces == list(known.items())
        assert regions_of(image) == regions


@given(st.lists(steps, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_what_is_held_already_is_not_read_again(history: list[Step], chance: random.Random) -> None:
    blobs = MemoryBlobs()
    ref: ImageRef | None = None
    regions: dict[int, bytearray] = {}
    for checkpoint, step in enumerate(history, 1):
        runs = {step.number: edit(regions, step)}
        rows = [Region(number, len(regions[number]), tuple(runs.get(number, ()))) for number in regions]
        ref = write_image(blobs, key(checkpoint), header={}, sections={}, pieces=[], regions=rows, parent=ref)
    assert ref is not None
    offered: dict[int, Memory] = {}

    def held(number: int, size: int) -> tuple[Memory, list[tuple[int, int]]] | None:
        if not size or chance.random() < 0.3:
            return None
        memory = np.frombuffer(regions[number], np.uint8).copy()
        edges = sorted(chance.sample(range(size + 1), min(size + 1, chance.choice((0, 2, 4, 6)))))
        lacking = list(zip(edges[::2], edges[1::2], strict=False))
        for start, stop in lacking:
            memory[start:stop] ^= 0xFF
        offered[number] = memory
        return memory, lacking

    image = read_image(blobs, ref, held)
    assert regions_of(image) == regions
    assert all(image.regions[number] is memory for number, memory in offered.items())


def test_only_what_lacks_is_taken_from_the_image() -> None:
    blobs = MemoryBlobs()
    ref = write(blobs, regions=[Region(1, 4 * PAGE, ((0, b"1" * 4 * PAGE),))])
    mine = np.full(4 * PAGE, 7, np.uint8)
    image = read_image(blobs, ref, lambda number, size: (mine, [(PAGE, 2 * PAGE)]))
    assert image.regions[1] is mine
    assert mine.tobytes() == b"\x07" * PAGE + b"1" * PAGE + b"\x07" * 2 * PAGE


def test_memory_of_another_size_is_refused() -> None:
    blobs = MemoryBlobs()
    ref = write(blobs, regions=[Region(1, PAGE, ((0, bytes(PAGE)),))])
    with pytest.raises(Misuse, match="8 bytes of memory were offered for region 1"):
        read_image(blobs, ref, lambda number, size: (np.zeros(8, np.uint8), []))
