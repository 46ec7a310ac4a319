"""Private folders for sockets and recorders, and the removal of those that nobody needs any more.

Who is killed removes nothing. So whoever needs a folder has a lock on the file `held` in it (flock, shared)
for as long as the process lives; the kernel lets go of it whatever the process ends by. `sweep` removes the
folders of this user whose lock is free. A folder without that file is left alone: it is being made, or of an
older version.

Processes that nobody has told of a folder meet in one whose name they know (`common_folder`). Anybody else
can know it too, so it counts only if it is this user's and closed to all others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time

__all__ = (
    "COMMON",
    "LINK",
    "RUN",
    "common_folder",
    "hold",
    "leave_common",
    "let_go",
    "make_folder",
    "sweep",
)

# What the names of these folders begin with.
LINK = "cutline-link-"
RUN = "cutline-run-"
COMMON = f"{RUN}common-"
_HELD = "held"
_ATTEMPTS = 50
_PAUSE = 0.02

_lock = threading.Lock()
# Descriptors of this process's locks, by folder.
_holds: dict[str, int] = {}


def make_folder(prefix: str) -> str:
    """A new folder that only this user can look into; it is held."""
    folder = tempfile.mkdtemp(prefix=prefix)
    # Under its name only when it is locked: what can be seen unlocked belongs to nobody.
    new = os.path.join(folder, f".{_HELD}")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.rename(new, os.path.join(folder, _HELD))
    except OSError:
        # A file system without locks: nobody sweeps this folder then.
        os.close(descriptor)
        os.unlink(new)
        return folder
    with _lock:
        _holds[folder] = descriptor
    return folder


def hold(folder: str) -> None:
    """This process needs the folder, which somebody else holds so far, until `let_go`, or until its end.

    Raises:
        BlockingIOError: nobody held it, and it is being removed.
    """
    with _lock:
        if folder in _holds:
            return
        try:
            descriptor = os.open(os.path.join(folder, _HELD), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            # Nobody sweeps it.
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        _holds[folder] = descriptor


def let_go(folder: str, *, remove: bool) -> None:
    """This process does not need the folder any more.

    Args:
        remove: nor does anybody else: it goes, with all that is in it.
    """
    if remove:
        shutil.rmtree(folder, ignore_errors=True)
    with _lock:
        descriptor = _holds.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def common_folder(name: str) -> str:
    """The folder of that name, which this user's processes on this machine share; it is held.

    Raises:
        OSError: there is none that could be trusted.
    """
    folder = os.path.join(tempfile.gettempdir(), f"{COMMON}{os.geteuid()}-{name}")
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        try:
            descriptor = _held_in(folder)
        except (FileNotFoundError, BlockingIOError):
            # Somebody is removing it.
            time.sleep(_PAUSE)
            continue
        with _lock:
            if folder in _holds:
                os.close(descriptor)
            else:
                _holds[folder] = descriptor
        return folder
    raise BlockingIOError(errno.EWOULDBLOCK, "somebody removes it all the time", folder)


def _held_in(folder: str) -> int:
    """The lock of a folder that is private to this user; it is still there when the lock is ours."""
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(inside)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(errno.EPERM, "not this user's alone", folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_HELD, flags, 0o600, dir_fd=inside)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), os.stat(os.path.join(folder, _HELD))):
                raise FileNotFoundError(errno.ENOENT, "it was removed and made again", folder)
        except OSError:
            os.close(descriptor)
            raise
    finally:
        os.close(inside)
    return descriptor


def leave_common(folder: str) -> None:
    """This process does not need it any more; the last one removes it."""
    let_go(folder, remove=False)
    _sweep_one(folder)


def sweep() -> list[str]:
    """Removes what nobody holds; returns the folders."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [entry for entry in entries if entry.name.startswith((LINK, RUN)) and _is_ours(entry)]
    return [entry.path for entry in found if _sweep_one(entry.path)]


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return (
            entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
        )
    except OSError:
        # Somebody else has swept it.
        return False


def _sweep_one(folder: str) -> bool:
    try:
        descriptor = os.open(os.path.join(folder, _HELD), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        # It is in use.
        return False
    finally:
        os.close(descriptor)
    return True
