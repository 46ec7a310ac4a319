"""A store: a folder with blobs, a catalog and a marker; and the order in which a cut becomes one.

`Store.commit_cut` is that order. The packs of the participants are durable before it begins. The manifest
becomes durable; then the catalog's row says ``committed``: this is the point of commit, and before it
nobody may be told. A commit record beside the manifest follows, from which a lost catalog can be rebuilt.
A crash before the row leaves blobs that no cut lists; a crash after it leaves a whole cut.

Making a store ends with its marker, ``cutline.json``. What has a marker must have its catalog, and what has
cuts must have its marker: if not, something was lost, and nothing starts over in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from cutline.errors import (
    BlobExists,
    CheckpointNotFound,
    Corrupt,
    Fenced,
    Misuse,
    NewerFormat,
    NotAStore,
    RefusedOption,
    StorageError,
    StoreNotWritable,
)

from . import collect
from .blobs import BlobStore, manifest_key, pack_key, record_key
from .catalog import Catalog, CheckpointRow, Lease, LineageRow, Place
from .codec import canonical, digest_of
from .collect import Swept
from .directory import DirectoryBlobs
from .disk import Disk, meaning
from .manifest import Manifest
from .memory import MemoryBlobs
from .retention import stays
from .sqlite import SqliteCatalog
from .verify import Report, commit_record, load_manifest, survey, verify_system

__all__ = (
    "MARKER",
    "STORE_FORMAT",
    "Store",
    "memory_store",
    "open_blobs",
    "open_store",
    "pack_key",
    "store_path",
)

STORE_FORMAT = 1
MARKER = "cutline.json"
_CATALOG = "catalog.sqlite"
_BLOBS = "blobs"


@dataclass
class Store:
    """Blobs and a catalog that belong together. ``path``: its folder, None for one in memory."""

    url: str
    blobs: BlobStore
    catalog: Catalog
    path: Path | None
    _broken: dict[Place, str] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def commit_cut(
        self, lease: Lease, manifest: Manifest, summary: dict[str, Any], now: float, *, record: bool = True
    ) -> CheckpointRow:
        """Makes a begun checkpoint a cut; returns its row. Its packs are durable already.

        When this raises Fenced, FateDecided or Corrupt, the checkpoint was not committed by this call. After
        another StorageError the outcome is unknown: ask `Catalog.fate` before telling anybody anything.
        ``record=False`` leaves the commit record to the next `sweep`.
        """
        if manifest.system != lease.system:
            raise Misuse(f"a manifest of system {manifest.system!r} under the lease of {lease.system!r}")
        key = manifest_key(manifest.system, manifest.lineage, manifest.epoch, manifest.checkpoint)
        packed = manifest.to_bytes()
        digest = digest_of(packed)
        self.blobs.create(key, [packed])
        try:
            row = self.catalog.commit(
                lease,
                manifest.lineage,
                manifest.checkpoint,
                manifest_key=key,
                manifest_digest=digest,
                blobs=(*manifest.blobs, key),
                summary=summary,
                now=now,
            )
        except (Fenced, Corrupt, CheckpointNotFound):
            raise
        except StorageError as error:
            # The response may be all that was lost.
            found = self._row_after(manifest)
            if found is None or found.fate != "committed" or found.manifest_digest != digest:
                raise error
            row = found
        if record:
            with contextlib.suppress(StorageError):
                self._write_record(row)
        return row

    def _row_after(self, manifest: Manifest) -> CheckpointRow | None:
        rows = self.catalog.checkpoints(
            manifest.system, lineage=manifest.lineage, fates=("begun", "committed", "aborted"), damage=[]
        )
        return next((row for row in rows if row.checkpoint == manifest.checkpoint), None)

    def _write_record(self, row: CheckpointRow) -> None:
        with contextlib.suppress(BlobExists):
            self.blobs.create(record_key(row.manifest_key or ""), [commit_record(row)])

    def read_manifest(self, row: CheckpointRow) -> Manifest:
        """Raises Corrupt, naming the object and the checkpoint."""
        return load_manifest(self.blobs, row)

    def newest_whole(
        self,
        system: str,
        lineage: str | None = None,
        *,
        deep: bool = True,
        damage: list[StorageError] | None = None,
    ) -> CheckpointRow:
        """The newest cut of a lineage, or of its ancestors up to the fork, that is whole.

        ``deep`` reads every byte, else documents and sizes only. What is wrong with newer cuts is appended
        to ``damage``. Raises CheckpointNotFound if nothing was ever committed, Corrupt if all of it is
        damaged: that is not a reason to start afresh.
        """
        lineage = lineage or self.catalog.head_lineage(system)
        if lineage is None:
            raise CheckpointNotFound(f"system {system!r} has no lineage in {self.url}", system=system)
        row, faults, any_cut = survey(self.blobs, self.catalog, system, lineage, deep=deep)
        with self._lock:
            self._broken.update((place, str(error)) for place, error in faults if place is not None)
        if damage is not None:
            damage += [error for _, error in faults]
        if row is not None:
            return row
        if not any_cut:
            raise CheckpointNotFound(
                f"no checkpoint was committed in lineage {lineage} of system {system!r}", system=system
            )
        raise Corrupt(
            f"no whole checkpoint is left in lineage {lineage} of system {system!r}:"
            f" {'; '.join(sorted({str(error) for _, error in faults}))}",
            system=system,
            lineage=lineage,
            key=faults[0][1].facts.get("key"),
            checkpoint=faults[0][1].facts.get("checkpoint"),
        )

    def delete_cut(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """Gives up one cut; the next `sweep` removes what no other needs. Cuts that build on it stay whole.

        Raises Misuse, with the reason, for one that must stay; CheckpointNotFound.
        """
        place = lineage, checkpoint
        row = next((row for row in self.catalog.checkpoints(lease.system) if row.place == place), None)
        if row is None:
            raise CheckpointNotFound(
                f"no checkpoint {checkpoint} in lineage {lineage}", checkpoint=checkpoint
            )

        def choose(lines: Sequence[LineageRow], rows: Sequence[CheckpointRow]) -> set[Place]:
            reasons = stays(lines, rows).get(place)
            if reasons:
                raise Misuse(f"{row} must stay: {', '.join(reasons)}", checkpoint=checkpoint, lineage=lineage)
            return {place}

        self.catalog.condemn(lease, choose)

    def sweep(self, lease: Lease, now: float, keep: int = 10) -> Swept:
        """Retention, collection and what else is tidied behind commits; safe beside writers and other sweeps.

        Keeps the newest ``keep`` unlabelled cuts of each lineage and what else must stay (see `retention`).
        ``now`` is there as in the other verbs; age decides nothing.
        """
        with self._lock:
            broken = frozenset(self._broken)
        swept = collect.sweep(self.blobs, self.catalog, lease, keep=keep, broken=broken)
        for row in swept.unrecorded:
            # Another collector may just have given it up; else the next sweep tries again.
            with contextlib.suppress(StorageError):
                self._write_record(row)
        if isinstance(self.catalog, SqliteCatalog):
            self.catalog.database.fold_log()
        return swept

    def verify(self, system: str) -> Report:
        """Reads everything that the system's cuts consist of; damage is reported, not raised."""
        report = verify_system(self.blobs, self.catalog, system)
        whole = set(report.whole)
        with self._lock:
            for row in self.catalog.checkpoints(system, damage=[]):
                if row.place in whole:
                    self._broken.pop(row.place, None)
                else:
                    self._broken[row.place] = "found by verify"
        return report

    def close(self) -> None:
        """Closes the catalog."""
        self.catalog.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def memory_store() -> Store:
    """A store in this process's memory."""
    return Store("memory:", MemoryBlobs(), SqliteCatalog(":memory:"), None)


