"""Opening and making stores, and what their errors say."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cutline.errors import (
    CheckpointNotFound,
    Corrupt,
    FateDecided,
    Fenced,
    Misuse,
    NewerFormat,
    NotAStore,
    RefusedOption,
    StoreFull,
    StoreNotWritable,
)
from cutline.storage import CheckpointRow, DirectoryBlobs, open_blobs, open_store, store_path
from cutline.storage.keys import ENVIRONMENT
from cutline.storage.opening import _marker_digest
from tests.storage.cast import SYSTEM, Scene, lease_of, states

STATE = {"a": {"x": "1"}}
ROOT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("a/b", "a/b"),
        ("./checkpoints", "checkpoints"),
        ("/a b/%20", "/a b/%20"),
        ("file:///a%20b/c", "/a b/c"),
        ("file://localhost/a", "/a"),
        ("FILE:///a", "/a"),
        ("a:b/c", "a:b/c"),
        ("x/s3://y", "x/s3:/y"),
    ],
)
def test_urls_of_folders(url: str, path: str) -> None:
    assert store_path(url) == store_path(Path(path)) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/x",
        "gs://b",
        "memory:x",
        "ftp://a/b",
        "file://host/x",
        "file:",
        "file:///a?b=1",
        "",
        "a\0b",
    ],
    ids=repr,
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(RefusedOption):
        open_store(url, create=True)


def test_a_store_is_made_once_and_opened_often(store_folder: Path) -> None:
    with pytest.raises(NotAStore, match="create=True"):
        open_store(store_folder, create=False)
    assert not store_folder.exists()
    with open_store(store_folder, create=True) as store:
        assert (store.path, store.url) == (store_folder, str(store_folder))
        row = Scene.new(store).cut(STATE)
    for create in (False, True):
        with open_store(store_folder.as_uri(), create=create) as store:
            assert store.catalog.checkpoints(SYSTEM) == [row]
            assert states(store, row) == STATE
    assert sorted(open_blobs(store_folder).list()) == sorted([*row.blobs, f"{row.manifest_key}.commit"])
    with pytest.raises(NotAStore):
        open_blobs(store_folder / "other")


def test_a_folder_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    with pytest.raises(NotAStore):
        open_store(tmp_path, create=False)
    with open_store(tmp_path, create=True) as store:
        Scene.new(store).cut(STATE)
    assert (tmp_path / "train.py").read_text() == "print()"


def test_many_make_the_same_store(tmp_path: Path) -> None:
    ids: list[str] = []
    gate = threading.Barrier(6)

    def make() -> None:
        gate.wait()
        with open_store(tmp_path / "deep" / "store", create=True) as store:
            ids.append(store.catalog.store_id())  # type: ignore[attr-defined]

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 6 and len(set(ids)) == 1


def test_two_systems_in_one_store(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        one, other = Scene.new(store, "one"), Scene.new(store, "other")
        first, second = one.cut({"a": {"x": "one"}}), other.cut({"a": {"x": "other"}})
        one.cut({"a": {"x": "more"}}, full=True)
        store.sweep(one.lease, 0.0, keep=1)
        assert states(store, second) == {"a": {"x": "other"}}
        assert store.catalog.systems() == ["one", "other"]
        assert first not in store.catalog.checkpoints("one")


def change_marker(folder: Path, **changes: object) -> None:
    marker = json.loads((folder / "cutline.json").read_text())
    del marker["digest"]
    marker.update(changes)
    marker["digest"] = _marker_digest(marker)
    (folder / "cutline.json").write_text(json.dumps(marker))


def test_newer_format(tmp_path: Path) -> None:
    open_store(tmp_path, create=True).close()
    change_marker(tmp_path, format=2)
    for open_it in (lambda: open_store(tmp_path, create=True), lambda: open_blobs(tmp_path)):
        with pytest.raises(NewerFormat, match="upgrade"):
            open_it()


def test_a_catalog_of_another_store(tmp_path: Path) -> None:
    for name in "ab":
        open_store(tmp_path / name, create=True).close()
    (tmp_path / "a" / "catalog.sqlite").write_bytes((tmp_path / "b" / "catalog.sqlite").read_bytes())
    with pytest.raises(Corrupt, match="belongs to another store"):
        open_store(tmp_path / "a", create=True)


def test_a_lost_marker_is_not_a_fresh_start(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        Scene.new(store)
    (tmp_path / "cutline.json").unlink()
    with pytest.raises(Corrupt, match=r"cutline.json is missing, there is a catalog"):
        open_store(tmp_path, create=True)
    (tmp_path / "catalog.sqlite").unlink()
    open_store(tmp_path, create=True).close()
    DirectoryBlobs(tmp_path / "blobs").create("s/x", [b""])
    (tmp_path / "cutline.json").unlink()
    with pytest.raises(Corrupt, match=r"cutline.json is missing, there are blobs"):
        open_store(tmp_path, create=True)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreNotWritable, match="file"):
            open_store(path, create=True)
        with pytest.raises(NotAStore):
            open_store(path, create=False)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blobs").write_text("")
    with pytest.raises(StoreNotWritable, match="blobs"):
        open_store(tmp_path / "store", create=True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EACCES, StoreNotWritable), (errno.EROFS, StoreNotWritable), (errno.ENOSPC, StoreFull)],
)
def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(kind, match="store"):
        open_store(tmp_path / "store", create=True)


AS_NOBODY = """
import os, sys
from cutline import errors
from cutline.storage import open_store
from tests.storage.cast import SYSTEM, Scene, lease_of, states
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
folder = sys.argv[1]
try:
    open_store(folder + "/new", create=True)
