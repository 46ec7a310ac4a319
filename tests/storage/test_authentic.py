"""Who can write the store and does not have its key gets nothing believed."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutline.errors import BlobNotFound, Corrupt, ForeignStore, Misuse, NotAuthentic, StoreInUse
from cutline.storage import CheckpointRow, Manifest, Piece, SqliteCatalog, Store, open_store, write_image
from cutline.storage.authentic import Seals, StoreKey
from cutline.storage.codec import digest_of
from cutline.storage.export import export_cut
from cutline.storage.importing import import_cut, open_export
from cutline.storage.keys import ENVIRONMENT, ENVIRONMENT_FILE, find_key, key_path, made_key
from cutline.storage.owners import Owner
from cutline.storage.record import commit_record
from cutline.storage.repair import rebuild_catalog
from cutline.storage.retention import Policy
from cutline.storage.tending import gc
from tests.storage.cast import SYSTEM, Scene, lease_of, states


def state(number: int) -> dict[str, dict[str, str]]:
    return {"a": {"x": str(number)}, "b": {"y": "always"}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with no key yet."""
    place = tmp_path / "home"
    monkeypatch.setenv("CUTLINE_HOME", str(place))
    return place


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    """A store with three cuts."""
    with open_store(tmp_path / "store", create=True) as store:
        scene = Scene.new(store)
        for number in range(3):
            scene.cut(state(number))
        store.catalog.raise_horizon(scene.lease, scene.lineage, 1)
        store.catalog.count_failure(scene.lease, scene.lineage, "a")
        store.catalog.put_member(scene.lease, scene.lineage, "a", 1, {})
        store.catalog.release_lease(scene.lease)
    return tmp_path / "store"


def trusted(folder: Path) -> Store:
    """With a new key."""
    store = open_store(folder, create=False)
    try:
        store.take_over(made_key())
    except BaseException:
        store.close()
        raise
    return store


def keys_of(home: Path) -> list[Path]:
    return sorted((home / "keys").iterdir())


# The key


