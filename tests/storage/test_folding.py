"""Folding: chains stay short, everything is read as it was written, and little is written more than once."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.errors import Corrupt
from cutline.storage import (
    CheckpointRow,
    DirectoryBlobs,
    ImageRef,
    Manifest,
    MemberImage,
    MemoryBlobs,
    Piece,
    Region,
    Store,
    memory_store,
    pack_key,
    read_image,
    write_image,
)
from cutline.storage.codec import digest_of
from cutline.storage.folding import MOST, Fold, fold_of
from cutline.storage.layers import Link, _seen
from cutline.storage.pack import EXTENT
from tests.storage.cast import SYSTEM, Scene

PAGE = 4096


def forget() -> None:
    """As in a new process."""
    _seen.__init__()  # type: ignore[misc]


@dataclass
class Memory:
    """A participant's state, what it was at each image, and deltas against any of them."""

    chance: random.Random
    pieces: dict[str, bytes] = field(default_factory=dict)
    regions: dict[int, bytearray] = field(default_factory=dict)

    def copy(self) -> Memory:
        regions = {number: bytearray(content) for number, content in self.regions.items()}
        return Memory(self.chance, dict(self.pieces), regions)

    def change(self) -> None:
        """Some contents change; now and then a name or a region comes, goes or gets another size."""
        chance = self.chance
        for name in chance.sample("abcdef", chance.randrange(3)):
            if chance.random() < 0.2:
                self.pieces.pop(name, None)
            else:
                self.pieces[name] = chance.randbytes(chance.choice((0, 5, 2_000)))
        number = chance.randrange(3)
        region = self.regions.get(number)
        if region is None or chance.random() < 0.1:
            self.regions[number] = bytearray(chance.randbytes(chance.choice((0, 300, 9_000))))
        elif chance.random() < 0.05:
            del self.regions[number]
        else:
            for _ in range(chance.randrange(6)):
                start = chance.randrange(len(region) + 1)
                stop = min(len(region), start + chance.choice((1, 64, 700)))
                region[start:stop] = chance.randbytes(stop - start)

    def rows(self, before: Memory | None) -> tuple[list[Piece], list[Region]]:
        """What a capture writes against an earlier state."""
        known = before.pieces if before else {}
        pieces = [
            Piece(name, digest_of(body), None if known.get(name) == body else body)
            for name, body in self.pieces.items()
        ]
        regions = []
        for number, content in self.regions.items():
            old = before.regions.get(number) if before else None
            runs = [(0, bytes(content))]
            if old is not None and len(old) == len(content):
                runs = [
                    (at, bytes(content[at : at + 64]))
                    for at in range(0, len(content), 64)
                    if old[at : at + 64] != content[at : at + 64]
                ]
            regions.append(Region(number, len(content), tuple(runs)))
        return pieces, regions

    def is_in(self, blobs: MemoryBlobs | DirectoryBlobs, ref: ImageRef) -> None:
        image = read_image(blobs, ref)
        assert image.pieces == list(self.pieces.items())
        assert {number: memory.tobytes() for number, memory in image.regions.items()} == self.regions


def write(
    store_blobs: MemoryBlobs, key: str, now: Memory, before: Memory | None, parent: ImageRef | None, most: int
) -> ImageRef:
    pieces, regions = now.rows(before)
    return write_image(
        store_blobs,
        key,
        header={},
        sections={"mailbox": os.urandom(now.chance.choice((3, 2_000)))},
        pieces=pieces,
        regions=regions,
        parent=parent,
        most=most,
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 4), st.booleans())
def test_a_folded_chain_reads_like_a_full(seed: int, most: int, one_process: bool) -> None:
    """Some images come to nothing; what follows builds on the last that did not."""
    chance = random.Random(seed)
    blobs = MemoryBlobs()
    state = Memory(chance)
    before: Memory | None = None
    ref: ImageRef | None = None
    for checkpoint in range(1, 16):
        state.change()
        if not one_process:
            forget()
        key = pack_key("s", "l", 0, checkpoint, "p", 1)
        written = write(blobs, key, state, before, ref, most)
        state.is_in(blobs, written)
        assert len(written.chain) <= most + 1
        if chance.random() < 0.3:
            blobs.delete(written.key)
        else:
            ref, before = written, state.copy()
    if ref is not None and before is not None:
        before.is_in(blobs, ref)


