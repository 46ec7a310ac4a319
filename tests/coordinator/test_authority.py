"""A new key for a store: it vouches for nothing that the old one did not, and the old one is of no use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator import authority
from cutline.coordinator.authority import take_over
from cutline.errors import Corrupt, ForeignStore, Misuse, NotAuthentic
from cutline.participant.ingress import IngressLog
from cutline.storage import SqliteCatalog, open_store
from cutline.storage.authentic import Seals, StoreKey
from cutline.storage.keys import ENVIRONMENT, ENVIRONMENT_FILE, aside_path, find_key, keep_key, key_path
from cutline.storage.repair import rebuild_catalog
from tests.storage.cast import SYSTEM, Scene, lease_of, states

THIEF = StoreKey(b"e" * 32)
RECORDS = [["tell", 1, "a", "add", b"x"], ["tell", 2, "a", "add", b"y"]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two cuts and a log."""
    monkeypatch.setenv("CUTLINE_HOME", str(tmp_path / "home"))
    with open_store(tmp_path / "store", create=True) as store:
        scene = Scene.new(store)
        for number in range(2):
            scene.cut({"a": {"x": str(number)}})
        store.catalog.raise_horizon(scene.lease, scene.lineage, 1)
        store.catalog.release_lease(scene.lease)
        key = store.catalog.seals.need_key()
    write_log(tmp_path / "store" / "ingress" / "line.log", key)
    return tmp_path / "store"


def write_log(path: Path, key: StoreKey) -> None:
    log = IngressLog(path, key.derived("ingress"))
    log.append(RECORDS)
    log.close()


def own_key(folder: Path) -> StoreKey:
    with open_store(folder, create=False) as store:
        return store.catalog.seals.need_key()


def renew(folder: Path, **options: Any) -> StoreKey:
    with open_store(folder, create=False) as store:
        return take_over(store, str(folder), **options)


def is_whole(folder: Path) -> bool:
    """With all that it had, by its own key."""
    with open_store(folder, create=False) as store:
        key = store.catalog.seals.need_key()
        log = IngressLog(folder / "ingress" / "line.log", key.derived("ingress"))
        records = [record[1:] for record in log.after(0)]
        log.close()
        (line,) = store.catalog.lineages(SYSTEM)
        return (
            states(store, store.catalog.find(SYSTEM, "newest")) == {"a": {"x": "1"}}
            and store.verify(SYSTEM).faults == []
            and store.catalog.horizon(line.lineage) == 1
            and records == RECORDS
        )


def test_the_old_key_is_of_no_use(folder: Path) -> None:
    old = own_key(folder)
    new = renew(folder)
    assert own_key(folder) == new != old and is_whole(folder)
    assert find_key(old.id) is None and aside_path(old.id).read_text().strip() == old.text
    # Whoever stole it seals all of the store with it, or a record, and it counts for nothing.
    (folder / "catalog.sqlite").rename(folder / "true.sqlite")
    (folder / "catalog.sqlite").write_bytes((folder / "true.sqlite").read_bytes())
    thief = SqliteCatalog(folder / "catalog.sqlite")
    thief.take_over(old)
    thief.close()
    with open_store(folder, create=False) as store, pytest.raises(ForeignStore):
        lease_of(store)
    (folder / "catalog.sqlite").unlink()
    assert len(rebuild_catalog(folder).cuts) == 2 and own_key(folder) == new
    keep_key(old)
    assert find_key(old.id) == old


