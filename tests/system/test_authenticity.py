"""Somebody can write the store's folder, knows this code, and lacks the key: nothing of his runs."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import msgpack
import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator.cli import app
from cutline.errors import ForeignStore, NotAuthentic
from cutline.participant.endpoint_file import Endpoint, write_endpoint
from cutline.participant.ingress import IngressLog
from cutline.storage import Piece, SqliteCatalog, open_store, read_image, write_image
from cutline.storage.authentic import StoreKey
from cutline.storage.keys import find_key, key_path
from tests.system.actors import Counter

THIEF = StoreKey(b"thief's key".ljust(32))


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authentic") / "store"
    with cutline.start(folder, interval=None, quiet=True) as system:
        counter = system.spawn("counter", Counter)
        for number in range(2):
            counter.add.tell(number)
            system.checkpoint()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def key_id(folder: Path) -> str:
    with open_store(folder, create=False) as store:
        return store.catalog.seals.key_id


def plant(folder: Path, bomb: Path, *, everything: bool) -> None:
    """A newest cut whose participant is a bomb; ``everything``: all rows sealed anew by the thief's key."""
    thief = SqliteCatalog(folder / "catalog.sqlite")
    with open_store(folder, create=False) as store:
        row = store.catalog.checkpoints("default")[-1]
        manifest = store.read_manifest(row)
        member = manifest.images["counter"]
        image = read_image(store.blobs, member.ref)
        top = str(row.manifest_key).rpartition("/")[0]
        evil = pickle.dumps(Bomb(bomb), 5)
        ref = write_image(
            store.blobs,
            f"{top}/counter-{member.birth}-00000000000evil0.pack",
            header=image.header,
            sections=dict(image.sections),
            pieces=[
                Piece(name, os.urandom(32), old if name == "header" else evil) for name, old in image.pieces
            ],
            regions=[],
            parent=None,
        )
        images = {**manifest.images, "counter": dataclasses.replace(member, ref=ref)}
        planted = dataclasses.replace(manifest, images=images)
        key = f"{top}/manifest-00000000000evil0"
        store.blobs.create(key, [planted.to_bytes()])
    changes: Any = {"manifest_key": key, "manifest_digest": planted.id, "blobs": (*planted.blobs, key)}
    meta = thief.meta()
    thief.seals.use(THIEF, meta["store"], THIEF.id)
    with thief.database.writing() as connection:
        thief._table.put(connection, dataclasses.replace(row, **changes))
    thief.seals.use(None, meta["store"], meta["key"])
    if everything:
        thief.take_over(THIEF)
    thief.close()


def test_a_cut_with_a_bomb_is_refused(folder: Path, tmp_path: Path) -> None:
    plant(folder, tmp_path / "bomb", everything=False)
    for trust in (False, True):
        with pytest.raises(NotAuthentic, match="checkpoint .* does not verify.*rebuild-catalog --force"):
            cutline.start(folder, interval=None, quiet=True, trust=trust)
    told = CliRunner().invoke(app, ["rebuild-catalog", str(folder), "--force"])
    assert told.exit_code == 0, told.output
    with cutline.start(folder, interval=None, quiet=True) as system:
        # The record of the true one, of before it was replaced, verifies.
        assert system.spawn("counter", Counter).add.remote(0).result(timeout=60) == 1
    assert not (tmp_path / "bomb").exists()


def test_a_store_with_a_bomb_is_foreign_and_runs_it_if_it_is_trusted(folder: Path, tmp_path: Path) -> None:
    """That the bomb goes off at last shows that the other tests would see it."""
    plant(folder, tmp_path / "bomb", everything=True)
    with pytest.raises(ForeignStore, match=THIEF.id):
        cutline.start(folder, interval=None, quiet=True)
    assert not (tmp_path / "bomb").exists()
    with pytest.raises(cutline.errors.CutlineError):
        with cutline.start(folder, interval=None, quiet=True, trust=True) as system:
            system.spawn("counter", Counter).add.remote().result(timeout=20)
    assert (tmp_path / "bomb").exists()


def test_what_is_allowed_holds_where_a_store_is_trusted(folder: Path, tmp_path: Path) -> None:
    plant(folder, tmp_path / "bomb", everything=True)
    with pytest.raises(cutline.errors.CutlineError, match="participant 'counter': self.*mkdir is not among"):
        with cutline.start(
            folder, interval=None, quiet=True, trust=True, allow=["tests.system.actors.Counter"]
        ) as system:
            system.spawn("counter", Counter).add.remote().result(timeout=20)
    assert not (tmp_path / "bomb").exists()


