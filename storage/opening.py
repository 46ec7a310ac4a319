"""Opening a store where a URL says it is, and making one there.

Making a store ends with its marker, ``cutline.json``. What has a marker must have its catalog, and what has
cuts must have its marker: if not, something was lost, and nothing starts over in its place.

A catalog that is not in the store's folder may be somebody else's: it says which place it was made for, and
the marker says that there is one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutline.errors import (
    BlobExists,
    BlobNotFound,
    Corrupt,
    MissingPackage,
    Misuse,
    NewerFormat,
    NotAStore,
    RefusedOption,
    StorageError,
    StoreNotWritable,
)

from .authentic import StoreKey
from .blobs import BlobStore
from .codec import canonical, digest_of
from .directory import DirectoryBlobs
from .disk import Disk, meaning
from .keys import drop_key, find_key, made_key
from .location import CatalogUrl, Location, locate, need_catalog, store_path
from .sqlite import SqliteCatalog
from .store import Store, memory_store

if TYPE_CHECKING:
    from .postgresql import PostgresCatalog

__all__ = (
    "MARKER",
    "STORE_FORMAT",
    "blob_places",
    "marker_bytes",
    "open_blobs",
    "open_store",
    "postgres_catalog",
    "read_marker",
    "write_marker",
)

STORE_FORMAT = 1
MARKER = "cutline.json"
_CATALOG = "catalog.sqlite"
_BLOBS = "blobs"
# A marker has some two hundred bytes; what is longer is none.
_MARKER_MAX = 1 << 16


def open_store(url: str | os.PathLike[str], *, create: bool, key: StoreKey | None = None) -> Store:
    """Opens the store at ``url``, or makes one there if ``create`` and there is none.

    ``key``: the store's, for a process that was handed it; else it is looked for (`keys`). Where it is not
    here, the store can be read, with nothing known of who wrote it, and cannot be written.

    Raises RefusedOption for a URL that cannot be meant, NotAStore, NewerFormat, StoreNotWritable, StoreFull,
    StoreForbidden, StoreUnreachable; Corrupt if a part of it is lost.
    """
    location = locate(url)
    try:
        store = _opened(url, location, create)
    except OSError as error:
        if isinstance(error, StorageError):  # some of them are OSErrors too
            raise
        raise meaning(error, str(location), writing=True) from error
    if location.kind != "memory":
        try:
            _unlock(store, key)
        except BaseException:
            store.close()
            raise
    return store


def _unlock(store: Store, key: StoreKey | None) -> None:
    seals = store.catalog.seals
    if key is None or key.id != seals.key_id:
        key = find_key(seals.key_id)
    if key is not None:
        seals.use(key, seals.store, seals.key_id)


def _opened(url: str | os.PathLike[str], location: Location, create: bool) -> Store:
    if location.kind == "memory":
        if not create:
            raise NotAStore("what was in memory: went with its process: make a new one with create=True")
        return memory_store()
    if location.kind == "bucket" or location.catalog is not None:
        return _open_apart(location, need_catalog(location), create)
    return _open_folder(store_path(url), create)


def open_blobs(url: str | os.PathLike[str]) -> BlobStore:
    """The blobs alone, for a process that only writes and reads images. Raises NotAStore, NewerFormat."""
    location = locate(url)
    if location.kind == "memory":
        raise RefusedOption("what is in memory: can be seen by its own process only: use a folder")
    top, blobs = blob_places(location)
    with contextlib.suppress(BlobNotFound):
        read_marker(str(location), top.read(MARKER, 0, _MARKER_MAX))
        return blobs
    raise NotAStore(f"no store at {location}", path=str(location))


# A catalog in the folder


def _open_folder(path: Path, create: bool) -> Store:
    if not (path / MARKER).is_file():
        _refuse_remains(path)
        if not create:
            raise NotAStore(
                f"no store at {path}: check the path, or make one with create=True", path=str(path)
            )
        _make(path)
    try:
        marker = read_marker(str(path), marker_bytes(path))
    except PermissionError:
        raise
    except OSError as error:
        raise _lost(str(path), f"{MARKER} is damaged") from error
    if "catalog" in marker:
        raise RefusedOption(
            f"the store at {path} has its catalog in {marker['catalog']}: write"
            f" {path}?catalog=postgresql://HOST/DATABASE",
            path=str(path),
        )
    catalog = _open_catalog(path)
    try:
        catalog.database.check()
        if catalog.store_id() != marker["store"]:
            raise _lost(str(path), f"{_CATALOG} belongs to another store")
        catalog.use_key(None)
    except BaseException:
        catalog.close()
        raise
    return Store(str(path), DirectoryBlobs(path / _BLOBS), catalog, path)


def _open_catalog(path: Path) -> SqliteCatalog:
    file = path / _CATALOG
    if not file.is_file() or not file.stat().st_size:
        raise _lost(str(path), f"{_CATALOG} is missing or empty")
    return SqliteCatalog(file)


def _refuse_remains(path: Path) -> None:
    """A folder without a marker is no store, unless it holds what only a store has."""
    if (path / _BLOBS).is_dir() and next(DirectoryBlobs(path / _BLOBS).list(), None) is not None:
        raise _lost(str(path), f"{MARKER} is missing, there are blobs")
    file = path / _CATALOG
    if file.is_file() and file.stat().st_size:
        with contextlib.closing(SqliteCatalog(file)) as catalog:
            if not catalog.is_blank():
                raise _lost(str(path), f"{MARKER} is missing, there is a catalog")


def _make(path: Path) -> None:
    """Makes the folder a store. Several processes may do so at once, and any may die anywhere in it."""
    _make_folder(path / _BLOBS)
    key = made_key()
    with contextlib.closing(SqliteCatalog.create(path / _CATALOG, os.urandom(16).hex(), key)) as catalog:
        if catalog.seals.key is None:
            # Somebody else was faster.
            drop_key(key)
        write_marker(DirectoryBlobs(path), {"format": STORE_FORMAT, "store": catalog.store_id()})


def _make_folder(path: Path) -> None:
    """With parents, each synced into its own."""
    disk = Disk()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
    if not path.is_dir():
        raise StoreNotWritable(f"{path} is not a folder: choose another place for the store", path=str(path))
    for folder in (path, *missing):
        parent = disk.open_root(os.path.dirname(os.path.abspath(folder)))
        try:
            disk.sync(parent)
        finally:
            disk.close(parent)


# A catalog of its own


def _open_apart(location: Location, url: CatalogUrl, create: bool) -> Store:
    top, blobs = blob_places(location)
    catalog = postgres_catalog(url)
    try:
        raw = _read(top)
        if raw is None:
            if next(blobs.list(), None) is not None:
                raise _lost(str(location), f"{MARKER} is missing, there are blobs")
            _refuse_foreign(location, url, catalog)
            if not create:
                raise NotAStore(
                    f"no store at {location}: check the URL, or make one with create=True", path=str(location)
                )
            _make_apart(location, url, catalog)
            raw = top.read(MARKER, 0, _MARKER_MAX)
        marker = read_marker(str(location), raw)
        if "catalog" not in marker:
            raise RefusedOption(
                f"the store at {location.place} has its catalog in {_CATALOG}: leave out catalog=",
                path=location.place,
            )
        _check_pair(location, url, catalog, marker["store"])
        catalog.use_key(None)
    except BaseException:
        catalog.close()
        raise
    return Store(str(location), blobs, catalog, location.path if location.kind == "folder" else None)


def _read(top: BlobStore) -> bytes | None:
    try:
        return top.read(MARKER, 0, _MARKER_MAX)
    except BlobNotFound:
        return None


def _refuse_foreign(location: Location, url: CatalogUrl, catalog: PostgresCatalog) -> None:
    """A schema that another place's catalog lies in is not ours to use."""
    if not catalog.is_missing() and catalog.place() != location.place:
        raise RefusedOption(
            f"{url} is the catalog of {catalog.place() or 'another store'}: give {location.place} a schema of"
            " its own, schema=NAME",
            path=str(location),
        )