def test_what_somebody_else_wrote_does_not_get_a_new_seal(folder: Path) -> None:
    before = own_key(folder)
    log = folder / "ingress" / "line.log"
    true = log.read_bytes()
    log.unlink()
    write_log(log, THIEF)
    with pytest.raises(NotAuthentic, match="record 1 of the ingress log"):
        renew(folder)
    assert own_key(folder) == before
    log.write_bytes(true)
    assert is_whole(folder)
    for table, number in (("checkpoints", 2), ("horizons", 0)):
        forge(folder, table, number)
        with pytest.raises(NotAuthentic):
            renew(folder)
        assert own_key(folder) == before and key_path(before.id).exists()
        rebuild_catalog(folder, force=True)
    # Where the log is trusted, the rest must verify all the same.
    log.unlink()
    write_log(log, THIEF)
    renew(folder, trust=True)
    assert own_key(folder) != before
    with open_store(folder, create=False) as store:
        assert states(store, store.catalog.find(SYSTEM, "newest")) == {"a": {"x": "1"}}


def test_a_damaged_catalog_is_made_again_before_its_records_lose_their_key(folder: Path) -> None:
    before = own_key(folder)
    for damage in (
        "UPDATE lineages SET epoch = 77",
        "UPDATE checkpoints SET label = 'x' WHERE checkpoint = 2",
    ):
        catalog = SqliteCatalog(folder / "catalog.sqlite")
        with catalog.database.writing() as connection:
            assert connection.execute(damage).rowcount > 0
        catalog.close()
        with pytest.raises(Corrupt, match="is damaged"):
            renew(folder)
        assert own_key(folder) == before
        assert len(rebuild_catalog(folder, force=True).cuts) == 2
    renew(folder)
    assert len(rebuild_catalog(folder, force=True).cuts) == 2


def forge(folder: Path, table: str, number: int) -> None:
    """A row with its digest made right."""
    catalog = SqliteCatalog(folder / "catalog.sqlite")
    with catalog.database.writing() as connection:
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        seals = Seals(THIEF, meta["store"])
        if table == "horizons":
            (lineage,) = connection.execute("SELECT lineage FROM lineages").fetchone()
            sealed = f"{number}:{seals.seal(table, lineage, number).hex()}"
            statement = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
            connection.execute(statement, (f"horizon:{lineage}", sealed))
        else:
            where = f"SELECT * FROM {table} WHERE checkpoint = {number}"
            lineage, checkpoint, _, *rest, _ = connection.execute(where).fetchone()
            seal = seals.seal(table, lineage, checkpoint, "best", *rest)
            statement = f"UPDATE {table} SET label = 'best', seal = ? WHERE checkpoint = {number}"
            connection.execute(statement, (seal,))
    catalog.close()


@pytest.mark.parametrize("step", ["note_renewal", "store.take_over", "_reseal", "retire_former"])
@pytest.mark.parametrize("after", [False, True])
def test_one_that_was_interrupted_is_run_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    old = own_key(folder)
    with open_store(folder, create=False) as store:
        place = store if step == "store.take_over" else authority
        name = step.rpartition(".")[2]
        real = getattr(place, name)

        def dies(*arguments: Any, **options: Any) -> None:
            if options.get("only_check"):
                real(*arguments, **options)
                return
            if after:
                real(*arguments, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(place, name, dies)
            take_over(store, str(folder))
    between = own_key(folder)
    new = renew(folder)
    assert own_key(folder) == new and is_whole(folder)
    assert find_key(old.id) is None and find_key(between.id) is None
    # A key that no store came to have may be left with its note.
    assert between == old or not list(key_path(old.id).parent.glob("*.replaces"))


def test_the_key_of_the_environment_is_replaced_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = own_key(folder)
    monkeypatch.setenv(ENVIRONMENT, old.text)
    with pytest.raises(Misuse, match="the key that the environment gives.*CUTLINE_STORE_KEY_FILE"):
        renew(folder)
    new = StoreKey.new()
    monkeypatch.setenv(ENVIRONMENT, new.text)
    (tmp_path / "old").write_text(old.text)
    (tmp_path / "old").chmod(0o600)
    key_path(old.id).unlink()
    monkeypatch.setenv(ENVIRONMENT_FILE, str(tmp_path / "old"))
    assert renew(folder) == new and is_whole(folder)
    monkeypatch.delenv(ENVIRONMENT_FILE)
    assert own_key(folder) == new
