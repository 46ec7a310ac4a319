"""Export and import: what comes out is what went in, or a named error and nothing at all."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutline.errors import (
    BlobExists,
    Corrupt,
    CutlineError,
    Fenced,
    NewerFormat,
    NotAStore,
    StorageError,
    StoreFull,
    StoreInUse,
)
from cutline.storage import CheckpointRow, Store, memory_store, open_store, read_image
from cutline.storage.codec import canonical, digest_of
from cutline.storage.export import HEAD, MAGIC, export_cut
from cutline.storage.importing import import_cut, open_export
from cutline.storage.repair import rebuild_catalog
from cutline.storage.retention import Policy
from cutline.storage.tending import gc
from tests.storage.cast import SYSTEM, Scene, lease_of, states
from tests.storage.faults import Counter, FaultyDisk, disk_full, ignore, io_error, make_faulty
from tests.system.living import small_disk


def state(n: int) -> dict[str, dict[str, str]]:
    return {name: {"n": f"{n}" * 300, "same": "same" * 20} for name in ("a", "b é/..", "c")}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "source", create=True) as store:
        scene = Scene.new(store)
        for n in range(3):
            scene.cut(state(n), full=n == 0, label="best" if n == 2 else None)
        store.catalog.next_birth(scene.lease, scene.lineage)
        store.catalog.release_lease(scene.lease)
        yield store


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "target", create=True) as store:
        yield store


def newest(store: Store) -> CheckpointRow:
    return store.catalog.find(SYSTEM, "newest")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("point", ["1", "best"])
def test_what_is_carried_over_is_the_same(
    source: Store, target: Store, tmp_path: Path, point: str, folder: bool
) -> None:
    """A full cut is copied, a delta is made full; the export lies alone in its place."""
    row = source.catalog.find(SYSTEM, point)
    place = tmp_path / "exports" / "my export é.cutline"
    place.parent.mkdir()
    exported = export_cut(source, row, place, folder=folder)
    assert os.listdir(place.parent) == [place.name] and place.is_dir() == folder
    assert exported.bytes == sum(map(len, files(place.parent).values()))
    moved = tmp_path / "moved"
    shutil.move(place, moved)
    shutil.rmtree(tmp_path / "source")
    found = import_cut(target, open_export(moved))
    assert states(target, found) == state(row.checkpoint - 1)
    assert (found.checkpoint, found.epoch, found.label, found.kind) == (
        row.checkpoint, row.epoch, row.label, "full"
    )  # fmt: skip
    assert found.lineage.startswith("import-") and found.summary["imported"]["lineage"] == row.lineage
    assert newest(target) == found and target.verify(SYSTEM).faults == []
    assert all(len(image.ref.chain) == 1 for image in target.read_manifest(found).images.values())
    assert target.catalog.held_lease(SYSTEM) is None
    # It can be gone on with, like any other; ids and births go on.
    fork = Scene(target, lease_of(target), "").fork(found)
    cut = fork.cut(state(7))
    assert cut.checkpoint == row.checkpoint + 1 and cut.parent == found.place
    assert target.catalog.next_birth(fork.lease, fork.lineage) >= 2
    target.sweep(fork.lease, 0.0, keep=1)
    assert target.verify(SYSTEM).faults == [] and states(target, cut) == state(7)


def test_images_are_the_same_to_the_byte(source: Store, target: Store, tmp_path: Path) -> None:
    row = newest(source)
    export_cut(source, row, tmp_path / "e")
    found = import_cut(target, open_export(tmp_path / "e"), name="another name")
    assert found.system == "another name"
    old, new = source.read_manifest(row), target.read_manifest(found)
    assert old.images.keys() == new.images.keys() and old.channels == new.channels
    for name, image in old.images.items():
        one, other = read_image(source.blobs, image.ref), read_image(target.blobs, new.images[name].ref)
        assert (one.header, one.sections, one.pieces) == (other.header, other.sections, other.pieces)
        assert {n: bytes(m) for n, m in one.regions.items()} == {
            n: bytes(m) for n, m in other.regions.items()
        }
        assert image.birth == new.images[name].birth


def test_a_second_import_is_a_second_copy(source: Store, target: Store, tmp_path: Path) -> None:
    export_cut(source, newest(source), tmp_path / "e")
    first, second = (import_cut(target, open_export(tmp_path / "e")) for _ in range(2))
    assert first.lineage != second.lineage and newest(target) == second
    # Back into where it came from, too.
    third = import_cut(source, open_export(tmp_path / "e"))
    assert states(source, third) == state(2) and len(source.catalog.lineages(SYSTEM)) == 2


def test_damage_to_a_copy_beside_its_source_is_seen(source: Store, tmp_path: Path) -> None:
    """Both have packs with the same document, so the same digest."""
    export_cut(source, source.catalog.find(SYSTEM, "1"), tmp_path / "e")
    copy = import_cut(source, open_export(tmp_path / "e"))
    for key in copy.blobs:
        path = Path(str(source.path)) / "blobs" / key
        whole = path.read_bytes()
        path.write_bytes(whole[:40] + bytes((whole[40] ^ 1,)) + whole[41:])
        report = source.verify(SYSTEM)
        assert key in str(report.faults) and report.broken.keys() == {copy.place}, key
        assert source.broken == {copy.place}
        path.write_bytes(whole)
    assert source.verify(SYSTEM).faults == []


def test_a_cut_that_was_imported_survives_an_older_copy_of_the_catalog(source: Store, tmp_path: Path) -> None:
    folder = Path(str(source.path))
    export_cut(source, newest(source), tmp_path / "e")
    source.close()
    shutil.copy(folder / "catalog.sqlite", tmp_path / "copy")
    with open_store(folder, create=False) as store:
        row = import_cut(store, open_export(tmp_path / "e"))
    shutil.copy(tmp_path / "copy", folder / "catalog.sqlite")
    with open_store(folder, create=False) as store:
        assert row.place not in {each.place for each in store.catalog.checkpoints(SYSTEM)}
        gc(store, SYSTEM, Policy(1), 2e9)
        assert store.verify(SYSTEM).faults != []
    assert row.place in {each.place for each in rebuild_catalog(folder, force=True).cuts}
    with open_store(folder, create=False) as store:
        assert states(store, store.catalog.find(SYSTEM, str(row.checkpoint), row.lineage)) == state(2)


def test_nothing_is_written_over(source: Store, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("taken", "folder"):
        for folder in (True, False):
            with pytest.raises(BlobExists, match=name):
                export_cut(source, newest(source), tmp_path / name, folder=folder)
    assert (tmp_path / "taken").read_text() == "mine"
    with pytest.raises(StorageError, match="nowhere"):
        export_cut(source, newest(source), tmp_path / "nowhere" / "e")
    assert sorted(os.listdir(tmp_path)) == ["folder", "source", "taken"]


def test_a_damaged_cut_is_not_exported(source: Store, tmp_path: Path) -> None:
    row = source.catalog.find(SYSTEM, "1")
    path = tmp_path / "source" / "blobs" / row.blobs[0]
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=path.name):
        export_cut(source, row, tmp_path / "e")
    assert os.listdir(tmp_path) == ["source"]


# Bad input


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cut, exported as ``file`` and ``folder``."""
    top = tmp_path_factory.mktemp("exports")
    with memory_store() as store:
        scene = Scene.new(store)
        scene.cut(state(1), full=True)
        row = scene.cut(state(2))
        export_cut(store, row, top / "file")
        export_cut(store, row, top / "folder", folder=True)
    return top


