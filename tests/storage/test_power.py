"""Power cuts: a disk that forgets what was not synced. What was said to be durable is there, whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from cutline.errors import BlobNotFound
from cutline.storage import CheckpointRow, DirectoryBlobs, Store, memory_store
from cutline.storage.disk import Disk
from tests.storage.cast import SYSTEM, Scene, states

Node = tuple[int, int]


class ForgetfulDisk(Disk):
    """Keeps account of what a power cut would leave: synced contents, and synced names in synced folders."""

    def __init__(self) -> None:
        self.contents: dict[Node, bytes] = {}
        self.names: dict[Node, dict[str, Node]] = {}
        self.root: Node | None = None

    def open_root(self, path: str) -> int:
        fd = super().open_root(path)
        self.root = self.identity(fd)
        return fd

    def sync(self, fd: int) -> None:
        super().sync(fd)
        node = self.identity(fd)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            # Held open by the folder that names it: numbers are not used again while the test runs.
            self.names[node] = {
                entry.name: (entry.stat(follow_symlinks=False).st_dev, entry.inode())
                for entry in os.scandir(fd)
            }
        else:
            size = os.fstat(fd).st_size
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                self.contents[node] = file.read(size)

    def after_a_power_cut(self, folder: Path) -> DirectoryBlobs:
        folder.mkdir()
        if self.root is not None:
            self._lay_out(folder, self.root)
        return DirectoryBlobs(folder)

    def _lay_out(self, folder: Path, node: Node) -> None:
        for name, below in self.names.get(node, {}).items():
            if below in self.contents:
                (folder / name).write_bytes(self.contents[below])
            elif below in self.names:
                (folder / name).mkdir()
                self._lay_out(folder / name, below)
            else:
                # Named and not synced: a folder without names, or a file without content.
                (folder / name).mkdir() if "." not in name else (folder / name).touch()


class CuttingDisk(ForgetfulDisk):
    """Calls ``at_each`` after everything that changes the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.laid_out: list[Path] = []
        self.place = Path()

    def _step(self) -> None:
        self.steps += 1
        folder = self.place / str(self.steps)
        self.after_a_power_cut(folder)
        self.laid_out.append(folder)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._step()

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        done = super().write(fd, parts)
        self._step()
        return done

    def publish(self, name: str, new_name: str, folder: int) -> None:
        super().publish(name, new_name, folder)
        self._step()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads descriptors through /proc")
def test_what_was_committed_survives_a_power_cut_at_any_step(tmp_path: Path) -> None:
    """The blobs as a power cut leaves them, under the catalog as it is: each committed cut is whole."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "cuts").mkdir()
    disk = CuttingDisk()
    disk.place = tmp_path / "cuts"
    catalog = memory_store().catalog
    store = Store("test", DirectoryBlobs(tmp_path / "blobs", disk), catalog, None)
    scene = Scene.new(store)
    rows: list[CheckpointRow] = []
    said: dict[int, list[CheckpointRow]] = {}
    for n in range(4):
        checkpoint = scene.begin(False, None, ["a", "b"])
        state = {"a": {"x": f"{n}" * 100, "same": "same"}, "b": {"x": f"{n}"}}
        refs = {name: scene.write(checkpoint, name, state[name], n == 2) for name in state}
        for ref in refs.values():
            # "prepared" may be said now: the pack survives.
            after = disk.after_a_power_cut(tmp_path / f"prepared{checkpoint}{ref.key[-9]}{len(said)}")
            said[len(said) + 10**6] = []
            assert after.size(ref.key) == ref.size
        scene.refs, scene.known = refs, state
        manifest = scene.manifest(checkpoint, refs)
        before = disk.steps
        rows.append(store.commit_cut(scene.lease, manifest, {}, 1.0))
        for step in range(before, disk.steps + 1):
            said[step] = rows[:-1]
        said[disk.steps] = list(rows)
    for step, folder in enumerate(disk.laid_out, 1):
        survived = Store("after", DirectoryBlobs(folder), catalog, None)
        for row in said.get(step, []):
            assert states(survived, row)
        for key in survived.blobs.list():
            assert survived.blobs.read(key) == store.blobs.read(key), "whole or not there"
    final = Store("after", DirectoryBlobs(disk.laid_out[-1]), catalog, None)
    assert final.verify(SYSTEM).faults == []
    catalog.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads descriptors through /proc")
def test_the_forgetful_disk_does_forget(tmp_path: Path) -> None:
    """Or the test above would show nothing."""

    class NoFolderSync(ForgetfulDisk):
        def sync(self, fd: int) -> None:
            if not os.path.isdir(f"/proc/self/fd/{fd}"):
                super().sync(fd)

    (tmp_path / "blobs").mkdir()
    disk = NoFolderSync()
    DirectoryBlobs(tmp_path / "blobs", disk).create("s/x", [b"content"])
    with pytest.raises(BlobNotFound):
        disk.after_a_power_cut(tmp_path / "after").read("s/x")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads descriptors through /proc")
def test_a_record_is_gone_for_good_before_anything_of_its_cut_goes(tmp_path: Path) -> None:
    """Or a catalog that is made again after a power cut would take a cut that was given up for damaged."""
    gone: list[str] = []
    unsure: list[str] = []

    class Watching(Disk):
        def remove(self, name: str, folder: int) -> None:
            super().remove(name, folder)
            if name.endswith(".commit"):
                unsure.append(name)
            else:
                assert unsure == [], f"{name} goes while {unsure} may come back"
            gone.append(name)

        def sync(self, fd: int) -> None:
            super().sync(fd)
            if os.path.isdir(f"/proc/self/fd/{fd}"):
                unsure.clear()

    (tmp_path / "blobs").mkdir()
    with memory_store() as memory:
        blobs = DirectoryBlobs(tmp_path / "blobs")
        store = Store("test", blobs, memory.catalog, None)
        scene = Scene.new(store)
        rows = [scene.cut({"a": {"x": f"{n}"}}, full=True) for n in range(3)]
        blobs._disk = Watching()
        # Who began the collection died between the removal and the sync.
        blobs.delete(f"{rows[0].manifest_key}.commit")
        store.sweep(scene.lease, 0.0, keep=1)
        assert len(gone) == 2 * 3 and unsure == []
        assert set(blobs.list()) == {*rows[2].blobs, f"{rows[2].manifest_key}.commit"}
