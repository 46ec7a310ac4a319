"""Private folders for sockets and recorders, and the removal of those that nobody needs any more.

Who is killed removes nothing. So whoever needs a folder has a lock on the file `held` in it (flock, shared)
for as long as the process lives; the kernel lets go of it whatever the process ends by. `sweep` removes the
folders of this user whose lock is free. A folder without that file is left alone: it is being made, or of an
older version.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading

__all__ = ("LINK", "RUN", "hold", "let_go", "make_folder", "sweep")

# What the names of these folders begin with.
LINK = "cutline-link-"
RUN = "cutline-run-"
_HELD = "held"

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