def test_the_key_is_outside_of_the_store_and_for_its_owner_alone(folder: Path, home: Path) -> None:
    (path,) = keys_of(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with open_store(folder, create=False) as store:
        key = store.catalog.seals.need_key()
    assert path == key_path(key.id) and path.read_text().strip() == key.text
    assert key.text not in repr(key) and key.text not in repr(store.catalog.seals)
    for file in folder.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert key.secret not in content and key.text.encode() not in content, file


def test_who_makes_one_store_at_once_agrees_on_one_key(home: Path, tmp_path: Path) -> None:
    ready, found = threading.Barrier(4), []

    def make() -> None:
        ready.wait()
        with open_store(tmp_path / "s", create=True) as store:
            found.append(store.catalog.seals.need_key().id)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and [path.stem for path in keys_of(home)] == [found[0]] == list({*found})


def test_without_the_key_a_store_is_read_and_not_written(folder: Path, home: Path) -> None:
    (path,) = keys_of(home)
    path.rename(path.with_name("elsewhere"))
    with open_store(folder, create=True) as store:
        assert not store.is_verified
        row = store.newest_whole(SYSTEM)
        assert states(store, row) == state(2) and store.verify(SYSTEM).faults == []
        with pytest.raises(ForeignStore, match="cutline key add FILE.*CUTLINE_STORE_KEY.*trust=True"):
            lease_of(store, now=1e9)
        with pytest.raises(ForeignStore, match=store.catalog.seals.key_id):
            gc(store, SYSTEM, Policy(1), 0.0)
        assert len(store.catalog.checkpoints(SYSTEM)) == 3
    path.with_name("elsewhere").rename(path)
    with open_store(folder, create=False) as store:
        assert store.is_verified and lease_of(store, now=1e9).token == 2


def test_the_environment_gives_a_key(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = keys_of(home)
    text = path.read_text()
    path.unlink()
    monkeypatch.setenv(ENVIRONMENT, text.strip())
    with open_store(folder, create=False) as store:
        assert store.is_verified
    monkeypatch.delenv(ENVIRONMENT)
    file = home / "of a container"
    file.write_text(f"{StoreKey.new().text}\n{text}")
    file.chmod(0o600)
    monkeypatch.setenv(ENVIRONMENT_FILE, str(file))
    with open_store(folder, create=False) as store:
        assert store.is_verified
    # A new store has that key too, and none is made.
    with open_store(folder.with_name("new"), create=True) as store:
        assert store.is_verified and list((home / "keys").iterdir()) == []
    file.chmod(0o644)
    with pytest.raises(Misuse, match="chmod 600"):
        open_store(folder, create=False)
    monkeypatch.setenv(ENVIRONMENT_FILE, str(home / "none"))
    with pytest.raises(Misuse, match="CUTLINE_STORE_KEY_FILE.*No such file"):
        open_store(folder, create=False)
    monkeypatch.delenv(ENVIRONMENT_FILE)
    for wrong in ("zz" * 32, "00" * 31):
        monkeypatch.setenv(ENVIRONMENT, wrong)
        with pytest.raises(Misuse, match="CUTLINE_STORE_KEY holds no key of a store"):
            open_store(folder, create=False)


def test_a_key_that_is_not_what_its_name_says(folder: Path, home: Path) -> None:
    (path,) = keys_of(home)
    path.write_text(StoreKey.new().text)
    with pytest.raises(Misuse, match="holds another key"):
        open_store(folder, create=False)
    path.chmod(0o640)
    with pytest.raises(Misuse, match="open to others"):
        open_store(folder, create=False)


@pytest.mark.parametrize(
    "key_id", ["../../secret", "", "0" * 31, "0" * 33, "/etc/passwd", "ü" * 32, "A" * 32]
)
def test_what_a_store_says_of_its_key_leads_nowhere_else(folder: Path, home: Path, key_id: str) -> None:
    with sqlite3.connect(folder / "catalog.sqlite") as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'key'", (key_id,))
    connection.close()
    assert find_key(key_id) is None
    with open_store(folder, create=False) as store:
        assert not store.is_verified


# Rows


def altered(folder: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(folder / "catalog.sqlite") as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def resealed(folder: Path, table: str, where: str, key: StoreKey | None, **changes: Any) -> None:
    """Changes rows as somebody who knows this code and has another key, or none."""
    with sqlite3.connect(folder / "catalog.sqlite") as connection:
        (store_id,) = connection.execute("SELECT value FROM meta WHERE key = 'store'").fetchone()
        cursor = connection.execute(f"SELECT rowid, * FROM {table} WHERE {where}")
        names = [column[0] for column in cursor.description][1:-1]
        for rowid, *values, _ in cursor.fetchall():
            row = {**dict(zip(names, values, strict=True)), **changes}
            order = list(row.values())
            if table == "lineages":
                order[:2] = order[1], order[0]
            seal = Seals(key or StoreKey.new(), store_id).seal(table, *order)
            row["seal"] = seal if key else seal[:32] + bytes(32)
            sets = ", ".join(f"{name} = ?" for name in row)
            connection.execute(f"UPDATE {table} SET {sets} WHERE rowid = ?", (*row.values(), rowid))
    connection.close()


@pytest.mark.parametrize("key", [None, StoreKey(b"e" * 32)], ids=["no key", "another key"])
def test_a_row_is_not_believed_without_the_key(folder: Path, key: StoreKey | None) -> None:
    resealed(folder, "checkpoints", "checkpoint = 3", key, label="best")
    with open_store(folder, create=False) as store:
        with pytest.raises(NotAuthentic, match="row of checkpoint 3 of lineage .* does not verify"):
            store.catalog.find(SYSTEM, "best")
        damage: list[Any] = []
        assert store.newest_whole(SYSTEM, damage=damage).checkpoint == 2
        assert any(isinstance(error, NotAuthentic) for error in damage)
        assert any(isinstance(fault, NotAuthentic) for fault in store.verify(SYSTEM).faults)


def verb(name: str) -> Callable[[Store, str], Any]:
    return lambda store, lineage: getattr(store.catalog, name)(lineage)


@pytest.mark.parametrize(
    ("table", "change", "asked"),
    [
        ("lineages", {"next_checkpoint": 2}, verb("epoch")),
        ("members", {"birth": 9}, verb("members")),
        ("failures", {"count": 0}, verb("failures")),
        ("leases", {"token": 1}, lambda store, lineage: lease_of(store, now=1e9)),
    ],
)
def test_no_row_of_any_table_is(folder: Path, table: str, change: dict[str, Any], asked: Any) -> None:
    resealed(folder, table, "1", None, **change)
    with open_store(folder, create=False) as store:
        (lineage,) = [name for (name,) in _lineages(folder)]
        with pytest.raises(NotAuthentic):
            asked(store, lineage)


def _lineages(folder: Path) -> list[Any]:
    with sqlite3.connect(folder / "catalog.sqlite") as connection:
        found = connection.execute("SELECT lineage FROM lineages ORDER BY number").fetchall()
    connection.close()
    return found


def test_a_horizon_is_not_lowered(folder: Path) -> None:
    lineage = _lineages(folder)[0][0]
    seal = Seals(StoreKey.new(), "").seal("horizons", lineage, 0).hex()
    altered(folder, "UPDATE meta SET value = ? WHERE key LIKE 'horizon:%'", f"0:{seal}")
    with open_store(folder, create=False) as store, pytest.raises(NotAuthentic, match="horizon"):
        store.catalog.horizon(lineage)


def test_a_row_counts_in_its_own_place_alone(folder: Path) -> None:
    """Moved to another number, another lineage, another store: each row was sealed with the key."""
    with open_store(folder, create=False) as store:
        scene = Scene.resumed(store)
        fork = scene.fork(store.catalog.find(SYSTEM, "1"))
        fork.cut(state(7))
        store.catalog.release_lease(scene.lease)
    first, second = (name for (name,) in _lineages(folder))
    columns = "label, fate, condemned, doc, seal"
    take = f"(SELECT {columns} FROM checkpoints WHERE lineage = ? AND checkpoint = ?)"
    move = f"UPDATE checkpoints SET ({columns}) = {take} WHERE lineage = ? AND checkpoint = ?"
    altered(folder, move, first, 2, first, 3)
    with open_store(folder, create=False) as store, pytest.raises(Corrupt, match="checkpoint 3"):
        store.catalog.find(SYSTEM, "3", first)
    # With the digest made right: the MAC is over the place too.
    for lineage, number in ((first, 3), (second, 2)):
        altered(folder, move, first, 1, lineage, number)
        resealed(folder, "checkpoints", f"lineage = '{lineage}' AND checkpoint = {number}", None)
        with open_store(folder, create=False) as store, pytest.raises(NotAuthentic):
            store.catalog.find(SYSTEM, str(number), lineage)


def test_a_store_does_not_take_the_rows_of_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both may have one key, from the environment."""
    with open_store(folder, create=False) as store:
        monkeypatch.setenv(ENVIRONMENT, store.catalog.seals.need_key().text)
        line = store.catalog.lineages(SYSTEM)[0]
    with open_store(folder.with_name("other"), create=True) as other:
        lineage = other.catalog.create_lineage(lease_of(other), None)
    altered(
        folder.with_name("other"),
        "UPDATE lineages SET lineage = ?, number = ?, epoch = ?, next_checkpoint = ?, next_birth = ?,"
        " seal = ? WHERE lineage = ?",
        line.lineage, line.order, line.epoch, line.next_checkpoint, line.next_birth, b"", lineage,
    )  # fmt: skip
    with sqlite3.connect(folder / "catalog.sqlite") as connection:
        (seal,) = connection.execute("SELECT seal FROM lineages").fetchone()
    connection.close()
    altered(folder.with_name("other"), "UPDATE lineages SET seal = ?", seal)
    with open_store(folder.with_name("other"), create=False) as other, pytest.raises(NotAuthentic):
        other.catalog.lineages(SYSTEM)


def forged_cut(store: Store, row: CheckpointRow, content: bytes) -> tuple[str, bytes, tuple[str, ...]]:
    """A pack and a manifest beside those of a cut, all digests right: (key, digest, blobs)."""
    manifest = store.read_manifest(row)
    top = str(row.manifest_key).rpartition("/")[0]
    ref = write_image(
        store.blobs, f"{top}/a-1-0123456789abcdef.pack", header={}, sections={},
        pieces=[Piece("x", digest_of(content), content)], regions=[], parent=None,
    )  # fmt: skip
    images = {**manifest.images, "a": dataclasses.replace(manifest.images["a"], ref=ref)}
    evil = dataclasses.replace(manifest, images=images)
    key = f"{top}/manifest-0123456789abcdef"
    store.blobs.create(key, [evil.to_bytes()])
    return key, evil.id, (*evil.blobs, key)


def test_a_manifest_counts_if_a_row_vouches_for_it(folder: Path) -> None:
    with open_store(folder, create=False) as store:
        row = store.catalog.find(SYSTEM, "newest")
        key, digest, blobs = forged_cut(store, row, b"evil")
        packed = store.blobs.read(key)
        assert Manifest.from_bytes(packed, key, digest).id == digest
        # In place of the true one: the row's digest tells.
        (folder / "blobs" / str(row.manifest_key)).write_bytes(packed)
        with pytest.raises(Corrupt, match="is not the manifest that was committed"):
            store.read_manifest(row)
        # With a row that names it: whoever writes that needs the key.
        evil = dataclasses.replace(row, manifest_key=key, manifest_digest=digest, blobs=blobs)
    thief = SqliteCatalog(folder / "catalog.sqlite")
    meta = thief.meta()
    thief.seals.use(StoreKey(b"e" * 32), meta["store"], StoreKey(b"e" * 32).id)
    with thief.database.writing() as connection:
        thief._table.put(connection, evil)
    thief.close()
    with open_store(folder, create=False) as store:
        with pytest.raises(NotAuthentic):
            store.catalog.find(SYSTEM, "3")
        assert store.newest_whole(SYSTEM).checkpoint == 2


# Another key


def test_who_seals_all_of_it_anew_has_made_a_foreign_store(folder: Path) -> None:
    with open_store(folder, create=False) as store:
        before = store.catalog.seals.key_id
    thief = SqliteCatalog(folder / "catalog.sqlite")
    thief.take_over(StoreKey(b"e" * 32))
    thief.close()
    with open_store(folder, create=True) as store:
        assert not store.is_verified and store.catalog.seals.key_id == StoreKey(b"e" * 32).id != before
        with pytest.raises(ForeignStore):
            lease_of(store)


def test_a_store_that_is_trusted_gets_a_key(folder: Path, home: Path) -> None:
    (path,) = keys_of(home)
    path.unlink()
    with trusted(folder) as store:
        assert store.is_verified and [path.stem for path in keys_of(home)] == [store.catalog.seals.key_id]
        (lineage,) = (line.lineage for line in store.catalog.lineages(SYSTEM))
        assert store.catalog.horizon(lineage) == 1 and store.catalog.failures(lineage) == {"a": 1}
        assert store.catalog.members(lineage) == {"a": (1, {})}
        assert store.verify(SYSTEM).faults == []
    # Whoever trusted it once need not do so again, and rebuild-catalog believes its records.
    (folder / "catalog.sqlite").unlink()
    assert len(rebuild_catalog(folder).cuts) == 3
    with open_store(folder, create=False) as store:
        assert [path.stem for path in keys_of(home)] == [store.catalog.seals.key_id]
        assert Scene.resumed(store).cut(state(4)).checkpoint > 3


def test_what_is_damaged_stays_so(folder: Path, home: Path) -> None:
    altered(folder, "UPDATE checkpoints SET fate = 'aborted' WHERE checkpoint = 2")
    keys_of(home)[0].unlink()
    with trusted(folder) as store:
        damage: list[Corrupt] = []
        assert [row.checkpoint for row in store.catalog.checkpoints(SYSTEM, damage=damage)] == [1, 3]
        assert len(damage) == 1 and not isinstance(damage[0], NotAuthentic)


def test_a_store_is_not_taken_over_from_who_runs_it(folder: Path, home: Path) -> None:
    with open_store(folder, create=False) as store:
        lease = store.catalog.acquire_lease(SYSTEM, Owner.here("test"), 1e9, 2e9)
        (path,) = keys_of(home)
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(StoreInUse, match="stop it first"):
            trusted(folder)
        store.catalog.renew_lease(lease, 1e9, 2e9)


# Records


def test_a_catalog_is_made_again_from_records_that_verify(folder: Path, home: Path) -> None:
    with open_store(folder, create=False) as store:
        rows = store.catalog.checkpoints(SYSTEM)
        key, digest, blobs = forged_cut(store, rows[2], b"evil")
        evil = dataclasses.replace(rows[2], manifest_key=key, manifest_digest=digest, blobs=blobs)
        line = store.catalog.lineages(SYSTEM)[0]
        store.blobs.delete(f"{rows[2].manifest_key}.commit")
        store.blobs.create(f"{key}.commit", [commit_record(evil, line, StoreKey(b"e" * 32))])
        name = f"{rows[1].manifest_key}.commit"
        content = store.blobs.read(name)
        store.blobs.delete(name)
        store.blobs.create(name, [content[:-32] + bytes(32)])
    (folder / "catalog.sqlite").unlink()
    found = rebuild_catalog(folder)
    assert [row.place for row in found.cuts] == [rows[0].place]
    assert sum("is not here, so checkpoint 3" in text for text in found.left_out) == 1
    assert sum("does not verify with the store's key" in text for text in found.left_out) == 1
    with open_store(folder, create=False) as store:
        assert states(store, store.newest_whole(SYSTEM)) == state(0)
        assert keys_of(home) == [key_path(store.catalog.seals.key_id)]
    found = rebuild_catalog(folder, force=True, trust=True)
    assert len(found.cuts) == 3


# Exports


def test_an_export_verifies_where_the_key_is(folder: Path, home: Path, tmp_path: Path) -> None:
    with open_store(folder, create=False) as store:
        export_cut(store, store.catalog.find(SYSTEM, "newest"), tmp_path / "e")
        own = store.catalog.seals.need_key()
    with open_store(tmp_path / "other", create=True) as other:
        # Of another store of the same user.
        assert states(other, import_cut(other, open_export(tmp_path / "e"))) == state(2)
        key_path(own.id).unlink()
        with pytest.raises(ForeignStore, match=f"{own.id}.*nothing was imported"):
            import_cut(other, open_export(tmp_path / "e"), name="second")
        assert other.catalog.systems() == [SYSTEM]
        row = import_cut(other, open_export(tmp_path / "e"), name="second", trust=True)
        assert other.verify("second").whole == [row.place]
    with open_store(folder, create=False) as store:
        exported = export_cut(store, store.newest_whole(SYSTEM), tmp_path / "unsealed")
        assert open_export(tmp_path / "unsealed").doc["key"] is None and exported.participants == 2
    with open_store(tmp_path / "other", create=True) as other, pytest.raises(ForeignStore, match="none"):
        import_cut(other, open_export(tmp_path / "unsealed"))


def test_a_changed_export_does_not_verify(folder: Path, tmp_path: Path) -> None:
    with open_store(folder, create=False) as store:
        export_cut(store, store.catalog.find(SYSTEM, "newest"), tmp_path / "e")
        content = bytearray((tmp_path / "e").read_bytes())
        end = 24 + int.from_bytes(content[16:24], "little")
        body = bytes(content[24 : end - 64]).replace(b"market", b"mARKET")
        content[24:end] = body + digest_of(body) + content[end - 32 : end]
        (tmp_path / "changed").write_bytes(content)
        export = open_export(tmp_path / "changed")
        with pytest.raises(NotAuthentic, match="changed does not verify"):
            import_cut(store, export)
        assert import_cut(store, export, trust=True).system == "mARKET"


def test_an_imported_cut_whose_record_was_lost_is_not_collected(folder: Path, tmp_path: Path) -> None:
    """In a catalog that is made again it looks like what a dead import has left."""
    with open_store(folder, create=False) as store:
        export_cut(store, store.catalog.find(SYSTEM, "newest"), tmp_path / "e")
        row = import_cut(store, open_export(tmp_path / "e"))
        store.blobs.delete(f"{row.manifest_key}.commit")
    (folder / "catalog.sqlite").unlink()
    assert row.place not in [found.place for found in rebuild_catalog(folder).cuts]
    with open_store(folder, create=False) as store:
        gc(store, SYSTEM, Policy(1), 2e9)
        assert all(store.blobs.size(key) for key in row.blobs)
        # What an import into this catalog leaves behind goes.
        left = f"{SYSTEM}/import-{store.catalog.generation()}-01/1/3/a-1-00.pack"
        store.blobs.create(left, [b"half of it"])
        gc(store, SYSTEM, Policy(1), 2e9)
        with pytest.raises(BlobNotFound):
            store.blobs.size(left)


def test_keys_are_kept_when_the_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUTLINE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="keys"):
        open_store(tmp_path / "s", create=True)
    assert not (tmp_path / "s" / "cutline.json").exists()
    monkeypatch.setenv("CUTLINE_HOME", str(tmp_path / "home"))
    with open_store(tmp_path / "s", create=True) as store:
        assert store.is_verified
    assert os.listdir(tmp_path / "home" / "keys") == [f"{store.catalog.seals.key_id}.key"]