@dataclass
class Line:
    """A lineage under way: what its newest cut holds, and where that lies."""

    scene: Scene
    state: Memory
    before: Memory | None = None
    ref: ImageRef | None = None


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 4))
def test_every_listed_cut_restores_whatever_was_folded_and_collected(seed: int, most: int) -> None:
    """Changes, cuts, savepoints, aborts, forks and collections at random; two captures on one parent too."""
    chance = random.Random(seed)
    with memory_store() as store:
        first = Scene.new(store)
        lines = [Line(first, Memory(chance))]
        held: dict[tuple[str, int], Memory] = {}
        for _ in range(30):
            line = chance.choice(lines)
            what = chance.random()
            line.state.change()
            if what < 0.1:
                living = store.catalog.checkpoints(SYSTEM)
                if living and len(lines) < 4:
                    lines.append(_forked(first, chance.choice(living), held))
            elif what < 0.3:
                store.sweep(first.lease, 5.0, keep=chance.choice((1, 3)))
            else:
                _cut(store, line, held, most)
            for row in store.catalog.checkpoints(SYSTEM):
                for image in store.read_manifest(row).images.values():
                    held[row.place].is_in(store.blobs, image.ref)  # type: ignore[arg-type]
        assert store.verify(SYSTEM).faults == []


def _forked(first: Scene, row: CheckpointRow, held: dict[tuple[str, int], Memory]) -> Line:
    scene = Scene(first.store, first.lease, first.store.catalog.create_lineage(first.lease, row.place))
    (image,) = first.store.read_manifest(row).images.values()
    return Line(scene, held[row.place].copy(), held[row.place].copy(), image.ref)


def _cut(store: Store, line: Line, held: dict[tuple[str, int], Memory], most: int) -> None:
    chance, scene = line.state.chance, line.scene
    full = line.ref is None or chance.random() < 0.1
    checkpoint = scene.begin(full, f"{scene.lineage}-{len(held)}" if chance.random() < 0.1 else None, ["p"])
    key = pack_key(SYSTEM, scene.lineage, scene.epoch, checkpoint, "p", 1)
    blobs = store.blobs
    assert isinstance(blobs, MemoryBlobs)
    written = write(blobs, key, line.state, None if full else line.before, None if full else line.ref, most)
    if chance.random() < 0.25:
        store.catalog.abort(scene.lease, scene.lineage, checkpoint, "at random", 2.0)
        return
    manifest = Manifest(
        SYSTEM, scene.lineage, checkpoint, scene.epoch, "delta", None, None, 2.0,
        {"p": MemberImage(1, written)}, {"open": []},
    )  # fmt: skip
    row = store.commit_cut(scene.lease, manifest, {}, 2.0)
    line.ref, line.before = written, line.state.copy()
    held[row.place] = line.before


def chain_of(deltas: int, most: int, *, own: int = 1, whole: int = 1 << 40) -> tuple[list[Link], int]:
    """The chain after so many deltas that overlap nowhere, and all bytes written for them."""
    links, written = [Link("full", b"", whole, 0)], 0
    for _ in range(deltas):
        fold = fold_of(links, own, whole, False, most)
        size = own + sum(link.length for link in links[fold.keep :])
        if not fold.keep:
            size = whole
        written += size
        links = [*links[: fold.keep], Link("", b"", size, fold.times)]
        assert len(links) <= most + 1
    return links, written


@pytest.mark.parametrize(("deltas", "times"), [(20, 1), (230, 2), (1_770, 3)])
def test_no_byte_is_written_more_often_than_it_says(deltas: int, times: int) -> None:
    links, written = chain_of(deltas, MOST)
    assert max(link.folded for link in links) == times - 1
    assert written <= times * deltas


@pytest.mark.parametrize("share", [0.3, 0.1, 0.01, 0.001, 0.0001])
def test_about_three_bytes_are_written_for_each_that_changed(share: float) -> None:
    """Deltas that overlap nowhere, the worst there can be; what everything written whole costs included."""
    own = 1_000_000
    whole = int(own / share)
    _, written = chain_of(3_000, MOST, own=own, whole=whole)
    assert written / (3_000 * own) <= (3.2 if share >= 0.01 else 3.6)


