"""The SQLite catalog keeps the contract, and says what its file's troubles mean."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutline.errors import Corrupt, NewerFormat, StorageError, StoreFull, StoreNotWritable
from cutline.storage import Catalog, SqliteCatalog
from cutline.storage.disk import Disk
from tests.storage.cast import KEY, owner
from tests.storage.conformance import CatalogTests


class TestSqliteCatalog(CatalogTests):
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Iterator[Catalog]:
        with_file = SqliteCatalog.create(tmp_path / "cat alog?.sqlite", "id", KEY)
        yield with_file
        with_file.close()


class TestSqliteCatalogInMemory(CatalogTests):
    @pytest.fixture
    def catalog(self) -> Iterator[Catalog]:
        in_memory = SqliteCatalog(":memory:")
        yield in_memory
        in_memory.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteCatalog]:
    made = SqliteCatalog.create(tmp_path / "c.sqlite", "id", KEY)
    yield made
    made.close()


def test_a_commit_is_synced(file: SqliteCatalog) -> None:
    with file.database.reading() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_creating_twice_is_creating_once(file: SqliteCatalog) -> None:
    lease = file.acquire_lease("s", owner(), 10.0, 0.0)
    file.create_lineage(lease, None)
    again = SqliteCatalog.create(file.database.path, "another id", KEY)
    assert again.store_id() == "id"
    assert not again.is_blank()
    again.close()


def test_another_process_reads_while_this_one_writes(file: SqliteCatalog) -> None:
    lease = file.acquire_lease("s", owner(), 10.0, 0.0)
    line = file.create_lineage(lease, None)
    reader = SqliteCatalog(file.database.path)
    with file.database.writing() as connection:
        connection.execute("UPDATE meta SET value = value")
        assert reader.epoch(line) == 0
    assert file.bump_epoch(lease, line) == reader.epoch(line) == 1
    reader.close()


def _in_a_child(catalog: SqliteCatalog, system: str) -> None:
    catalog.acquire_lease(system, owner(), 10.0, 0.0)
    catalog.close()
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own_connection(file: SqliteCatalog) -> None:
    file.acquire_lease("parent", owner(), 10.0, 0.0)
    child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(file, "child"))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert file.lease_holder("child") == owner()
    file.acquire_lease("parent2", owner(), 10.0, 0.0)


def test_newer_format(file: SqliteCatalog) -> None:
    with file.database.writing() as connection:
        connection.execute("UPDATE meta SET value = '2' WHERE key = 'format'")
    with pytest.raises(NewerFormat, match="upgrade"):
        file.store_id()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database or disk is full", StoreFull),
        ("attempt to write a readonly database", StoreNotWritable),
        ("unable to open database file", StoreNotWritable),
        ("database disk image is malformed", Corrupt),
    ],
)
def test_what_sqlite_says(file: SqliteCatalog, text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="c.sqlite"):
        with file.database.writing():
            raise sqlite3.OperationalError(text)


def test_a_full_disk_undoes_the_transaction(file: SqliteCatalog) -> None:
    lease = file.acquire_lease("s", owner(), 10.0, 0.0)
    line = file.create_lineage(lease, None)
    with file.database.reading() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    file.database._open().execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreFull):
        file.put_member(lease, line, "t", 1, {"big": os.urandom(1 << 20)})
    file.database._open().execute("PRAGMA max_page_count=100000")
    assert file.members(line) == {}
    file.put_member(lease, line, "t", 1, {"big": os.urandom(1 << 20)})


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "c.sqlite").write_bytes(b"not a database at all" * 100)
    catalog = SqliteCatalog(tmp_path / "c.sqlite")
    with pytest.raises(Corrupt, match="c.sqlite"):
        catalog.store_id()


def test_a_new_file_is_opened_while_another_sets_it_up(tmp_path: Path) -> None:
    """SQLite does not wait there by itself: turning the journal's mode is refused at once."""
    path = tmp_path / "c.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        other.execute("BEGIN IMMEDIATE")
        done = threading.Timer(0.2, other.execute, ("COMMIT",))
        done.start()
        with contextlib.closing(SqliteCatalog.create(path, "id", KEY)) as made:
            assert made.store_id() == "id"
        done.join()


def test_the_name_of_the_log_is_durable_before_anything_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself takes no notice where the folder of a new log cannot be synced."""
    SqliteCatalog.create(tmp_path / "catalog.sqlite", "id", KEY).close()
    synced: list[bool] = []

    def sync(self: Disk, fd: int) -> None:
        synced.append((tmp_path / "catalog.sqlite-wal").exists())
        if fail:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Disk, "sync", sync)
    for fail in (True, False):
        with contextlib.closing(SqliteCatalog(tmp_path / "catalog.sqlite")) as catalog:
            if fail:
                with pytest.raises(StorageError, match="catalog.sqlite-wal"):
                    catalog.store_id()
            else:
                assert catalog.store_id() == "id"
    assert synced == [True, True]
