"""A disk that is slow, fails, and forgets what was not synced; and a catalog whose answers get lost.

The product's own directory store runs on it: `Disk` is its seam for system calls. Files and folders are nodes
of a tree in memory; a sync of a file keeps its bytes, a sync of a folder keeps its names, and a power cut
leaves what was kept. A commit of the catalog is durable when it returns, as SQLite promises with
synchronous=FULL; the trouble with it is a response that is lost, before the commit or after it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence

from cutline.storage.database import Database
from cutline.storage.disk import Disk

from .world import World

__all__ = ("FlakyDatabase", "Media", "SimulatedDisk")


class _File:
    def __init__(self) -> None:
        self.content = bytearray()
        self.kept: bytes | None = None


class _Folder:
    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, _File | _Folder] = {}
        self.kept: dict[str, _File | _Folder] = {}

    def reset(self) -> None:
        """What a power cut leaves."""
        self.names = dict(self.kept)
        for node in self.names.values():
            if isinstance(node, _Folder):
                node.reset()
            else:
                node.content = bytearray(node.kept or b"")


class Media:
    """What the bytes lie on; it outlives every process. `failing` draws whether a step fails now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.root = _Folder(0)
        self._numbers = 0
        self._free: list[int] = []
        self.trouble = 0.0
        self.catalog_trouble = 0.0

    def cut_power(self) -> None:
        """Everything that was not synced is gone."""
        self.root.reset()

    def new_folder(self) -> _Folder:
        """With the number of one that was removed, if there is any: file systems use them again at once."""
        if self._free:
            return _Folder(self._free.pop())
        self._numbers += 1
        return _Folder(self._numbers)

    def removed(self, folder: _Folder) -> None:
        """Its number is free."""
        self._free.append(folder.number)

    def failing(self) -> bool:
        """Whether a step on the disk fails."""
        return bool(self.trouble) and self.world.chance(self.trouble)


class SimulatedDisk(Disk):
    """See `cutline.storage.disk.Disk`; a descriptor is a number of a table of this process."""

    def __init__(self, media: Media) -> None:
        self.media = media
        self._open: dict[int, _File | _Folder] = {}
        self._next = 3

    def _give(self, node: _File | _Folder) -> int:
        self._next += 1
        self._open[self._next] = node
        return self._next

    def _folder(self, fd: int) -> _Folder:
        node = self._open[fd]
        assert isinstance(node, _Folder)
        return node

    def _file(self, fd: int) -> _File:
        node = self._open[fd]
        assert isinstance(node, _File)
        return node

    def _strike(self, name: str) -> None:
        if self.media.failing():
            full = self.media.world.chance(0.3)
            self.media.world.fault("disk full" if full else "disk error", name)
            number = errno.ENOSPC if full else errno.EIO
            raise OSError(number, os.strerror(number), name)

    def open_root(self, path: str) -> int:
        return self._give(self.media.root)

    def open_folder(self, name: str, folder: int) -> int:
        node = self._folder(folder).names.get(name)
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, "no such folder", name)
        return self._give(node)

    def make_folder(self, name: str, folder: int) -> bool:
        names = self._folder(folder).names
        if name in names:
            return False
        names[name] = self.media.new_folder()
        return True

    def remove_folder(self, name: str, folder: int) -> None:
        node = self._folder(folder).names.get(name)
        if not isinstance(node, _Folder) or node.names:
            raise OSError(errno.ENOTEMPTY, "not empty", name)
        self.media.removed(node)
        del self._folder(folder).names[name]

    def open_new(self, name: str, folder: int) -> int:
        self._strike(name)
        names = self._folder(folder).names
        if name in names:
            raise FileExistsError(errno.EEXIST, "taken", name)
        file = names[name] = _File()
        return self._give(file)

    def open_old(self, name: str, folder: int) -> int:
        node = self._folder(folder).names.get(name)
        if not isinstance(node, _File):
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return self._give(node)

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        self._strike("write")
        content = b"".join(parts)
        self._file(fd).content += content
        return len(content)

    def read_into(self, fd: int, target: memoryview, start: int) -> int:
        part = self._file(fd).content[start : start + target.nbytes]
        target[: len(part)] = part
        return len(part)

    def entries(self, folder: int) -> list[tuple[str, bool]]:
        return sorted((name, isinstance(node, _Folder)) for name, node in self._folder(folder).names.items())

    def size(self, fd: int) -> int:
        return len(self._file(fd).content)

    def identity(self, fd: int) -> tuple[int, int]:
        return 0, self._folder(fd).number

    def exists(self, name: str, folder: int) -> bool:
        return name in self._folder(folder).names

    def sync(self, fd: int) -> None:
        self._strike("sync")
        node = self._open[fd]
        if isinstance(node, _File):
            node.kept = bytes(node.content)
        else:
            node.kept = dict(node.names)

    def publish(self, name: str, new_name: str, folder: int) -> None:
        names = self._folder(folder).names
        if new_name in names:
            raise FileExistsError(errno.EEXIST, "taken", new_name)
        names[new_name] = names.pop(name)

    def remove(self, name: str, folder: int) -> None:
        names = self._folder(folder).names
        if name not in names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        del names[name]

    def close(self, fd: int) -> None:
        del self._open[fd]


class FlakyDatabase(Database):
    """A database in memory, whose transactions sometimes end with an error: before they count, or after."""

    media: Media
    watch: Callable[[], None] = staticmethod(lambda: None)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        media = self.media
        trouble = media.world.rng.random() / media.catalog_trouble if media.catalog_trouble else 1.0
        try:
            if trouble < 0.3:
                media.world.fault("catalog unreachable")
                raise sqlite3.OperationalError("disk I/O error")
            with super().writing() as connection:
                yield connection
                if trouble < 0.6:
                    media.world.fault("catalog: commit failed")
                    raise sqlite3.OperationalError("disk I/O error")
            if trouble < 1.0:
                media.world.fault("catalog: response lost")
                raise sqlite3.OperationalError("disk I/O error")
        except sqlite3.Error as error:
            raise self._meaning(error) from error