def _make_apart(location: Location, url: CatalogUrl, catalog: PostgresCatalog) -> None:
    if location.kind == "folder":
        _make_folder(location.path / _BLOBS)
    key = made_key()
    catalog.create(os.urandom(16).hex(), location.place, key)
    if catalog.seals.key is None:
        drop_key(key)
    # Somebody else may have been faster, for another place.
    _refuse_foreign(location, url, catalog)
    marker = {"format": STORE_FORMAT, "store": catalog.store_id(), "catalog": "postgresql"}
    write_marker(blob_places(location)[0], marker)


def _check_pair(location: Location, url: CatalogUrl, catalog: PostgresCatalog, store: str) -> None:
    if catalog.is_missing():
        raise Corrupt(
            f"the store at {location.place} has no catalog in {url}: name the one it was made with, bring"
            " the schema back from a dump, or have it made again: `cutline rebuild-catalog`. Nothing was"
            " changed",
            path=str(location),
            key="catalog",
            what="the catalog is missing",
        )
    if catalog.store_id() != store:
        raise Corrupt(
            f"{url} is the catalog of {catalog.place() or 'another store'}, not of {location.place}: name the"
            " one it was made with. Nothing was changed",
            path=str(location),
            key="catalog",
            what="the catalog belongs to another store",
        )


