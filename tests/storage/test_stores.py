"""Stores of every version of the format, made once: they are read for ever, by this code and without it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgpack
import pytest
from blake3 import blake3

from cutline.storage import open_store, read_image
from cutline.storage.importing import import_cut, open_export
from cutline.storage.keys import ENVIRONMENT
from tests.storage.cast import Scene
from tests.storage.stores.make import BIG, CUTS, PARTICIPANT, SYSTEM, memory_of
from tests.storage.test_format import derived, expand, read_chain

STORES = Path(__file__).parent / "stores"
VERSIONS = sorted(path.name for path in STORES.iterdir() if (path / "cutline.json").exists())


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, because whoever opens a store may write beside it."""
    monkeypatch.setenv(ENVIRONMENT, (STORES / f"{request.param}.key").read_text().strip())
    shutil.copy(STORES / f"{request.param}.export", tmp_path / "export")
    return Path(shutil.copytree(STORES / request.param, tmp_path / "store"))


def held(checkpoint: int) -> dict[str, Any]:
    return {
        "header": {"class": "m:C"},
        "sections": {"small": b"s", "big": BIG},
        "pieces": [("same", b"same"), ("count", CUTS[checkpoint][0])],
        "regions": {4: memory_of(checkpoint)},
    }


def test_there_is_one_of_each_version() -> None:
    assert VERSIONS == ["v1"]
    files = [path for path in STORES.rglob("*") if path.is_file() and "py" not in path.suffix]
    assert sum(path.stat().st_size for path in files) < 100_000


def test_it_is_read(folder: Path) -> None:
    with open_store(folder, create=False) as store:
        assert store.is_verified and store.catalog.systems() == [SYSTEM]
        rows = store.catalog.checkpoints(SYSTEM)
        assert [row.checkpoint for row in rows] == [*CUTS] and rows[0].label == "first"
        for row in rows:
            manifest = store.read_manifest(row)
            image = read_image(store.blobs, manifest.images[PARTICIPANT].ref)
            regions = {number: bytes(memory) for number, memory in image.regions.items()}
            read = {"header": image.header, "sections": image.sections, "pieces": image.pieces}
            assert {**read, "regions": regions} == held(row.checkpoint)
            assert manifest.channels == {"t": [row.checkpoint]}
        assert store.verify(SYSTEM).faults == [] and store.catalog.horizon(rows[0].lineage) == 2
        # It goes on.
        row = import_cut(store, open_export(folder.with_name("export")), name="copy")
        assert store.verify("copy").whole == [row.place]
        assert Scene.resumed(store, SYSTEM).begin(True, None, []) == len(CUTS) + 1


def test_it_is_read_without_our_code(folder: Path) -> None:
    key = bytes.fromhex((STORES / "v1.key").read_text())
    marker = json.loads((folder / "cutline.json").read_text())
    database = sqlite3.connect(folder / "catalog.sqlite")
    meta = dict(database.execute("SELECT key, value FROM meta"))
    assert meta["key"] == derived(key, "id").hex()[:32] and meta["store"] == marker["store"]
    rows = database.execute(
        "SELECT lineage, checkpoint, label, fate, condemned, doc, seal FROM checkpoints ORDER BY checkpoint"
    ).fetchall()
    database.close()
    assert len(rows) == len(CUTS)
    folded = 0
    for *columns, seal in rows:
        digest = blake3(msgpack.packb(columns)).digest()
        mac = blake3(digest, key=derived(key, f"row checkpoints of {meta['store']}")).digest()
        assert seal == digest + mac
        doc = columns[5]
        cut = msgpack.unpackb(expand(doc[0], doc[5:], int.from_bytes(doc[1:5], "little")))
        packed = (folder / "blobs" / cut["manifest_key"]).read_bytes()
        assert blake3(packed).digest() == cut["manifest_digest"]
        image = msgpack.unpackb(packed)["images"][PARTICIPANT]["image"]
        assert read_chain(folder / "blobs", image) == held(columns[1])
        folded += len(image["chain"]) < columns[1]
    assert folded
