"""Damaged, lost and swapped objects: named, never taken for a first start, and older cuts still restore."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cutline.errors import CheckpointNotFound, Corrupt, NewerFormat, StorageError
from cutline.storage import (
    CheckpointRow,
    ImageRef,
    Manifest,
    MemberImage,
    MemoryBlobs,
    Region,
    SqliteCatalog,
    Store,
    memory_store,
    open_store,
    read_image,
    write_image,
)
from cutline.storage.blobs import parts_of
from cutline.storage.pack import EXTENT
from tests.storage.cast import SYSTEM, Scene, lease_of, states

Damage = Callable[[bytes], bytes | None]


def flipped(blob: bytes, at: int, bit: int = 0) -> bytes:
    changed = bytearray(blob)
    changed[at] ^= 1 << bit
    return bytes(changed)


DAMAGES: dict[str, Damage] = {
    "a flipped bit": lambda blob: flipped(blob, len(blob) // 2),
    "a flipped first bit": lambda blob: flipped(blob, 0, 7),
    "a flipped last bit": lambda blob: flipped(blob, -1),
    "a byte cut off": lambda blob: blob[:-1],
    "a byte too many": lambda blob: blob + b"\0",
    "emptied": lambda blob: b"",
    "gone": lambda blob: None,
}


def history(scene: Scene) -> list[CheckpointRow]:
    """full, delta, full, delta."""
    return [
        scene.cut({"a": {"x": f"{n}" * 300, "same": "same" * 50}, "b": {"y": "b"}}, full=n % 2 == 0)
        for n in range(4)
    ]


def own_pack(row: CheckpointRow) -> str:
    return next(key for key in row.blobs if f"/{row.checkpoint}/a-" in key)


def needs(row: CheckpointRow, key: str) -> bool:
    return key in row.blobs


@pytest.fixture
def scene() -> Iterator[Scene]:
    store = memory_store()
    yield Scene.new(store)
    store.close()


def set_blob(store: Store, key: str, content: bytes | None) -> None:
    assert isinstance(store.blobs, MemoryBlobs)
    if content is None:
        del store.blobs._blobs[key]
    else:
        store.blobs._blobs[key] = content


def check_damage(store: Store, rows: list[CheckpointRow], damaged: set[str]) -> None:
    broken = [row for row in rows if any(needs(row, key) for key in damaged)]
    for row in rows:
        if row in broken:
            with pytest.raises(Corrupt) as caught:
                states(store, row)
            key = caught.value.facts["key"]
            assert key in damaged and key in str(caught.value)
            parts = parts_of(key)
            assert parts is not None and f"checkpoint {parts.checkpoint} of" in str(caught.value)
        else:
            assert states(store, row)["b"] == {"y": "b"}
    whole = [row for row in rows if row not in broken]
    told: list[StorageError] = []
    if whole:
        assert store.newest_whole(SYSTEM, damage=told) == whole[-1]
        if broken and broken[-1].checkpoint > whole[-1].checkpoint:
            assert {error.facts["key"] for error in told} <= damaged and told
    else:
        with pytest.raises(Corrupt, match="no whole checkpoint is left"):
            store.newest_whole(SYSTEM)
    report = store.verify(SYSTEM)
    assert report.whole == [row.place for row in whole]
    assert {fault.facts["key"] for fault in report.faults} <= damaged
    assert bool(report.faults) == bool(broken) or any(key.endswith(".commit") for key in damaged)
    assert len(store.catalog.checkpoints(SYSTEM)) == len(rows)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_each_object_damaged(scene: Scene, damage: Damage) -> None:
    rows = history(scene)
    store = scene.store
    keys = list(store.blobs.list())
    assert len(keys) == 4 * (2 + 1 + 1)
    for key in keys:
        before = store.blobs.read(key)
        set_blob(store, key, damage(before))
        check_damage(store, rows, {key})
        set_blob(store, key, before)
    assert store.verify(SYSTEM).faults == []


def test_two_objects_swapped(scene: Scene) -> None:
    rows = history(scene)
    store = scene.store
    for one, other in itertools.combinations(list(store.blobs.list()), 2):
        first, second = store.blobs.read(one), store.blobs.read(other)
        if first == second:
            continue
        set_blob(store, one, second)
        set_blob(store, other, first)
        check_damage(store, rows, {one, other})
        set_blob(store, one, first)
        set_blob(store, other, second)


def test_any_flipped_bit_of_a_pack_is_seen(scene: Scene) -> None:
    """Each byte of each object that the newest cut needs, one bit at a time."""
    row = history(scene)[-1]
    store = scene.store
    chance = random.Random(3)
    for key in row.blobs:
        before = store.blobs.read(key)
        for at in range(len(before)):
            set_blob(store, key, flipped(before, at, chance.randrange(8)))
            with pytest.raises(Corrupt) as caught:
                states(store, row)
            assert caught.value.facts["key"] == key
        set_blob(store, key, before)


def test_flipped_bits_in_what_is_read_straight_into_place() -> None:
    """Extents that do not shrink are read into the region itself; they are checked there."""
    blobs = MemoryBlobs()
    chance = random.Random(4)
    size = 2 * EXTENT + 4096
    region = Region(1, size, ((0, chance.randbytes(size)),))
    ref = write_image(blobs, "s/l/0/1/a", header={}, sections={}, pieces=[], regions=[region], parent=None)
    before = blobs.read(ref.key)
    for at in (16, 16 + EXTENT // 2, 15 + EXTENT, 16 + EXTENT, 16 + 2 * EXTENT, 15 + size):
        blobs._blobs[ref.key] = flipped(before, at)
        with pytest.raises(Corrupt, match=f"extent {(at - 16) // EXTENT}"):
            read_image(blobs, ref)


def test_any_shorter_pack_is_seen(scene: Scene) -> None:
    row = history(scene)[-1]
    store = scene.store
    for key in row.blobs:
        before = store.blobs.read(key)
        for length in range(len(before)):
            set_blob(store, key, before[:length])
            with pytest.raises(Corrupt):
                states(store, row)
        set_blob(store, key, before)


def test_a_system_goes_on_from_an_older_cut(scene: Scene) -> None:
    """The head is damaged; work goes on from the one before; retention keeps what is whole."""
    rows = history(scene)
    set_blob(scene.store, rows[-1].blobs[-1], b"")
    resumed = Scene.resumed(scene.store)
    assert resumed.known["a"]["x"] == "2" * 300
    later = [resumed.cut({"a": {"x": f"{n}", "same": "same" * 50}, "b": {"y": "b"}}) for n in range(9, 12)]
    resumed.store.sweep(resumed.lease, 0.0, keep=2)
    assert scene.store.newest_whole(SYSTEM) == later[-1]
    assert resumed.store.verify(SYSTEM).faults == []


def test_retention_never_gives_up_the_newest_whole_cut(scene: Scene) -> None:
    rows = history(scene)
    for row in rows[2:]:
        # Damaged inside, which only reading finds: newest_whole does.
        key = own_pack(row)
        set_blob(scene.store, key, flipped(scene.store.blobs.read(key), 20))
    assert scene.store.newest_whole(SYSTEM) == rows[1]
    swept = scene.store.sweep(scene.lease, 0.0, keep=1)
    assert swept.given_up == [rows[0].place, rows[2].place]
    assert scene.store.newest_whole(SYSTEM) == rows[1]


def test_a_missing_blob_counts_as_broken_in_a_sweep(scene: Scene) -> None:
    rows = history(scene)
    set_blob(scene.store, own_pack(rows[3]), None)
    swept = scene.store.sweep(scene.lease, 0.0, keep=1)
    assert swept.missing == {rows[3].place: own_pack(rows[3])}
    assert [row.place for row in scene.store.catalog.checkpoints(SYSTEM)] == [rows[2].place, rows[3].place]


def test_nothing_committed_is_not_damage(scene: Scene) -> None:
    with pytest.raises(CheckpointNotFound, match="no checkpoint was committed"):
        scene.store.newest_whole(SYSTEM)
    with pytest.raises(CheckpointNotFound, match="no lineage"):
        scene.store.newest_whole("nobody")


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_store(tmp_path / "store", create=True) as store:
        history(Scene.new(store))
    return tmp_path / "store"


@pytest.mark.parametrize("damage", [*DAMAGES.values()], ids=[*DAMAGES])
@pytest.mark.parametrize("name", ["cutline.json", "catalog.sqlite"])
def test_the_two_files_of_a_store(folder: Path, name: str, damage: Damage) -> None:
    before = (folder / name).read_bytes()
    after = damage(before)
    if after is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(after)
    listing = sorted(
        path for path in folder.rglob("*") if "-wal" not in path.name and "-shm" not in path.name
    )
    for create in (True, False):
        try:
            with open_store(folder, create=create) as store:
                assert [row.checkpoint for row in store.catalog.checkpoints(SYSTEM)] == [1, 2, 3, 4]
        except (Corrupt, NewerFormat) as error:
            assert name in str(error) or str(folder) in str(error)
    after_that = (path for path in folder.rglob("*") if "-wal" not in path.name and "-shm" not in path.name)
    assert sorted(after_that) == listing, "nothing is made in place of what was lost"
    (folder / name).write_bytes(before)
    with open_store(folder, create=False) as store:
        assert store.verify(SYSTEM).faults == []


@pytest.mark.parametrize("name", ["cutline.json", "catalog.sqlite"])
def test_a_lost_or_emptied_file_is_an_error(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"")
    with pytest.raises(Corrupt, match=name):
        open_store(folder, create=True)
    (folder / name).unlink()
    with pytest.raises(Corrupt, match=name):
        open_store(folder, create=True)


def test_flipped_bits_anywhere_in_the_catalog(folder: Path, tmp_path: Path) -> None:
    """What is read is what was written, or an error; never fewer cuts in silence."""
    with open_store(folder, create=False) as store:
        rows = store.catalog.checkpoints(SYSTEM)
    before = (folder / "catalog.sqlite").read_bytes()
    chance = random.Random(5)
    seen = 0
    for _ in range(300):
        content = flipped(before, chance.randrange(len(before)), chance.randrange(8))
        for left in folder.glob("catalog.sqlite*"):
            left.unlink()
        (folder / "catalog.sqlite").write_bytes(content)
        try:
            with open_store(folder, create=True) as store:
                damage: list[Corrupt] = []
                found = store.catalog.checkpoints(SYSTEM, damage=damage)
                assert found == rows or damage
                store.newest_whole(SYSTEM)
        except (Corrupt, NewerFormat):
            seen += 1
    assert seen > 5


def test_a_damaged_row_is_named_and_the_others_restore(folder: Path) -> None:
    with open_store(folder, create=False) as store:
        assert isinstance(store.catalog, SqliteCatalog)
        with store.catalog.database.writing() as connection:
            connection.execute("UPDATE checkpoints SET fate = 'aborted' WHERE checkpoint = 4")
        with pytest.raises(Corrupt, match="checkpoint 4 of lineage"):
            store.catalog.checkpoints(SYSTEM)
        told: list[StorageError] = []
        row = store.newest_whole(SYSTEM, damage=told)
        assert row.checkpoint == 3
        assert "checkpoint 4 of lineage" in str(told[0])
        assert store.catalog.find(SYSTEM, "2").checkpoint == 2
        with pytest.raises(Corrupt, match="checkpoint 4"):
            store.catalog.find(SYSTEM, "4")
        assert "checkpoint 4" in str(store.verify(SYSTEM).faults[0])
        scene = Scene(store, lease_of(store, now=50_000.0), row.lineage)
        scene.load(row)
        assert states(store, scene.cut({"a": {"x": "5"}}))["a"] == {"x": "5"}
        with pytest.raises(Corrupt):
            store.sweep(scene.lease, 0.0)


def test_a_damaged_log_of_the_catalog_is_noticed(tmp_path: Path) -> None:
    """SQLite drops the end of a damaged log; the commit records know better."""
    store = open_store(tmp_path / "store", create=True)
    scene = Scene.new(store)
    scene.cut({"a": {"x": "1"}})
    assert isinstance(store.catalog, SqliteCatalog)
    store.catalog.database.tidy()
    scene.cut({"a": {"x": "2"}})
    shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    store.close()
    log = tmp_path / "crashed" / "catalog.sqlite-wal"
    log.write_bytes(flipped(log.read_bytes(), 60))
    with open_store(tmp_path / "crashed", create=False) as store:
        told: list[StorageError] = []
        assert store.newest_whole(SYSTEM, damage=told).checkpoint == 1
        assert [error.facts["checkpoint"] for error in told] == [2]
        assert "has lost" in str(told[0])
        assert len(store.verify(SYSTEM).faults) == 1


def test_a_planted_manifest_reads_nothing_outside(tmp_path: Path) -> None:
    """A manifest whose chain leads out of the store, with a row that vouches for it."""
    (tmp_path / "secret").write_bytes(b"secret")
    with open_store(tmp_path / "store", create=True) as store:
        scene = Scene.new(store)
        checkpoint = scene.begin(True, None, ["a"])
        ref = ImageRef("../../secret", bytes(32), "full", ("../../secret",), 6)
        manifest = Manifest(
            SYSTEM, scene.lineage, checkpoint, 1, "full", None, None, 1.0, {"a": MemberImage(1, ref)}
        )
        row = store.commit_cut(scene.lease, manifest, {}, 1.0)
        with pytest.raises(Corrupt, match=r"\.\./\.\./secret"):
            store.read_manifest(row)
        store.sweep(scene.lease, 0.0)
    assert (tmp_path / "secret").read_bytes() == b"secret"
