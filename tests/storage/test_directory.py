"""Files: the contract, the order of syncs, links, and what the system's errors become."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cutline.errors import BlobNotFound, StorageError, StoreFull, StoreNotWritable
from cutline.storage import BlobStore, DirectoryBlobs
from cutline.storage.disk import Disk
from tests.storage.conformance import BlobStoreTests


class TestDirectoryBlobs(BlobStoreTests):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return DirectoryBlobs(tmp_path)

    def back_door(self, blobs: BlobStore, key: str) -> bytes:
        assert isinstance(blobs, DirectoryBlobs)
        return Path(blobs.root, *key.split("/")).read_bytes()


class Tape(Disk):
    """Records what matters for durability, by name instead of descriptor."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.names: dict[int, str] = {}

    def open_root(self, path: str) -> int:
        return self._named(super().open_root(path), "/")

    def open_folder(self, name: str, folder: int) -> int:
        return self._named(super().open_folder(name, folder), f"{self.names[folder]}{name}/")

    def open_new(self, name: str, folder: int) -> int:
        return self._named(super().open_new(name, folder), "new file")

    def make_folder(self, name: str, folder: int) -> bool:
        made = super().make_folder(name, folder)
        self.calls.append(f"make {self.names[folder]}{name}/")
        return made

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        self.calls.append("write")
        return super().write(fd, parts)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.calls.append(f"sync {self.names[fd]}")

    def publish(self, name: str, new_name: str, folder: int) -> None:
        super().publish(name, new_name, folder)
        self.calls.append(f"publish {self.names[folder]}{new_name}")

    def _named(self, fd: int, name: str) -> int:
        self.names[fd] = name
        return fd


def test_the_order_of_a_create(tmp_path: Path) -> None:
    tape = Tape()
    blobs = DirectoryBlobs(tmp_path, tape)
    blobs.create("s/l/x", [b"content"])
    assert tape.calls == [
        "make /s/",
        "sync /",
        "make /s/l/",
        "sync /s/",
        "write",
        "sync new file",
        "publish /s/l/x",
        "sync /s/l/",
    ]
    tape.calls.clear()
    blobs.create("s/l/y", [b"content"])
    assert [call for call in tape.calls if "make" not in call] == [
        "write",
        "sync new file",
        "publish /s/l/y",
        "sync /s/l/",
    ]


def test_a_folder_that_another_process_made_is_synced_once_more(tmp_path: Path) -> None:
    (tmp_path / "s" / "l").mkdir(parents=True)
    tape = Tape()
    DirectoryBlobs(tmp_path, tape).create("s/l/x", [])
    assert [call for call in tape.calls if call.startswith("sync")][:2] == ["sync /", "sync /s/"]


class OneNumber(Tape):
    """A file system that gives the number of what was removed to what is made next, at its worst."""

    def identity(self, fd: int) -> tuple[int, int]:
        return 0, 0


def test_a_folder_with_the_number_of_a_removed_one_is_synced_into_its_parent(tmp_path: Path) -> None:
    tape = OneNumber()
    blobs = DirectoryBlobs(tmp_path, tape)
    blobs.create("s/1/x", [])
    blobs.create("s/2/x", [])
    blobs.delete("s/2/x")
    tape.calls.clear()
    blobs.create("s/2/x", [])
    assert "sync /s/" in tape.calls
    # Made by another process, which may have died before its sync.
    (tmp_path / "s" / "3").mkdir()
    tape.calls.clear()
    blobs.create("s/3/x", [])
    assert "sync /s/" in tape.calls