def store_path(url: str | os.PathLike[str]) -> Path:
    """The folder that a URL names. Raises RefusedOption for what is no folder's."""
    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    # One letter is a drive, not a scheme.
    if not colon or len(scheme) < 2 or "/" in scheme or not scheme.replace("+", "").isalnum():
        if not text or "\0" in text:
            raise RefusedOption(f"{text!r} is not the path of a folder", url=text)
        return Path(text).expanduser()
    if scheme.lower() != "file":
        raise RefusedOption(
            f"{text!r}: only folders can be stores in this version; give a path or a file:// URL", url=text
        )
    parsed = urllib.parse.urlsplit(text)
    if parsed.netloc not in ("", "localhost") or not parsed.path or parsed.query or parsed.fragment:
        raise RefusedOption(f"{text!r}: write file:///path/of/the/folder", url=text)
    return Path(urllib.request.url2pathname(parsed.path))


def open_store(url: str | os.PathLike[str], *, create: bool) -> Store:
    """Opens the store at ``url``, or makes one there if ``create`` and there is none.

    Raises NotAStore, NewerFormat, StoreNotWritable, StoreFull; Corrupt if a part of it is lost.
    """
    path = store_path(url)
    try:
        return _open(path, create)
    except OSError as error:
        if isinstance(error, StorageError):  # some of them are OSErrors too
            raise
        raise meaning(error, str(path), writing=True) from error