def refused(path: Path) -> CutlineError | None:
    """The error of importing it into a new store; None if it went in and is right. Nothing half is left."""
    with memory_store() as store:
        try:
            row = import_cut(store, open_export(path))
        except CutlineError as error:
            assert store.catalog.systems() == [] and list(store.blobs.list()) == []
            assert store.catalog.held_lease(SYSTEM) is None
            return error
        assert states(store, row) == state(2)
        return None


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(["flip", "cut", "more"]), at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_any_damage_to_a_file_is_refused(exports: Path, tmp_path: Path, kind: str, at: int, bit: int) -> None:
    content = bytearray((exports / "file").read_bytes())
    at %= len(content)
    if kind == "flip":
        content[at] ^= 1 << bit
    elif kind == "cut":
        del content[at:]
    else:
        content += bytes(1 + at % 50)
    (tmp_path / "damaged").write_bytes(content)
    assert isinstance(refused(tmp_path / "damaged"), (Corrupt, NotAStore, NewerFormat))


def test_damage_to_each_file_of_a_folder_is_named(exports: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    names = [*files(exports / "folder")]
    assert sorted(names) == ["cutline-export", "packs/0.pack", "packs/1.pack", "packs/2.pack"]
    for name in names:
        for kind in ("flip", "cut", "gone", "swapped", "a link"):
            shutil.rmtree(tmp_path / "e", ignore_errors=True)
            shutil.copytree(exports / "folder", tmp_path / "e")
            path = tmp_path / "e" / name
            content = bytearray(path.read_bytes())
            path.unlink()
            if kind == "flip":
                content[chance.randrange(len(content))] ^= 4
                path.write_bytes(content)
            elif kind == "cut":
                path.write_bytes(content[:-1])
            elif kind == "swapped":
                shutil.copy(tmp_path / "e" / names[names.index(name) - 1], path)
            elif kind == "a link":
                path.symlink_to(exports / "folder" / name)
            error = refused(tmp_path / "e")
            assert isinstance(error, StorageError), (name, kind)
            assert str(tmp_path / "e") in str(error)
    assert refused(exports / "folder") is None and refused(exports / "file") is None


def test_what_is_no_export(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"something else " * 9)
    (tmp_path / "dir").mkdir()
    for name in ("empty", "other", "dir", "not there"):
        with pytest.raises(NotAStore, match=name):
            open_export(tmp_path / name)


def test_a_newer_format_is_refused(exports: Path, tmp_path: Path) -> None:
    content = bytearray((exports / "file").read_bytes())
    content[8] = 2
    (tmp_path / "e").write_bytes(content)
    with pytest.raises(NewerFormat, match="format 2"):
        open_export(tmp_path / "e")


@pytest.mark.parametrize(
    "doc", [{}, {"images": 5}, {"images": {"a": {"pack": 3}}}, {"images": {}, "source": []}, [1], "x"]
)
def test_a_document_that_makes_no_sense(tmp_path: Path, doc: object) -> None:
    body = canonical(doc)
    head = HEAD.pack(MAGIC, 1, 0, len(body) + 64)
    (tmp_path / "e").write_bytes(head + body + digest_of(body) + bytes(32))
    with pytest.raises(Corrupt, match="makes no sense"):
        open_export(tmp_path / "e")


def test_a_full_disk(source: Store, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        with pytest.raises(StoreFull, match="disk"):
            big = Scene.resumed(source)
            row = big.cut({"a": {"x": "".join(map(str, range(80_000)))}}, full=True)
            export_cut(source, row, disk / "e")
        assert os.listdir(disk) == []


# Faults, deaths, others


def test_an_error_at_every_operation_of_an_import(tmp_path: Path) -> None:
    """Afterwards it is there whole, or not there at all, and the older cuts are as before."""
    at = failures = 0
    with memory_store() as store:
        export_cut(store, Scene.new(store).cut({"a": {"x": "new"}}), tmp_path / "e")
    with open_store(tmp_path / "base", create=True) as store:
        old = Scene.new(store).cut({"a": {"x": "old"}})
        store.catalog.release_lease(store.catalog.held_lease(SYSTEM) or lease_of(store))
    while True:
        at += 1
        shutil.copytree(tmp_path / "base", tmp_path / str(at))
        with open_store(tmp_path / str(at), create=False) as store:
            counter = make_faulty(store, at, io_error if at % 2 else disk_full)
            try:
                row = import_cut(store, open_export(tmp_path / "e"), now=5000.0)
            except StorageError:
                failures += 1
                row = newest(store)
            done = at > counter.count
            counter.strike = ignore
            assert states(store, row)["a"]["x"] in ("old", "new")
            assert newest(store) == row and store.verify(SYSTEM).faults == []
            assert states(store, store.catalog.find(SYSTEM, f"{old.lineage}/1")) == {"a": {"x": "old"}}
            # What is left behind goes with the next collection.
            lease = lease_of(store, now=1e9)
            store.sweep(lease, 0.0)
            needed = {key for each in store.catalog.checkpoints(SYSTEM) for key in each.blobs}
            assert {key for key in store.blobs.list() if not key.endswith(".commit")} == needed
            assert list(store.blobs.unfinished()) == []
        if done:
            break
    assert failures > 15


def test_an_error_at_every_operation_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards it is there whole, or nothing is, hidden names included."""
    with memory_store() as store:
        scene = Scene.new(store)
        scene.cut({"a": {"x": "1"}, "b": {"y": "1"}}, full=True)
        row = scene.cut({"a": {"x": "2"}, "b": {"y": "1"}})
        for folder in (False, True):
            at = failures = 0
            while True:
                at += 1
                counter = Counter(at, io_error if at % 2 else disk_full)
                top = tmp_path / f"{folder} {at}"
                top.mkdir()
                with monkeypatch.context() as patched:
                    for module in ("cutline.storage.directory", "cutline.storage.export"):
                        patched.setattr(f"{module}.Disk", lambda counter=counter: FaultyDisk(counter))
                    try:
                        export_cut(store, row, top / "e", folder=folder)
                    except StorageError:
                        failures += 1
                    # The last operation is a sync, behind which the name is there.
                    found = os.listdir(top)
                    assert found in ([], ["e"])
                if found:
                    with memory_store() as other:
                        copy = import_cut(other, open_export(top / "e"))
                        assert states(other, copy) == {"a": {"x": "2"}, "b": {"y": "1"}}
                if at > counter.count:
                    break
            assert failures > 10


def test_what_a_dead_import_left_is_collected(source: Store, tmp_path: Path) -> None:
    """Its lineage is in no catalog; other unknown lineages are nobody's to remove, and an import into an
    older catalog may have come to its end."""
    names = (f"import-{source.catalog.generation()}-01", "import-0123456789abcdef-01", "0123456789abcdef")
    left = [f"{SYSTEM}/{name}/1/3/a-1-00.pack" for name in names]
    for key in left:
        source.blobs.create(key, [b"left"])
    source.sweep(lease_of(source, now=1e9), 0.0)
    assert [key in set(source.blobs.list()) for key in left] == [False, True, True]


def test_another_owner_in_the_middle_of_an_import(
    source: Store, target: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blobs may have been collected: it must not become a cut any more."""
    export_cut(source, newest(source), tmp_path / "e")
    create = target.blobs.create

    def taken_over(key: str, parts: object) -> int:
        size = create(key, parts)  # type: ignore[arg-type]
        if "/manifest-" in key:
            target.sweep(lease_of(target, now=1e12), 0.0)
            assert not list(target.blobs.list())
        return size

    with monkeypatch.context() as patched:
        patched.setattr(target.blobs, "create", taken_over)
        with pytest.raises(Fenced):
            import_cut(target, open_export(tmp_path / "e"))
    assert target.catalog.systems() == []


def test_a_running_system_is_not_given_another_head(source: Store, tmp_path: Path) -> None:
    export_cut(source, newest(source), tmp_path / "e")
    lease = lease_of(source)
    with pytest.raises(StoreInUse, match="elsewhere"):
        import_cut(source, open_export(tmp_path / "e"), now=5.0)
    assert source.catalog.held_lease(SYSTEM) == lease and len(source.catalog.lineages(SYSTEM)) == 1


# Any cut


# No name has a zero character.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
STATES = st.dictionaries(
    TEXTS, st.dictionaries(TEXTS, st.text(max_size=50), max_size=4), min_size=1, max_size=3
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STATES, min_size=1, max_size=3), TEXTS, st.booleans())
def test_any_cut_comes_back(
    tmp_path: Path, history: list[dict[str, dict[str, str]]], system: str, folder: bool
) -> None:
    place = tmp_path / os.urandom(4).hex()
    with memory_store() as store, memory_store() as other:
        scene = Scene.new(store, system)
        for each in history:
            each = {name: {key: value.encode(errors="replace").decode() for key, value in values.items()}
                    for name, values in each.items()}  # fmt: skip
            row = scene.cut(each)
        export_cut(store, row, place, folder=folder)
        found = import_cut(other, open_export(place))
        assert states(other, found) == states(store, row) and found.system == system
        assert other.read_manifest(found).channels == store.read_manifest(row).channels