class Sick(Disk):
    """Fails at one call, once."""

    def __init__(self, verb: str, code: int, at: int = 1) -> None:
        self.verb, self.code, self.left = verb, code, at

    def _pain(self, verb: str) -> None:
        if verb == self.verb:
            self.left -= 1
            if self.left == 0:
                raise OSError(self.code, os.strerror(self.code))

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        self._pain("write")
        # Half of it: a disk that runs full may take a part.
        return super().write(fd, [parts[0][: max(1, parts[0].nbytes // 2)]])

    def sync(self, fd: int) -> None:
        self._pain("sync")
        super().sync(fd)

    def open_new(self, name: str, folder: int) -> int:
        self._pain("open_new")
        return super().open_new(name, folder)

    def publish(self, name: str, new_name: str, folder: int) -> None:
        self._pain("publish")
        super().publish(name, new_name, folder)

    def make_folder(self, name: str, folder: int) -> bool:
        self._pain("make_folder")
        return super().make_folder(name, folder)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EACCES, StoreNotWritable),
        (errno.EROFS, StoreNotWritable),
        (errno.EIO, StorageError),
    ],
)
@pytest.mark.parametrize(
    ("verb", "at"),
    [("make_folder", 1), ("open_new", 1), ("write", 1), ("write", 2), ("sync", 1), ("sync", 2), ("sync", 3)]
    + [("publish", 1)],
)
def test_a_failed_create_leaves_the_key_free(
    tmp_path: Path, verb: str, at: int, code: int, kind: type[StorageError]
) -> None:
    blobs = DirectoryBlobs(tmp_path, Sick(verb, code, at))
    with pytest.raises(kind, match=r"s.x") as caught:
        blobs.create("s/x", [b"content", b"more"])
    assert isinstance(caught.value.__cause__, OSError)
    assert [*blobs.list(), *blobs.unfinished()] == []
    blobs.create("s/x", [b"content"])
    assert blobs.read("s/x") == b"content"


def test_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_link)
    blobs = DirectoryBlobs(tmp_path)
    blobs.create("s/x", [b"one"])
    with pytest.raises(FileExistsError):
        blobs.create("s/x", [b"two"])
    assert blobs.read("s/x") == b"one"
    assert list(blobs.unfinished()) == []


def test_links_inside_the_store_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "way").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "up").symlink_to("..")
    blobs = DirectoryBlobs(root)
    for key in ("way/secret", "file", "up/outside/secret"):
        with pytest.raises(StorageError):
            blobs.read(key)
    for key in ("way/new", "file", "up/new"):
        with pytest.raises(StorageError):
            blobs.create(key, [b"x"])
    with pytest.raises(StorageError):
        blobs.delete("way/secret")
    assert list(blobs.list()) == []
    assert os.listdir(outside) == ["secret"]


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="pipe"):
        DirectoryBlobs(tmp_path).read("pipe")


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    DirectoryBlobs(tmp_path / "link").create("x", [b"1"])
    assert DirectoryBlobs(tmp_path / "real").read("x") == b"1"


def test_leftovers_of_a_crash_are_listed_apart(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)

    def parts() -> Iterator[bytes]:
        yield b"x" * 2_000_000
        assert list(blobs.list()) == []
        (left,) = blobs.unfinished("s/")
        os.link(tmp_path / left, tmp_path / "s" / ".copy.pack.123")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blobs.create("s/x", parts())
    assert list(blobs.unfinished()) == ["s/.copy.pack.123"]
    blobs.delete("s/.copy.pack.123")
    assert os.listdir(tmp_path) == []


def test_creating_and_emptying_folders_at_once(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    stop = threading.Event()
    failed: list[BaseException] = []

    def churn(name: str) -> None:
        try:
            while not stop.is_set():
                blobs.create(f"s/l/{name}", [b"x"])
                blobs.delete(f"s/l/{name}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=churn, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for number in range(100):
        blobs.create(f"s/l/{number}", [b"y"])
        blobs.delete(f"s/l/{number}")
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_missing_root(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "gone")
    with pytest.raises(StoreNotWritable, match="gone"):
        blobs.create("x", [])
    with pytest.raises(BlobNotFound, match="gone"):
        blobs.read("x")
    assert list(blobs.list()) == []
