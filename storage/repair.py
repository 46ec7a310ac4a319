"""`cutline rebuild-catalog` on a folder: look, gather, make a new file beside, put it in place.

Nothing of the old catalog is thrown away: its files are moved aside as ``catalog.sqlite.old-N`` (with -wal
and -shm). The new one is complete and durable before that, so an attempt that dies leaves the old catalog,
or none: then it is run again.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from cutline.errors import Corrupt, Misuse, NotAStore, RefusedOption, StorageError

from .catalog import Lease
from .directory import DirectoryBlobs
from .disk import Disk, meaning
from .keys import made_key
from .location import locate, store_path
from .opening import MARKER, STORE_FORMAT, marker_bytes, open_store, read_marker, write_marker
from .owners import Owner
from .rebuild import Gathered, gather, refill
from .repair_apart import rebuild_apart
from .sqlite import SqliteCatalog
from .verify import lost_commits

__all__ = ("rebuild_catalog",)

_CATALOG = "catalog.sqlite"
_BESIDE = ("", "-wal", "-shm")
# Seconds; the process that holds it ends long before.
_HOLD = 600.0


def rebuild_catalog(url: str | os.PathLike[str], *, force: bool = False, trust: bool = False) -> Gathered:
    """Makes the catalog of a store again; returns what was put in and what was left out.

    ``force``: also where the present one, in the folder, is whole. ``trust``: also from records whose key is
    not here. Where a record verifies, the store keeps the key; else it gets a new one.

    Raises:
        StoreInUse: a living system has the store.
        Misuse: the catalog is whole, and ``force`` was not given.
        NotAStore: the folder has no blobs to make it from.
        Corrupt: none of the blobs tells of a committed cut.
    """
    location = locate(url)
    if location.kind == "memory":
        raise RefusedOption(f"{location} has nothing that a catalog could be made from")
    if location.kind == "bucket" or location.catalog is not None:
        return rebuild_apart(location, trust=trust)
    path = store_path(url)
    try:
        return _rebuild(path, force, trust)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise meaning(error, str(path), writing=True) from error


def _rebuild(path: Path, force: bool, trust: bool) -> Gathered:
    if not (path / "blobs").is_dir():
        raise NotAStore(f"{path} has no blobs: it is no store, or all of it is lost", path=str(path))
    whole, leases = _alone(path)
    try:
        if whole is not None and not force:
            raise Misuse(
                f"the catalog of {path} is whole, with {whole} checkpoints: there is nothing to make again"
                " (--force does it all the same, and forgets later labels and counts)",
                path=str(path),
            )
        found = gather(DirectoryBlobs(path / "blobs"), trust=trust)
        if not found.cuts:
            raise Corrupt(
                f"nothing in {path} tells of a committed cut, so there is nothing to make a catalog from:"
                f" {'; '.join(found.left_out) or 'there are no commit records'}",
                path=str(path),
            )
        _make_anew(path, found)
    except BaseException:
        _let_go(path, leases)
        raise
    return found


def _make_anew(path: Path, found: Gathered) -> None:
    store_id = _store_id(path, found)
    fresh = path / f".catalog-{os.urandom(6).hex()}"
    try:
        key = found.keys[-1] if found.keys else made_key()
        with contextlib.closing(SqliteCatalog.create(fresh, store_id, key)) as catalog:
            refill(catalog, found)
        _sync(fresh)
        _put_in_place(path, fresh)
    finally:
        for ending in _BESIDE:
            Path(f"{fresh}{ending}").unlink(missing_ok=True)


def _alone(path: Path) -> tuple[int | None, list[Lease]]:
    """Takes the lease of each system, as far as there is a catalog that can be asked, and closes it: SQLite
    removes the log by its name, which must be this file's. With how many cuts a catalog knows that is
    whole; None for one that is not."""
    leases: list[Lease] = []
    try:
        with open_store(path, create=False) as store:
            cuts = 0
            faults: list[Corrupt] = []
            for system in store.catalog.systems():
                owner = Owner.here("cutline rebuild-catalog")
                leases.append(store.catalog.acquire_lease(system, owner, _HOLD, time.time()))
                faults += lost_commits(store.blobs, store.catalog, system)
                cuts += len(store.catalog.checkpoints(system, damage=faults))
            return (None if faults else cuts), leases
    except (Corrupt, NotAStore):
        return None, leases
    except BaseException:
        _let_go(path, leases)
        raise


def _let_go(path: Path, leases: list[Lease]) -> None:
    with contextlib.suppress(StorageError), open_store(path, create=False) as store:
        for lease in leases:
            store.catalog.release_lease(lease)


def _store_id(path: Path, found: Gathered) -> str:
    """The store's id from its marker; a marker that is lost or damaged is written anew."""
    try:
        return str(read_marker(str(path), marker_bytes(path))["store"])
    except (FileNotFoundError, Corrupt):
        found.left_out.append(f"{MARKER} was missing or damaged; it was written anew")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path / MARKER, _free_name(path / MARKER))
    store_id = os.urandom(16).hex()
    write_marker(DirectoryBlobs(path), {"format": STORE_FORMAT, "store": store_id})
    return store_id


def _put_in_place(path: Path, fresh: Path) -> None:
    aside = _free_name(path / _CATALOG)
    for ending in _BESIDE:
        # The log of the old file must not be taken for one of the new.
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path / _CATALOG}{ending}", f"{aside}{ending}")
    os.rename(fresh, path / _CATALOG)
    _sync(path)


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return aside


def _sync(path: Path) -> None:
    disk = Disk()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)
