"""The system calls that durable files need, in one small class, and what their failures mean.

It exists as a seam: tests put in a disk that records the order of calls, forgets what was not synced, or
is full. Nothing here decides anything.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from cutline.errors import BlobNotFound, StorageError, StoreFull, StoreNotWritable

__all__ = ("Disk", "meaning", "sync", "sync_folder", "write_all")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_CLOSED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP))


class Disk:
    """Files by folder descriptor and name, so that no link inside the store is ever followed."""

    def open_root(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_folder(self, name: str, folder: int) -> int:
        return os.open(name, _FOLDER, dir_fd=folder)

    def make_folder(self, name: str, folder: int) -> bool:
        """Whether it was not there before."""
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            return False
        return True

    def remove_folder(self, name: str, folder: int) -> None:
        os.rmdir(name, dir_fd=folder)

    def open_new(self, name: str, folder: int) -> int:
        return os.open(name, _NEW, 0o644, dir_fd=folder)

    def open_old(self, name: str, folder: int) -> int:
        fd = os.open(name, _OLD, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, "not a regular file", name)
        return fd

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        return os.writev(fd, parts)

    def read_into(self, fd: int, target: memoryview, start: int) -> int:
        return os.preadv(fd, [target], start)

    def entries(self, folder: int) -> list[tuple[str, bool]]:
        """Names in a folder, in order, and whether each is a folder; links are left out."""
        with os.scandir(folder) as found:
            return sorted(
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in found if not entry.is_symlink()
            )

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def identity(self, fd: int) -> tuple[int, int]:
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def exists(self, name: str, folder: int) -> bool:
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def sync(self, fd: int) -> None:
        """Until the device itself has the bytes; fsync alone does not go that far on macOS."""
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def publish(self, name: str, new_name: str, folder: int) -> None:
        """Gives a file its name, unless that is taken (FileExistsError)."""
        try:
            os.link(name, new_name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            # No hard links here (FAT, some network shares). Keys carry a nonce, so two writers of one
            # key do not meet in the gap between looking and renaming.
            if self.exists(new_name, folder):
                raise FileExistsError(errno.EEXIST, "taken", new_name) from error
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)

    def remove(self, name: str, folder: int) -> None:
        os.unlink(name, dir_fd=folder)

    def close(self, fd: int) -> None:
        os.close(fd)


def write_all(file: int, content: bytes, at: int) -> None:
    """All of it, however many calls that takes."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(file, rest, at)
        rest, at = rest[written:], at + written


def sync(file: int) -> None:
    """Until the device itself has the bytes, and the size that they make; macOS has no fdatasync."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file)


def sync_folder(path: Path) -> None:
    """Makes the names of a folder durable: without it a new file may be gone after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def meaning(error: OSError, place: str, *, writing: bool) -> StorageError:
    """The StorageError that an OSError at ``place`` amounts to."""
    why = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(
            f"no space left for {place} ({why}): free some, or lower what retention keeps", path=place
        )
    if writing and error.errno in (*_CLOSED, errno.ENOENT):
        return StoreNotWritable(
            f"cannot write {place} ({why}): check the folder's owner, mode and mount", path=place
        )
    if error.errno == errno.ENOENT:
        return BlobNotFound(f"no blob at {place}", path=place)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return StorageError(f"{place} is a link or no file ({why}): the store does not follow it", path=place)
    return StorageError(f"{'writing' if writing else 'reading'} {place} failed: {why}", path=place)
