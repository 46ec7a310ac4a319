"""One SQL query, with plain sqlite3, says which participants a checkpoint has."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cutline.storage import Store, open_store
from cutline.storage.export import export_cut
from cutline.storage.importing import import_cut, open_export
from cutline.storage.keys import ENVIRONMENT
from cutline.storage.repair import rebuild_catalog
from tests.storage.cast import SYSTEM, Scene
from tests.storage.stores.make import CUTS
from tests.storage.stores.make import SYSTEM as OLD_SYSTEM

ROOT = Path(__file__).parents[2]
STORES = Path(__file__).parent / "stores"


def asked(folder: Path, statement: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(folder / "catalog.sqlite")
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def listed(folder: Path) -> set[tuple[Any, ...]]:
    return set(asked(folder, "SELECT system, lineage, checkpoint, label, participant FROM participants"))


def due(store: Store, *systems: str) -> set[tuple[Any, ...]]:
    """What the rows and manifests say."""
    return {
        (system, row.lineage, row.checkpoint, row.label, name)
        for system in systems
        for row in store.catalog.checkpoints(system)
        for name in store.read_manifest(row).images
    }


def test_the_query_of_the_documentation(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        scene.cut({"a": {"x": "1"}, "b'": {"y": "2"}}, label="first")
        row = scene.cut({"a": {"x": "3"}, "b'": {"y": "2"}})
        images = store.read_manifest(row).images
        (query,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "format.md").read_text(), re.DOTALL)
        query = query.replace("checkpoint = 8", f"checkpoint = {row.checkpoint}")
        assert asked(tmp_path, query) == [(name, images[name].ref.size, None) for name in ("a", "b'")]
        found = asked(tmp_path, "SELECT participant, birth, kind, packs, label FROM participants")
        assert set(found) == {
            ("a", 1, "full", 1, "first"), ("b'", 1, "full", 1, "first"),
            ("a", 1, "delta", 2, None), ("b'", 1, "delta", 2, None),
        }  # fmt: skip
        # Begun and aborted ones are in no listing.
        scene.begin(True, "second", ["a"])
        assert listed(tmp_path) == due(store, SYSTEM)


def test_listings_go_with_their_checkpoints(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        for n in range(6):
            scene.cut({"a": {"x": str(n)}}, full=True)
        store.sweep(scene.lease, 10.0, keep=2)
        assert listed(tmp_path) == due(store, SYSTEM) and len(listed(tmp_path)) == 2
        assert len(asked(tmp_path, "SELECT * FROM listings")) == 2


def test_a_catalog_of_before_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, (STORES / "v1.key").read_text().strip())
    folder = Path(shutil.copytree(STORES / "v1", tmp_path / "store"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        listed(folder)
    with open_store(folder, create=False) as store:
        # Who only reads changes nothing.
        rows = store.catalog.checkpoints(OLD_SYSTEM)
        assert asked(folder, "SELECT name FROM sqlite_master WHERE name = 'listings'") == []
        scene = Scene.resumed(store, OLD_SYSTEM)
        assert listed(folder) == set()
        store.sweep(scene.lease, 10.0, keep=len(CUTS))
        assert listed(folder) == due(store, OLD_SYSTEM) and len({row[2] for row in listed(folder)}) == len(
            rows
        )


def test_cuts_that_came_another_way(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", create=True) as store:
        scene = Scene.new(store)
        row = scene.cut({"a": {"x": "1"}, "b": {"y": "2"}}, label="first")
        export_cut(store, row, tmp_path / "export")
        import_cut(store, open_export(tmp_path / "export"), name="copy")
        assert listed(tmp_path / "s") == due(store, SYSTEM, "copy") and len(listed(tmp_path / "s")) == 4
        store.catalog.release_lease(scene.lease)
    rebuild_catalog(str(tmp_path / "s"), force=True)
    with open_store(tmp_path / "s", create=False) as store:
        assert listed(tmp_path / "s") == set()
        for system in (SYSTEM, "copy"):
            store.sweep(Scene.resumed(store, system).lease, 10.0)
        assert listed(tmp_path / "s") == due(store, SYSTEM, "copy")