def _open(path: Path, create: bool) -> Store:
    if not (path / MARKER).is_file():
        _refuse_remains(path)
        if not create:
            raise NotAStore(
                f"no store at {path}: check the path, or make one with create=True", path=str(path)
            )
        _make(path)
    marker = _read_marker(path)
    catalog = _open_catalog(path)
    try:
        catalog.database.check()
        if catalog.store_id() != marker["store"]:
            raise _lost(path, f"{_CATALOG} belongs to another store")
    except BaseException:
        catalog.close()
        raise
    return Store(str(path), DirectoryBlobs(path / _BLOBS), catalog, path)


def open_blobs(url: str | os.PathLike[str]) -> BlobStore:
    """The blobs alone, for a process that only writes and reads images. Raises NotAStore, NewerFormat."""
    path = store_path(url)
    if not (path / MARKER).is_file():
        raise NotAStore(f"no store at {path}", path=str(path))
    _read_marker(path)
    return DirectoryBlobs(path / _BLOBS)


def _open_catalog(path: Path) -> SqliteCatalog:
    file = path / _CATALOG
    if not file.is_file() or not file.stat().st_size:
        raise _lost(path, f"{_CATALOG} is missing or empty")
    return SqliteCatalog(file)


def _read_marker(path: Path) -> dict[str, Any]:
    try:
        marker = json.loads((path / MARKER).read_bytes())
        version = marker["format"]
        if not isinstance(version, int):
            raise TypeError("no number")
        if version > STORE_FORMAT:
            raise NewerFormat(
                f"the store at {path} was written by a newer Cutline (format {version}, this one reads"
                f" {STORE_FORMAT}): upgrade cutline",
                path=str(path),
                format=version,
            )
        digest = marker.pop("digest")
        if digest != _marker_digest(marker):
            raise ValueError("wrong digest")
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _lost(path, f"{MARKER} is damaged") from error
    return dict(marker)


def _marker_digest(marker: dict[str, Any]) -> str:
    return digest_of(canonical(marker)).hex()


def _lost(path: Path, what: str) -> Corrupt:
    return Corrupt(
        f"the store at {path} is damaged: {what}. Nothing was changed; put the file back from a copy, or keep"
        " the folder and use another one",
        path=str(path),
        key=what.split()[0],
        what=what,
    )


def _refuse_remains(path: Path) -> None:
    """A folder without a marker is no store, unless it holds what only a store has."""
    if (path / _BLOBS).is_dir() and next(DirectoryBlobs(path / _BLOBS).list(), None) is not None:
        raise _lost(path, f"{MARKER} is missing, there are blobs")
    file = path / _CATALOG
    if file.is_file() and file.stat().st_size:
        with contextlib.closing(SqliteCatalog(file)) as catalog:
            if not catalog.is_blank():
                raise _lost(path, f"{MARKER} is missing, there is a catalog")


def _make(path: Path) -> None:
    """Makes the folder a store. Several processes may do so at once, and any may die anywhere in it."""
    _make_folder(path / _BLOBS)
    with contextlib.closing(SqliteCatalog.create(path / _CATALOG, os.urandom(16).hex())) as catalog:
        marker: dict[str, Any] = {"format": STORE_FORMAT, "store": catalog.store_id()}
    marker["digest"] = _marker_digest(marker)
    with contextlib.suppress(BlobExists):
        DirectoryBlobs(path).create(MARKER, [json.dumps(marker, indent=2).encode() + b"\n"])


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
