"""Blobs as files of a folder.

A create writes a file under a hidden name, syncs it, links it to its name (which fails if that is taken),
and syncs the folder; only then it returns. A crash at any point leaves no file, a hidden one, or a whole
one. Folders on the way are synced into their parents once per folder and process: another process may
have made one and died before its sync.

After a failed sync the kernel may have dropped the bytes and a second sync may report success, so the file
is thrown away and the caller starts over with a new one.

Every step goes from folder descriptor to folder descriptor without following links: a link planted inside
the store leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from cutline.errors import BlobExists, StorageError

from .blobs import Held, check_key
from .disk import Disk, meaning
from .shared_sync import SharedSync

__all__ = ("DirectoryBlobs",)

_GATHER = 1 << 20
_GATHER_PARTS = 256
_HIDDEN = "."
# Blobs that a process holds at once: it has other uses for its file descriptors.
HELD = 256


class DirectoryBlobs:
    """A `BlobStore` in the folder ``root``, which exists. ``disk`` is replaced by tests only."""

    far = False

    def __init__(self, root: str | os.PathLike[str], disk: Disk | None = None) -> None:
        self.root = os.fspath(root)
        self._disk = disk or Disk()
        self._lock = threading.Lock()
        self._shared = SharedSync()
        self._synced: set[tuple[tuple[str, ...], tuple[int, int]]] = set()

    def create(self, key: str, parts: Iterable[bytes | bytearray | memoryview]) -> int:
        *folders, name = check_key(key)
        hidden = f"{_HIDDEN}{name}.{os.urandom(6).hex()}"
        try:
            folder, fd = self._open_new(folders, name, hidden)
            try:
                return self._fill_new(fd, folder, name, hidden, parts)
            finally:
                self._disk.close(folder)
        except FileExistsError as error:
            raise BlobExists(f"there is a blob {self._path(key)} already", path=self._path(key)) from error
        except OSError as error:
            if isinstance(error, StorageError):  # some of them are OSErrors too
                raise
            raise meaning(error, self._path(key), writing=True) from error

    def _open_new(self, folders: Sequence[str], name: str, hidden: str) -> tuple[int, int]:
        """(folder, new file). A collector may remove the folder, still empty, before the file is made."""
        disk = self._disk
        for last in (False, False, False, True):
            folder = self._walk(folders, make=True)
            try:
                if disk.exists(name, folder):
                    raise FileExistsError(name)
                return folder, disk.open_new(hidden, folder)
            except FileNotFoundError:
                disk.close(folder)
                if last:
                    raise
            except BaseException:
                disk.close(folder)
                raise
        raise AssertionError("the last attempt returns or raises")

    def _fill_new(
        self, fd: int, folder: int, name: str, hidden: str, parts: Iterable[bytes | bytearray | memoryview]
    ) -> int:
        disk = self._disk
        left = hidden
        try:
            try:
                size = self._write_all(fd, parts)
                disk.sync(fd)
            finally:
                disk.close(fd)
            disk.publish(hidden, name, folder)
            left = name
            self._sync_folder(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.remove(left, folder)
            raise
        return size

    def _write_all(self, fd: int, parts: Iterable[bytes | bytearray | memoryview]) -> int:
        total = 0
        waiting: list[memoryview] = []
        size = 0
        for part in parts:
            view = memoryview(part)
            if view.nbytes:
                waiting.append(view.cast("B"))
                size += view.nbytes
            if size >= _GATHER or len(waiting) >= _GATHER_PARTS:
                self._write(fd, waiting)
                total, size, waiting = total + size, 0, []
        self._write(fd, waiting)
        return total + size

    def _write(self, fd: int, waiting: list[memoryview]) -> None:
        while waiting:
            written = self._disk.write(fd, waiting)
            while waiting and written >= waiting[0].nbytes:
                written -= waiting.pop(0).nbytes
            if waiting and written:
                waiting[0] = waiting[0][written:]

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with self._reading(key) as fd:
            size = max(0, self._disk.size(fd) - start)
            target = bytearray(size if length is None else min(size, length))
            got = self._fill(fd, start, memoryview(target))
        return bytes(memoryview(target)[:got])

    def read_into(self, key: str, start: int, target: memoryview) -> int:
        with self._reading(key) as fd:
            return self._fill(fd, start, target)

    def hold(self, key: str) -> Held | None:
        """An open file can be read when its name has gone."""
        if len(_HeldFile.living) >= HELD:
            return None
        *folders, name = check_key(key)
        try:
            with self._folder(folders, make=False) as folder:
                fd = self._disk.open_old(name, folder)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return None
            raise meaning(error, self._path(key), writing=False) from error
        return _HeldFile(self, fd, self._path(key))

    def _fill(self, fd: int, start: int, target: memoryview) -> int:
        done = 0
        while done < target.nbytes:
            got = self._disk.read_into(fd, target[done:], start + done)
            if not got:
                break
            done += got
        return done

    def size(self, key: str) -> int:
        with self._reading(key) as fd:
            return self._disk.size(fd)

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        *folders, name = check_key(key)
        try:
            with self._folder(folders, make=False) as folder:
                fd = self._disk.open_old(name, folder)
            try:
                yield fd
            finally:
                self._disk.close(fd)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise meaning(error, self._path(key), writing=False) from error

    @contextlib.contextmanager
    def _folder(self, names: Sequence[str], *, make: bool) -> Iterator[int]:
        fd = self._walk(names, make)
        try:
            yield fd
        finally:
            self._disk.close(fd)

    def _walk(self, names: Sequence[str], make: bool) -> int:
        attempts = 8 if make else 1
        while True:
            attempts -= 1
            fd = self._disk.open_root(self.root)
            try:
                for depth in range(len(names)):
                    below = self._step(tuple(names[: depth + 1]), fd, make)
                    self._disk.close(fd)
                    fd = below
            except FileNotFoundError:
                self._disk.close(fd)
                # A collector may have removed a folder between two steps, because it was empty.
                if not attempts:
                    raise
            except BaseException:
                self._disk.close(fd)
                raise
            else:
                return fd

    def _step(self, path: tuple[str, ...], folder: int, make: bool) -> int:
        made = make and self._disk.make_folder(path[-1], folder)
        below = self._disk.open_folder(path[-1], folder)
        if make:
            try:
                # A number alone says little: file systems give that of a removed folder to the next one.
                identity = (path, self._disk.identity(below))
                with self._lock:
                    known = identity in self._synced
                if made or not known:
                    self._sync_folder(folder)
                    with self._lock:
                        self._synced.add(identity)
            except BaseException:
                self._disk.close(below)
                raise
        return below

    def _sync_folder(self, folder: int) -> None:
        """Images of one checkpoint go to one folder, and those that are written at once share its sync."""
        self._shared.sync(self._disk.identity(folder), lambda: self._disk.sync(folder))

    def list(self, prefix: str = "") -> Iterator[str]:
        return (key for key in self._keys(prefix) if not _is_hidden(key))

    def unfinished(self, prefix: str = "") -> Iterator[str]:
        return (key for key in self._keys(prefix) if _is_hidden(key))

    def _keys(self, prefix: str) -> Iterator[str]:
        top = prefix.rpartition("/")[0]
        if top:
            check_key(top)
        yield from (key for key in self._below(top) if key.startswith(prefix))

    def _below(self, key: str) -> Iterator[str]:
        try:
            with self._folder(key.split("/") if key else [], make=False) as folder:
                entries = self._disk.entries(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise meaning(error, self._path(key), writing=False) from error
        for name, is_folder in entries:
            below = f"{key}/{name}" if key else name
            if is_folder:
                yield from self._below(below)
            else:
                yield below

    def delete(self, key: str, *, durable: bool = False) -> None:
        *folders, name = check_key(_shown(key))
        name = key.rpartition("/")[2]
        try:
            with self._folder(folders, make=False) as folder:
                with contextlib.ExitStack() as after:
                    if durable:
                        after.callback(self._disk.sync, folder)
                    self._disk.remove(name, folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise meaning(error, self._path(key), writing=True) from error
        self._drop_empty(folders)

    def _drop_empty(self, folders: Sequence[str]) -> None:
        """Removes the folders that the last blob left empty; a writer that needs one makes it again."""
        while folders:
            *folders, name = folders
            try:
                with self._folder(folders, make=False) as parent:
                    self._disk.remove_folder(name, parent)
            except OSError:
                return

    def _path(self, key: str) -> str:
        return os.path.join(self.root, *key.split("/"))

    def read_held(self, fd: int, start: int, target: memoryview, path: str) -> int:
        """For what `hold` gave."""
        try:
            return self._fill(fd, start, target)
        except OSError as error:
            raise meaning(error, path, writing=False) from error

    def close_held(self, fd: int) -> None:
        """The same."""
        self._disk.close(fd)


class _HeldFile:
    """An open file, closed with the last reference to this."""

    living: ClassVar[weakref.WeakSet[_HeldFile]] = weakref.WeakSet()

    def __init__(self, blobs: DirectoryBlobs, fd: int, path: str) -> None:
        self._blobs, self._fd, self._path = blobs, fd, path
        weakref.finalize(self, blobs.close_held, fd)
        self.living.add(self)

    def read_into(self, start: int, target: memoryview) -> int:
        return self._blobs.read_held(self._fd, start, target, self._path)


def _is_hidden(key: str) -> bool:
    return key.rpartition("/")[2].startswith(_HIDDEN)


def _shown(key: str) -> str:
    """The key with its hidden file name made plain, to be checked like any other."""
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}{name.removeprefix(_HIDDEN)}"
