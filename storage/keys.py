"""Where the keys of stores are: in the user's own folder, or in the environment.

====================================  ================================================================
``<home>/keys/<id>.key``              made with each store; 0600, in a folder 0700; ``<home>`` is
                                      CUTLINE_HOME, else ``cutline`` in XDG_STATE_HOME or ~/.local/state
``CUTLINE_STORE_KEY``                 the key itself, for containers and other machines
``CUTLINE_STORE_KEY_FILE``            a file with a key on each line
====================================  ================================================================

A store made while the environment gives a key has that key. Files are named by the key's id, so a key is
found whatever its store is called, and an export of a store by the key of that store.

A key that was replaced is set aside as ``<id>.key.old``, where nothing looks for it: whoever stole it could
else seal a whole store with it. ``<new id>.replaces`` says, until that is done, which one it replaces.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from cutline.errors import Misuse, StorageError, StoreNotWritable

from .authentic import StoreKey
from .disk import Disk, meaning
from .location import user_home

__all__ = (
    "ENVIRONMENT",
    "ENVIRONMENT_FILE",
    "aside_path",
    "drop_key",
    "find_key",
    "key_path",
    "keep_key",
    "made_key",
    "note_renewal",
    "process_key",
    "retire_former",
    "with_former",
)

ENVIRONMENT = "CUTLINE_STORE_KEY"
ENVIRONMENT_FILE = "CUTLINE_STORE_KEY_FILE"


def key_path(key_id: str) -> Path:
    """Where this user's copy of a key is, or would be."""
    return user_home() / "keys" / f"{key_id}.key"


def find_key(key_id: str) -> StoreKey | None:
    """The key of that id, if this user has it. Raises Misuse for a file that others can read."""
    for key in (process_key(), *_environment()):
        if key.id == key_id:
            return key
    if len(key_id) != 32 or not set(key_id) <= set("0123456789abcdef"):
        # From a store, and about to become a path.
        return None
    path = key_path(key_id)
    try:
        text = _private_text(path)
    except (FileNotFoundError, PermissionError):
        # Another user's is none of ours.
        return None
    key = StoreKey.from_text(text, str(path))
    if key.id != key_id:
        raise Misuse(f"{path} holds another key ({key.id}) than its name says: rename it, or remove it")
    return key


@functools.cache
def process_key() -> StoreKey:
    """The key of what is in this process's memory: that of the environment, else a new one."""
    return next(iter(_environment()), None) or StoreKey.new()


def _environment() -> list[StoreKey]:
    text = os.environ.get(ENVIRONMENT, "")
    keys = [StoreKey.from_text(text, f"the environment variable {ENVIRONMENT}")] if text else []
    name = os.environ.get(ENVIRONMENT_FILE, "")
    if name:
        try:
            lines = _private_text(Path(name)).split()
        except OSError as error:
            raise Misuse(f"{ENVIRONMENT_FILE}: {name}: {error.strerror}") from error
        keys += [StoreKey.from_text(line, name) for line in lines]
    return keys


def _private_text(path: Path) -> str:
    """Raises Misuse for a file that others can read or write."""
    with open(path, encoding="ascii", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_IMODE(mode) & 0o077:
            shown = stat.filemode(mode)
            raise Misuse(f"{path} holds a secret and is open to others ({shown}): chmod 600 {path}")
        return file.read()


def made_key() -> StoreKey:
    """The key for a new store, durable: that of the environment, else a new one."""
    given = _environment()
    if given:
        return given[0]
    key = StoreKey.new()
    keep_key(key)
    return key


def keep_key(key: StoreKey) -> Path:
    """Puts a key where `find_key` looks; durable when this returns. Raises StoreNotWritable, StoreFull."""
    path = key_path(key.id)
    try:
        _keep(path, key.text)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        cause = meaning(error, str(path), writing=True)
        if isinstance(cause, StoreNotWritable):
            text = f"{path}: {error.strerror}; the key of a store is kept there: name another folder with"
            raise StoreNotWritable(
                f"{text} CUTLINE_HOME, or give the key with {ENVIRONMENT}", path=str(path)
            ) from error
        raise cause from error
    return path


def _keep(path: Path, text: str) -> None:
    disk = Disk()
    above = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = disk.open_root(str(path.parent))
    temporary = f".{path.name}.{os.urandom(6).hex()}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            os.write(descriptor, f"{text}\n".encode())
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        disk.sync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        disk.close(folder)
    for made in above:
        parent = disk.open_root(str(made.parent))
        try:
            disk.sync(parent)
        finally:
            disk.close(parent)


def drop_key(key: StoreKey) -> None:
    """Removes a key that was made and that no store has come to have."""
    if key in _environment():
        return
    with contextlib.suppress(FileNotFoundError):
        key_path(key.id).unlink()


def note_renewal(new: StoreKey, old: StoreKey) -> None:
    """That ``new`` is to replace ``old``, durable before it does: whoever is interrupted finds both."""
    if key_path(old.id).exists():
        _keep(_note(new), old.id)


def with_former(key: StoreKey) -> list[StoreKey]:
    """A key, then those that it replaced and that were not retired, because a renewal was interrupted."""
    found = [key]
    while True:
        try:
            before = find_key(_private_text(_note(found[-1])).strip())
        except (FileNotFoundError, PermissionError):
            return found
        if before is None or before in found:
            return found
        found.append(before)


def aside_path(key_id: str) -> Path:
    """Where a key of this user's is that was replaced."""
    return key_path(key_id).with_suffix(".key.old")


def retire_former(key: StoreKey, former: Sequence[StoreKey]) -> None:
    """Sets those aside that a key has replaced, as far as they are in files of this user's.

    The oldest first: who is interrupted finds the others by the notes that are left.
    """
    for each in (*reversed(former), key):
        if each is not key:
            with contextlib.suppress(FileNotFoundError):
                key_path(each.id).rename(aside_path(each.id))
        _note(each).unlink(missing_ok=True)


def _note(key: StoreKey) -> Path:
    return key_path(key.id).with_suffix(".replaces")
