"""A lost catalog comes back from manifests and commit records; what cannot come back is named."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.errors import Corrupt, Misuse, NewerFormat, NotAStore, StoreInUse
from cutline.storage import CheckpointRow, MemoryBlobs, Owner, Store, memory_store, open_store
from cutline.storage.codec import canonical, decode, digest_of
from cutline.storage.location import locate
from cutline.storage.opening import postgres_catalog
from cutline.storage.rebuild import LEAP, gather, refill
from cutline.storage.repair import rebuild_catalog
from cutline.storage.sqlite import SqliteCatalog
from tests.storage.cast import SYSTEM, Scene, states
from tests.storage.servers import S3, Postgres


def state(n: int) -> dict[str, dict[str, str]]:
    return {name: {"n": f"{n}" * 50, "same": "same"} for name in "ab"}


def populate(store: Store) -> list[CheckpointRow]:
    """Two lines of one system, a fork of it, and another system; aborted and undecided ones among them."""
    first = Scene.new(store)
    cuts = [first.cut(state(n), full=n % 2 == 0, label="kept" if n == 1 else None) for n in range(3)]
    aborted = first.begin(False, None, ["a"])
    first.write(aborted, "a", state(9)["a"], False)
    store.catalog.abort(first.lease, first.lineage, aborted, "x", 1.0)
    first.begin(False, None, [])
    fork = first.fork(cuts[1])
    for _ in range(3):
        store.catalog.next_birth(first.lease, fork.lineage)
    cuts += [fork.cut(state(n)) for n in (10, 11)]
    other = Scene.new(store, "the other")
    cuts.append(other.cut(state(20), label="kept"))
    for scene in (first, other):
        store.catalog.release_lease(scene.lease)
    return cuts


def lost(path: Path) -> None:
    for left in path.glob("catalog.sqlite*"):
        left.unlink()


def test_everything_that_was_recorded_is_there_again(store_folder: Path) -> None:
    with open_store(store_folder, create=True) as store:
        populate(store)
        lines = {system: store.catalog.lineages(system) for system in store.catalog.systems()}
        rows = {system: store.catalog.checkpoints(system) for system in lines}
        restored = {row.place: states(store, row) for each in rows.values() for row in each}
    lost(store_folder)
    with pytest.raises(Corrupt, match=r"catalog.sqlite is missing.*rebuild-catalog"):
        open_store(store_folder, create=True)
    found = rebuild_catalog(store_folder)
    assert (found.left_out, found.damaged, len(found.cuts)) == ([], [], 6)
    with open_store(store_folder, create=False) as store:
        assert store.catalog.systems() == [*lines]
        for system, before in lines.items():
            after = store.catalog.lineages(system)
            assert [(row.lineage, row.order, row.origin) for row in after] == [
                (row.lineage, row.order, row.origin) for row in before
            ]
            for new, old in zip(after, before, strict=True):
                assert new.next_checkpoint >= old.next_checkpoint and new.next_birth >= old.next_birth
                assert new.epoch > old.epoch
            for new_row, old_row in zip(store.catalog.checkpoints(system), rows[system], strict=True):
                assert {**vars_of(new_row), "horizon": 0} == {**vars_of(old_row), "horizon": 0}
                assert states(store, new_row) == restored[new_row.place]
            assert store.verify(system).faults == []
            assert store.newest_whole(system) == store.catalog.find(system, "newest")
        # It goes on: nothing that had an id before gets it again, and retention works on it.
        scene = Scene.resumed(store, now=time.time())
        assert scene.lease.token > 1 << 40
        head = lines[SYSTEM][-1]
        cut = scene.cut(state(12))
        assert cut.checkpoint >= head.next_checkpoint and cut.parent == rows[SYSTEM][-1].place
        assert store.catalog.next_birth(scene.lease, scene.lineage) >= head.next_birth
        store.sweep(scene.lease, 0.0, keep=1)
        assert store.verify(SYSTEM).faults == []
        assert states(store, cut) == state(12)
        # The aborted one's pack is nobody's any more.
        assert not any("/4/a-" in key for key in store.blobs.list() if lines[SYSTEM][0].lineage in key)


def vars_of(row: CheckpointRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__slots__}


def test_what_is_left_out_is_named(store_folder: Path) -> None:
    with open_store(store_folder, create=True) as store:
        cuts = populate(store)
        keys = [str(cut.manifest_key) for cut in cuts]
    blobs = store_folder / "blobs"
    (blobs / f"{keys[0]}.commit").unlink()
    (blobs / keys[1]).unlink()
    record = blobs / f"{keys[2]}.commit"
    record.write_bytes(record.read_bytes()[:-1])
    (blobs / next(key for key in cuts[4].blobs if f"/{cuts[4].checkpoint}/" in key)).unlink()
    lost(store_folder)
    found = rebuild_catalog(store_folder)
    text = "\n".join(found.left_out)
    assert f"{keys[0]}: a manifest without a commit record" in text
    assert f"{keys[1]} " in text and "is missing" in text
    assert f"{keys[2]}.commit" in text and "damaged" in text
    # Of the second manifest's record nothing more is said than that its manifest is gone.
    assert len(found.left_out) == 3
    assert len(found.damaged) == 1 and f"checkpoint {cuts[4].checkpoint} of" in found.damaged[0]
    with open_store(store_folder, create=False) as store:
        assert [row.place for row in store.catalog.checkpoints(SYSTEM)] == [cuts[3].place, cuts[4].place]
        assert store.newest_whole(SYSTEM).place == cuts[3].place


def harmed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100:160] = bytes(60)
    path.write_bytes(content)


def row_changed(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE checkpoints SET fate = 'aborted' WHERE checkpoint = 2")
    connection.close()


HARMS: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "another file": lambda path: path.write_bytes(b"no catalog" * 99),
    "zeroes": harmed,
    "a row": row_changed,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_catalog_is_put_aside(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    with open_store(tmp_path, create=True) as store:
        populate(store)
    harm(tmp_path / "catalog.sqlite")
    size = (tmp_path / "catalog.sqlite").stat().st_size
    assert len(rebuild_catalog(tmp_path).cuts) == 6
    assert (tmp_path / "catalog.sqlite.old-1").stat().st_size == size
    with open_store(tmp_path, create=False) as store:
        assert store.verify(SYSTEM).faults == []
    with pytest.raises(Misuse, match="whole"):
        rebuild_catalog(tmp_path)


def test_a_whole_catalog_is_left_alone_unless_told(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        cuts = populate(store)
        with pytest.raises(Misuse, match="with 6 checkpoints: there is nothing to make again"):
            rebuild_catalog(tmp_path)
        # The leases that it took are free again.
        store.catalog.release_lease(store.catalog.acquire_lease(SYSTEM, Owner.here("t"), 10.0, 0.0))
    assert len(rebuild_catalog(tmp_path, force=True).cuts) == 6
    assert len(rebuild_catalog(tmp_path, force=True).cuts) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "blobs", "catalog.sqlite", "catalog.sqlite.old-1", "catalog.sqlite.old-2", "cutline.json"
    ]  # fmt: skip
    with open_store(tmp_path, create=False) as store:
        assert store.newest_whole(SYSTEM).place == cuts[4].place


def test_an_attempt_that_dies_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step of putting it in place: the old catalog is there, or none and it is run again."""
    with open_store(tmp_path, create=True) as store:
        populate(store)
    (tmp_path / "catalog.sqlite-wal").write_bytes(b"left by somebody who was killed")
    (tmp_path / "catalog.sqlite").write_bytes(b"damaged" * 99)
    steps = 0
    original = os.rename
    for dies_at in range(1, 9):
        count = 0

        def rename(source: object, target: object, dies_at: int = dies_at) -> None:
            nonlocal count
            count += 1
            if count == dies_at:
                raise KeyboardInterrupt
            original(str(source), str(target))

        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", rename)
            try:
                rebuild_catalog(tmp_path)
                break
            except KeyboardInterrupt:
                steps += 1
    assert steps >= 3
    assert not list(tmp_path.glob(".catalog-*"))
    with open_store(tmp_path, create=False) as store:
        assert len(store.catalog.checkpoints(SYSTEM)) == 5