def test_a_system_runs_with_what_is_allowed(folder: Path) -> None:
    for _ in range(2):
        with cutline.start(folder, interval=None, quiet=True, allow=["tests"]) as system:
            counter = system.spawn("counter", Counter)
            counter.add.remote().result(timeout=60)
            with pytest.raises(Exception, match="boom"):
                counter.fail.remote("boom").result(timeout=60)


def test_a_log_with_a_bomb_is_refused(folder: Path, tmp_path: Path) -> None:
    (log,) = (folder / "ingress").glob("*.log")
    thief = IngressLog(log.with_name("copy.log"), THIEF.derived("ingress"))
    packed = pickle.dumps(((Bomb(tmp_path / "bomb"),), {}), 5)
    thief.append([["tell", 1, "counter", "add", packed]])
    thief.close()
    log.write_bytes(log.with_name("copy.log").read_bytes())
    with pytest.raises(NotAuthentic, match="record 1 of the ingress log"):
        cutline.start(folder, interval=None, quiet=True)
    assert not (tmp_path / "bomb").exists()


def test_an_endpoint_of_somebody_else_is_not_asked(folder: Path) -> None:
    write_endpoint(folder, "default", Endpoint("unix:/nowhere", "00" * 16, 1), THIEF)
    told = CliRunner().invoke(app, ["stop", "-s", str(folder)])
    assert told.exit_code == 1 and f"{THIEF.id}" in told.output and "lead anywhere" in told.output
    own = find_key(key_id(folder))
    assert own is not None
    write_endpoint(folder, "default", Endpoint("unix:/nowhere", "00" * 16, 1), own)
    path = next(folder.glob("endpoint-*.json"))
    path.write_text(path.read_text().replace("/nowhere", "/elsewhere"))
    told = CliRunner().invoke(app, ["stop", "-s", str(folder)])
    assert told.exit_code == 1 and "does not verify" in told.output


def test_verbs_that_unpickle_nothing_say_what_they_do_not_know(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(folder, tmp_path / "bomb", everything=True)
    monkeypatch.setenv("COLUMNS", "300")
    for verb in ("list", "verify", "du", "tree", "show newest", "diff 1 newest", "gc --dry-run"):
        told = CliRunner().invoke(app, [*verb.split(), "-s", str(folder)])
        assert told.exit_code == 0 and f"the key of this store ({THIEF.id}) is not here" in told.output, verb
    told = CliRunner().invoke(app, ["gc", "-s", str(folder)])
    assert told.exit_code == 1 and "nothing can be written into it" in told.output
    assert not (tmp_path / "bomb").exists()


def test_a_key_goes_to_another_machine(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> str:
        told = CliRunner().invoke(app, ["key", *arguments])
        return f"{told.exit_code} {told.output}"

    monkeypatch.setenv("COLUMNS", "300")
    store, file = ["-s", str(folder)], tmp_path / "carried"
    assert str(key_path(key_id(folder))) in run("show", *store)
    assert run("export", str(file), *store).startswith("0") and file.stat().st_mode & 0o777 == 0o600
    assert "is there already" in run("export", str(file), *store)
    monkeypatch.setenv("CUTLINE_HOME", str(tmp_path / "there"))
    assert "it is not here" in run("show", *store)
    assert run("export", str(tmp_path / "x"), *store).startswith("1")
    assert run("renew", *store).startswith("1")
    assert run("add", str(tmp_path / "none")).startswith("1")
    assert run("add", str(file)).startswith("0") and "was here already" in run("add", str(file))
    with cutline.start(folder, interval=None, quiet=True) as system:
        assert system.resumed
    before = key_id(folder)
    assert run("renew", *store).startswith("0") and key_id(folder) != before
    with cutline.start(folder, interval=None, quiet=True) as system:
        assert system.resumed


def test_a_log_in_anothers_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        log = IngressLog(tmp_path / f"{name}.log", bytes(32))
        log.append([["tell", 1, "x", "y", msgpack.packb([])]])
        log.close()
    shutil.copy(tmp_path / "a.log", tmp_path / "b.log")
    with pytest.raises(NotAuthentic):
        IngressLog(tmp_path / "b.log", bytes(32))
