"""Processes that die: run as a module by the tests.

``cuts FOLDER``: beside the store FOLDER/base, makes FOLDER/1, FOLDER/2, ... as it looks when the process
that adds a cut and sweeps dies at operation 1, 2, ... until one does not die.
``makes FOLDER``: the same for making a store.
``forever FOLDER``: adds cuts until it is killed.
``holds FOLDER SECONDS``: takes the lease if it can, says so, and waits for its input to end.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cutline.errors import StoreInUse
from cutline.storage import DirectoryBlobs, Owner, SqliteCatalog, open_store, opening
from tests.storage.cast import SYSTEM, Scene
from tests.storage.faults import Counter, FaultyDatabase, FaultyDisk, die, make_faulty

__all__ = ("NEW", "OLD", "main")

OLD = {"a": {"x": "old" * 400, "same": "same"}, "b": {"y": "old"}}
NEW = {"a": {"x": "new" * 400, "same": "same"}, "b": {"y": "new"}}


def add_a_cut(folder: Path, at: int) -> None:
    store = open_store(folder, create=False)
    scene = Scene.resumed(store)
    make_faulty(store, at, die)
    scene.cut(NEW)
    store.sweep(scene.lease, 3.0, keep=1)


def make_a_store(folder: Path, at: int) -> None:
    counter = Counter(at, die)
    FaultyDatabase.counter = counter

    class DyingBlobs(DirectoryBlobs):
        def __init__(self, root: str | os.PathLike[str]) -> None:
            super().__init__(root, FaultyDisk(counter))

    class DyingCatalog(SqliteCatalog):
        def __init__(self, path: str | Path) -> None:
            super().__init__(path)
            self.database = FaultyDatabase(path)

    class DyingDisk(FaultyDisk):
        def __init__(self) -> None:
            super().__init__(counter)

    vars(opening).update(DirectoryBlobs=DyingBlobs, SqliteCatalog=DyingCatalog, Disk=DyingDisk)
    open_store(folder, create=True).close()


def each_death(folder: Path, deed: Callable[[Path, int], None]) -> None:
    at = 0
    while True:
        at += 1
        if (folder / "base").exists():
            shutil.copytree(folder / "base", folder / str(at))
        child = os.fork()
        if not child:
            deed(folder / str(at), at)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        assert os.waitstatus_to_exitcode(status) == 137, status


def forever(folder: Path) -> None:
    store = open_store(folder, create=True)
    # A clock a million times too fast: each run finds the lease of the one before it run out.
    scene = Scene.resumed(store, now=time.time() * 1e6)
    number = 0
    while True:
        number += 1
        scene.cut({"a": {"n": str(number) * 1000}, "b": {"n": str(number) * 1000}}, full=number % 5 == 1)
        store.sweep(scene.lease, 0.0, keep=3)
        print(number, flush=True)


def holds(folder: Path, seconds: float) -> None:
    store = open_store(folder, create=True)
    try:
        lease = store.catalog.acquire_lease(SYSTEM, Owner.here("a contender"), seconds, time.time())
    except StoreInUse as error:
        print("in use", error.facts["owner"]["pid"], flush=True)
        return
    print("holds", lease.token, flush=True)
    sys.stdin.read()


def main() -> None:
    verb, folder, *rest = sys.argv[1:]
    if verb == "cuts":
        each_death(Path(folder), add_a_cut)
    elif verb == "makes":
        each_death(Path(folder), make_a_store)
    elif verb == "forever":
        forever(Path(folder))
    else:
        holds(Path(folder), float(rest[0]))


if __name__ == "__main__":
    main()