def postgres_catalog(url: CatalogUrl) -> PostgresCatalog:
    """The catalog at that URL, whether it is there or not. Raises RefusedOption without its extra."""
    # PostgreSQL's client is an extra: who does without it imports nothing of it.
    try:
        from .postgresql import PostgresCatalog
    except ImportError as error:
        raise _extra("a catalog in PostgreSQL", "postgres", error) from error
    return PostgresCatalog(url)


def blob_places(location: Location) -> tuple[BlobStore, BlobStore]:
    """Where the marker is, and where the blobs are."""
    if location.kind == "folder":
        return DirectoryBlobs(location.path), DirectoryBlobs(location.path / _BLOBS)
    try:
        from .objects import bucket_blobs
    except ImportError as error:
        raise _extra(f"a store in {location.place.partition(':')[0]}://", "cloud", error) from error
    top, blobs = (bucket_blobs(location.place, location.options, below) for below in ("", _BLOBS))
    return top, blobs


def _extra(what: str, extra: str, error: ImportError) -> MissingPackage:
    text = f"{what} needs more packages ({error}): pip install 'cutline[{extra}]'"
    return MissingPackage(text, extra=extra)


# The marker


def marker_bytes(path: Path) -> bytes:
    """Of the store in a folder. Raises FileNotFoundError for what is no file: a pipe would never end."""
    if not (path / MARKER).is_file():
        raise FileNotFoundError(errno.ENOENT, "no marker", str(path / MARKER))
    with open(path / MARKER, "rb") as file:
        return file.read(_MARKER_MAX)


def write_marker(top: BlobStore, marker: dict[str, Any]) -> None:
    """Puts the marker in place, unless there is one."""
    marker["digest"] = _marker_digest(marker)
    with contextlib.suppress(BlobExists):
        top.create(MARKER, [json.dumps(marker, indent=2).encode() + b"\n"])


def read_marker(place: str, raw: bytes) -> dict[str, Any]:
    """The fields of a marker. Raises Corrupt, NewerFormat."""
    try:
        marker = json.loads(raw)
        version = marker["format"]
        if not isinstance(version, int):
            raise TypeError("no number")
        if version > STORE_FORMAT:
            raise NewerFormat(
                f"the store at {place} was written by a newer Cutline (format {version}, this one reads"
                f" {STORE_FORMAT}): upgrade cutline",
                path=place,
                format=version,
            )
        digest = marker.pop("digest")
        if digest != _marker_digest(marker) or not isinstance(marker["store"], str):
            raise ValueError("wrong digest, or no store")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Misuse) as error:
        raise _lost(place, f"{MARKER} is damaged") from error
    return dict(marker)


def _marker_digest(marker: dict[str, Any]) -> str:
    return digest_of(canonical(marker)).hex()


def _lost(place: str, what: str) -> Corrupt:
    return Corrupt(
        f"the store at {place} is damaged: {what}. Nothing was changed; put the file back from a copy, or"
        f" have it made again from the blobs: `cutline rebuild-catalog {place}`",
        path=place,
        key=what.split()[0],
        what=what,
    )