def test_a_living_owner_keeps_it(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        populate(store)
        lease = store.catalog.acquire_lease("the other", Owner.here("somebody"), 60.0, time.time())
        for force in (True, False):
            with pytest.raises(StoreInUse, match="somebody"):
                rebuild_catalog(tmp_path, force=force)
        # The lease of the first system, which it had taken by then, is free again.
        assert store.catalog.held_lease(SYSTEM) is None
        assert store.catalog.held_lease("the other") == lease
        assert not list(tmp_path.glob("*.old-*"))


def test_a_lost_marker_is_written_anew(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        populate(store)
    (tmp_path / "cutline.json").write_text("{")
    lost(tmp_path)
    found = rebuild_catalog(tmp_path)
    assert len(found.left_out) == 1 and "cutline.json" in found.left_out[0]
    with open_store(tmp_path, create=False) as store:
        assert len(store.catalog.checkpoints(SYSTEM)) == 5


def test_what_is_no_store_or_has_no_records_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        rebuild_catalog(tmp_path)
    with open_store(tmp_path / "s", create=True):
        pass
    lost(tmp_path / "s")
    with pytest.raises(Corrupt, match="there are no commit records"):
        rebuild_catalog(tmp_path / "s")
    assert not (tmp_path / "s" / "catalog.sqlite").exists()


def rewritten(store: Store, key: str, **changes: object) -> None:
    sealed(store, key, {**decode(store.blobs.read(key)[:-64]), **changes})


def sealed(store: Store, key: str, doc: dict[str, object]) -> None:
    """Puts a record in place of another, as who has the key can."""
    body = canonical(doc)
    digest = digest_of(body)
    store.blobs.delete(key)
    store.blobs.create(key, [body + digest + store.catalog.seals.need_key().mac("record", digest)])


def test_a_record_of_a_newer_format_is_refused() -> None:
    with memory_store() as store:
        cut = Scene.new(store).cut(state(1))
        rewritten(store, f"{cut.manifest_key}.commit", format=2)
        with pytest.raises(NewerFormat, match="format 2"):
            gather(store.blobs)


def test_a_record_in_another_ones_place_is_no_proof() -> None:
    with memory_store() as store:
        scene = Scene.new(store)
        one, other = (scene.cut(state(n)) for n in range(2))
        content = store.blobs.read(f"{one.manifest_key}.commit")
        store.blobs.delete(f"{other.manifest_key}.commit")
        store.blobs.create(f"{other.manifest_key}.commit", [content])
        found = gather(store.blobs)
        assert [row.place for row in found.cuts] == [one.place]
        assert "is the commit record of another checkpoint" in found.left_out[0]


def test_a_record_without_the_lineage_still_tells_where_it_forked_off() -> None:
    """As older versions wrote them: the parent of a lineage's first cut is its origin."""
    with memory_store() as store:
        cuts = populate(store)
        for cut in cuts:
            key = f"{cut.manifest_key}.commit"
            doc = decode(store.blobs.read(key)[:-64])
            later = ("order", "origin", "next_birth")
            sealed(store, key, {name: value for name, value in doc.items() if name not in later})
        before = {line.lineage: line.origin for line in store.catalog.lineages(SYSTEM)}
        lines, _ = gather(store.blobs).systems[SYSTEM]
        assert {line.lineage: line.origin for line in lines} == before
        assert len({line.order for line in lines}) == 2
        assert all(line.next_birth > LEAP for line in lines)


def test_a_label_that_moved_is_the_later_ones() -> None:
    with memory_store() as store:
        scene = Scene.new(store)
        old = scene.cut(state(0), label="best")
        store.catalog.unpin(scene.lease, *old.place, "best")
        scene.cut(state(1), label="best")
        found = gather(store.blobs)
        assert [row.label for row in found.cuts] == [None, "best"]
        assert "the label 'best' of checkpoint 1" in found.left_out[0]
        catalog = SqliteCatalog(":memory:")
        refill(catalog, found)
        assert catalog.find(SYSTEM, "best").checkpoint == 2
        catalog.close()


@pytest.mark.parametrize("bucket", [False, True], ids=["folder", "S3"])
def test_a_schema_is_made_again(
    bucket: bool, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres: Postgres = request.getfixturevalue("postgres_server")
    name = secrets.token_hex(6)
    place = f"{tmp_path / name}?catalog={postgres.url(f's_{name}')}"
    if bucket:
        s3: S3 = request.getfixturevalue("s3_server")
        for key, value in s3.environment().items():
            monkeypatch.setenv(key, value)
        place = f"{s3.url(name)}&catalog={postgres.url(f's_{name}')}"
    with open_store(place, create=True) as store:
        populate(store)
        rows = {system: store.catalog.checkpoints(system) for system in store.catalog.systems()}
        for cut in (cut for each in rows.values() for cut in each):
            # A commit does not wait for its record where the service is slow.
            store.write_record(cut)
    with pytest.raises(Misuse, match="knows every system"):
        rebuild_catalog(place)
    where = locate(place).catalog
    assert where is not None
    with contextlib.closing(postgres_catalog(where)) as catalog:
        catalog.database.connection().execute(f"DROP SCHEMA s_{name} CASCADE".encode())
    with pytest.raises(Corrupt, match="rebuild-catalog"):
        open_store(place, create=True)
    found = rebuild_catalog(place)
    assert (found.left_out, found.damaged, len(found.cuts)) == ([], [], 6)
    with open_store(place, create=False) as store:
        for system, before in rows.items():
            after = store.catalog.checkpoints(system)
            assert [(row.place, row.label, row.blobs) for row in after] == [
                (row.place, row.label, row.blobs) for row in before
            ]
            assert store.verify(system).faults == []
        assert Scene.resumed(store, now=time.time()).cut(state(5)).checkpoint > LEAP


@pytest.fixture(scope="module")
def kept() -> dict[str, bytes]:
    """The blobs of a store, by key."""
    with memory_store() as store:
        populate(store)
        assert isinstance(store.blobs, MemoryBlobs)
        return dict(store.blobs._blobs)


HARM = st.tuples(
    st.sampled_from(["flip", "cut", "gone", "swap"]), st.integers(0, 1 << 20), st.integers(0, 1 << 20)
)


@settings(max_examples=60, deadline=None)
@given(harms=st.lists(HARM, max_size=4))
def test_whatever_is_damaged_what_comes_back_is_right(
    kept: dict[str, bytes], harms: list[tuple[str, int, int]]
) -> None:
    """Random objects are flipped, cut, swapped or gone: a cut that verifies afterwards holds what it held."""
    blobs = MemoryBlobs()
    blobs._blobs = dict(kept)
    for kind, which, at in harms:
        keys = sorted(blobs._blobs)
        key = keys[which % len(keys)]
        content = blobs._blobs[key]
        if kind == "gone":
            del blobs._blobs[key]
        elif kind == "swap":
            other = keys[at % len(keys)]
            blobs._blobs[key], blobs._blobs[other] = blobs._blobs[other], content
        elif content:
            at %= len(content)
            rest = bytes([content[at] ^ 16]) + content[at + 1 :] if kind == "flip" else b""
            blobs._blobs[key] = content[:at] + rest
    catalog = SqliteCatalog(":memory:")
    with Store("memory:", blobs, catalog, None) as store:
        found = gather(blobs)
        refill(catalog, found)
        assert harms or len(found.cuts) == 6
        for system in catalog.systems():
            report = store.verify(system)
            for row in catalog.checkpoints(system):
                assert row.place in report.whole or row.place in report.broken
                if row.place in report.whole:
                    assert states(store, row) in [state(n) for n in (0, 1, 2, 10, 11, 20)]