def test_a_chain_holds_no_more_than_twice_what_its_image_does() -> None:
    links = [Link("full", b"", 100, 0), Link("", b"", 60, 0)]
    assert fold_of(links, 40, 100, False, MOST) == Fold(2, 0)
    assert fold_of(links, 41, 100, False, MOST) == Fold(0, 0)
    # What the image needed most of is gone: the old packs are not kept for the rest.
    assert fold_of(links[:1], 1, 50, False, MOST) == Fold(0, 0)
    assert fold_of(links[:1], 1, 51, False, MOST) == Fold(1, 0)


def test_an_image_that_holds_everything_is_full_and_reads_nothing() -> None:
    blobs = MemoryBlobs()
    state = Memory(random.Random(1))
    state.pieces["a"] = b"1"
    full = write(blobs, pack_key("s", "l", 0, 1, "p", 1), state, None, None, 3)
    blobs.delete(full.key)
    state.pieces["a"] = b"2"
    again = write(blobs, pack_key("s", "l", 0, 2, "p", 1), state, None, full, 3)
    assert (again.kind, again.chain) == ("full", (again.key,))
    state.is_in(blobs, again)


def test_an_old_pack_goes_when_little_of_it_is_in_use() -> None:
    """A large region is dropped: the next image no longer needs the pack that it lay in."""
    blobs = MemoryBlobs()
    chance = random.Random(1)
    state = Memory(chance, {"small": b"s" * 5_000}, {1: bytearray(chance.randbytes(50 * PAGE))})
    full = write(blobs, pack_key("s", "l", 0, 1, "p", 1), state, None, None, MOST)
    before = state.copy()
    del state.regions[1]
    rewritten = write(blobs, pack_key("s", "l", 0, 2, "p", 1), state, before, full, MOST)
    assert rewritten.chain == (rewritten.key,)
    state.is_in(blobs, rewritten)


def test_folding_what_is_damaged_is_an_error_and_leaves_nothing() -> None:
    blobs = MemoryBlobs()
    state = Memory(random.Random(1), {}, {1: bytearray(os.urandom(50 * PAGE))})
    ref = write(blobs, pack_key("s", "l", 0, 1, "p", 1), state, None, None, 2)
    refs = [ref]
    for checkpoint in range(2, 4):
        before = state.copy()
        state.regions[1][checkpoint * PAGE] ^= 1
        ref = write(blobs, pack_key("s", "l", 0, checkpoint, "p", 1), state, before, ref, 2)
        refs.append(ref)
    content = bytearray(blobs._blobs[refs[1].key])
    content[20] ^= 1
    blobs._blobs[refs[1].key] = bytes(content)
    before = state.copy()
    state.regions[1][0] ^= 1
    keys = list(blobs.list())
    with pytest.raises(Corrupt, match="damaged extent 0"):
        write(blobs, pack_key("s", "l", 0, 4, "p", 1), state, before, ref, 2)
    assert list(blobs.list()) == keys


def test_large_folds_are_written_in_parts(tmp_path: os.PathLike[str]) -> None:
    """Over the bounds of extents, of what is read at once and of what is drawn at once; odd runs too."""
    blobs = DirectoryBlobs(tmp_path)
    chance = random.Random(1)
    size = 20 * EXTENT + 4321
    state = Memory(chance, {"large": chance.randbytes(3 * EXTENT)}, {1: bytearray(chance.randbytes(size))})
    known = state.copy()
    pieces, regions = state.rows(None)
    ref = write_image(
        blobs, "s/l/0/0/full", header={}, sections={}, pieces=pieces, regions=regions, parent=None
    )
    for checkpoint in range(1, 9):
        runs: list[tuple[int, bytes]] = []
        for page in sorted(chance.sample(range(size // PAGE), 400)):
            odd = chance.choice((0, 0, 7))
            runs.append((page * PAGE + odd, chance.randbytes(PAGE - 2 * odd)))
        region = state.regions[1]
        for offset, run in runs:
            region[offset : offset + len(run)] = run
        if checkpoint == 3:
            state.pieces["large"] = chance.randbytes(2 * EXTENT + 1)
        pieces, _ = state.rows(known)
        ref = write_image(
            blobs,
            f"s/l/0/{checkpoint}/p",
            header={},
            sections={},
            pieces=pieces,
            regions=[Region(1, size, tuple(runs))],
            parent=ref,
            most=2,
        )
        known = state.copy()
        state.is_in(blobs, ref)
    assert len(ref.chain) <= 3