except errors.StoreNotWritable as error:
    print("refused", "new" in str(error))
with open_store(folder + "/store", create=False) as store:
    row = store.newest_whole(SYSTEM)
    print("reads", states(store, row))
    try:
        lease_of(store, now=1e9)
    except errors.StoreNotWritable as error:
        print("refused", "catalog.sqlite" in str(error))
    try:
        store.blobs.create("s/x", [b""])
    except errors.StoreNotWritable as error:
        print("refused", "blobs" in str(error))
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="no user 65534")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    """Not writable, but readable: what is in it can still be listed and restored."""
    with open_store(tmp_path / "store", create=True) as store:
        Scene.new(store).cut(STATE)
        key = store.catalog.seals.need_key()
    modes = {path: path.stat().st_mode for path in (tmp_path, *tmp_path.rglob("*"))}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    above = [path for path in tmp_path.parents if AS_ROOT and not path.stat().st_mode & 1]
    modes.update({path: path.stat().st_mode for path in above})
    for path in above:
        path.chmod(path.stat().st_mode | 1)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, ENVIRONMENT: key.text},
        )
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert done.stdout.splitlines() == ["refused True", f"reads {STATE}", "refused True", "refused True"], (
        done.stderr
    )


def test_a_full_disk(tmp_path: Path) -> None:
    """A real one, where a small file system can be mounted."""
    if not AS_ROOT or sys.platform != "linux":
        pytest.skip("needs to mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("cannot mount here")
    try:
        with open_store(tmp_path / "s", create=True) as store:
            scene = Scene.new(store)
            scene.cut(STATE)
            with pytest.raises(StoreFull, match="no space left"):
                scene.cut({"a": {"x": os.urandom(400_000).hex()}})
            (lost,) = store.catalog.undecided(scene.lineage)
            store.catalog.abort(scene.lease, scene.lineage, lost, "full", 1.0)
            assert list(store.blobs.unfinished()) == []
            more = {"a": {"x": "small"}}
            assert states(store, scene.cut(more)) == more
            assert store.verify(SYSTEM).faults == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_commit_order_and_refusals(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        checkpoint = scene.begin(True, "label", ["a"])
        refs = {"a": scene.write(checkpoint, "a", {"x": "1"}, True)}
        manifest = scene.manifest(checkpoint, refs, "label")
        order: list[str] = []
        create, commit = store.blobs.create, store.catalog.commit

        def creating(key: str, parts: object) -> int:
            order.append("record" if key.endswith(".commit") else "manifest")
            return create(key, parts)  # type: ignore[arg-type]

        def committing(*args: Any, **facts: Any) -> CheckpointRow:
            order.append("row")
            return commit(*args, **facts)

        store.blobs.create = creating  # type: ignore[method-assign]
        store.catalog.commit = committing  # type: ignore[method-assign]
        row = store.commit_cut(scene.lease, manifest, {"took": 0.1}, 7.0)
        assert order == ["manifest", "row", "record"]
        assert store.read_manifest(row) == manifest
        assert (row.label, row.decided_at, row.summary) == ("label", 7.0, {"took": 0.1})
        assert row.manifest_digest == manifest.id
        other = Scene.new(store, "other")
        with pytest.raises(Misuse, match="under the lease"):
            store.commit_cut(other.lease, manifest, {}, 7.0)
        lost = scene.begin(True, None, ["a"])
        store.catalog.abort(scene.lease, scene.lineage, lost, "timeout", 1.0)
        with pytest.raises(FateDecided, match="aborted"):
            store.commit_cut(scene.lease, scene.manifest(lost, refs), {}, 7.0)
        with pytest.raises(CheckpointNotFound):
            store.commit_cut(scene.lease, scene.manifest(99, refs), {}, 7.0)
        late = scene.begin(True, None, ["a"])
        lease_of(store, now=1e6)
        with pytest.raises(Fenced):
            store.commit_cut(scene.lease, scene.manifest(late, refs), {}, 7.0)
        assert store.catalog.checkpoints(SYSTEM) == [row]


def test_a_record_that_cannot_be_written_is_no_failure_of_the_commit(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        create = store.blobs.create

        def creating(key: str, parts: object) -> int:
            if key.endswith(".commit"):
                raise StoreFull("no space left")
            return create(key, parts)  # type: ignore[arg-type]

        store.blobs.create = creating  # type: ignore[method-assign]
        assert scene.cut(STATE).fate == "committed"


HOSTILE_NAMES = [
    "../x",
    "/etc/x",
    "a/../../x",
    "..\\x",
    "..",
    ".",
    "con",
    "a b",
    "%2e%2e",
    "\N{SNOWMAN}",
    "x\0y",
    "\udc80",
    "n" * 500,
    "manifest-1",
    "'; DROP TABLE checkpoints; --",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_hostile_names_stay_inside(tmp_path: Path, name: str) -> None:
    """NAM-1: as a participant, and as a system where a text can be one."""
    outside = set(tmp_path.rglob("*"))
    with open_store(tmp_path / "store", create=True) as store:
        (tmp_path / "store" / "blobs" / "link").symlink_to(tmp_path)
        systems = [SYSTEM] if "\udc80" in name else [SYSTEM, name]
        for system in systems:
            scene = Scene.new(store, system)
            state = {name: {"x": "1"}, "plain": {"x": "2"}}
            if "\udc80" in name:
                with pytest.raises(Misuse):
                    scene.cut(state)
                continue
            row = scene.cut(state)
            assert states(store, row) == state
            store.sweep(scene.lease, 0.0, keep=1)
            assert store.verify(system).whole == [row.place]
        keys = list(store.blobs.list())
        assert all(part.isascii() and len(part) < 256 for key in keys for part in key.split("/"))
    mine = tmp_path / "store"
    assert {path for path in tmp_path.rglob("*") if path != mine and mine not in path.parents} == outside


def test_names_that_differ_are_kept_apart(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        names = ["a", "a ", "a%20", "A", "a\n", "a~", "n" * 500, "n" * 499 + "m", "a-1"]
        row = scene.cut({name: {"x": repr(name)} for name in names})
        assert states(store, row) == {name: {"x": repr(name)} for name in names}


def test_an_empty_name_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store, pytest.raises(RefusedOption, match="empty"):
        Scene.new(store).cut({"": {"x": "1"}})
