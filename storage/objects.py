"""Blobs as objects of S3, Google Cloud Storage or Azure, through obstore.

A small blob is one conditional put. A large one goes up in parts, several at a time, and appears when the
last is in; the services' conditions do not reach that far, so the key is looked for before. Keys carry a
nonce: two writers of one key do not meet in between.

Each object keeps the id of the write that made it. A put is repeated by the client when its answer is lost,
and then finds its own object: whatever a put ends with but success, the id is read back, and ours means that
it was done. So a lost answer is never taken for a conflict.

What an interrupted upload in parts leaves cannot be listed; a lifecycle rule of the bucket removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NoReturn

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from cutline.errors import (
    BlobExists,
    BlobNotFound,
    NotAStore,
    RefusedOption,
    StorageError,
    StoreForbidden,
    StoreFull,
    StoreNotWritable,
    StoreUnreachable,
)

from .blobs import check_key

__all__ = ("ObjectBlobs", "bucket_blobs")

# What is put at once, what a part of a larger one is, and how many of them are on their way together.
PART = 8 << 20
PARALLEL = 4
# Errors of obstore; what is not there is Python's own in newer versions.
_ERRORS = (exceptions.BaseError, FileNotFoundError)
_GONE = (exceptions.NotFoundError, FileNotFoundError)
# Names of metadata are identifiers: Azure takes no others.
_WRITE = "cutlinewrite"
_RETRY: Any = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2)},
}
_CLIENT: Any = {"connect_timeout": "5s", "timeout": "30s"}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_CREDENTIALS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "credential",
    # Without any, the machine's role is asked for one.
    "token request",
    "/latest/api/token",
)
_REFUSED = ("AccessDenied", "AuthorizationFailure", "AuthorizationPermissionMismatch")
_ANSWER = re.compile(r"<\?xml.*?<Code>(\w+)</Code>\s*<Message>(.*?)</Message>.*", re.DOTALL)
_FULL = ("507 ", "QuotaExceeded", "InsufficientStorage", "No space left", "EntityTooLarge")
_AWAY = ("error sending request", "HTTP error", "timed out", "connection", "status code: 5")


class ObjectBlobs:
    """A `BlobStore` below the prefix of ``store``. ``place`` names it to people."""

    far = True

    def __init__(self, store: ObjectStore, place: str) -> None:
        self.place = place
        self._store = store
        self._lock = threading.Lock()
        self._workers: ThreadPoolExecutor | None = None

    def create(self, key: str, parts: Iterable[bytes | bytearray | memoryview]) -> int:
        check_key(key)
        source = _Source(parts)
        head = source.take(PART)
        write = os.urandom(16).hex()
        options: dict[str, Any] = {"attributes": {_WRITE: write}}
        try:
            if source.ended:
                obstore.put(self._store, key, bytes(head), mode="create", use_multipart=False, **options)
            else:
                self._refuse_taken(key)
                pieces = source.pieces(head)
                del head
                obstore.put(self._store, key, pieces, chunk_size=PART, max_concurrency=PARALLEL, **options)
        except _ERRORS as error:
            source.reraise()
            self._settle(key, write, error)
        return source.size

    def _refuse_taken(self, key: str) -> None:
        with contextlib.suppress(*_GONE):
            obstore.head(self._store, key)
            raise BlobExists(f"there is a blob {self._path(key)} already", path=self._path(key))

    def _settle(self, key: str, write: str, error: Exception) -> None:
        """What became of a put that did not end well; returns if it was done. Else raises."""
        taken = isinstance(error, (exceptions.AlreadyExistsError, exceptions.PreconditionError))
        try:
            found = obstore.get(self._store, key, options={"head": True}).attributes.get(_WRITE)
        except _ERRORS as second:
            if taken and not isinstance(second, _GONE):
                self._raise(second, key, writing=True)
            self._raise(error, key, writing=True)
        if found == write:
            return
        raise BlobExists(f"there is a blob {self._path(key)} already", path=self._path(key)) from error

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        size = self.size(key)
        target = bytearray(max(0, min(size - start, size if length is None else length)))
        got = self.read_into(key, start, memoryview(target)) if target else 0
        return bytes(memoryview(target)[:got])

    def read_into(self, key: str, start: int, target: memoryview) -> int:
        check_key(key)
        view = target.cast("B")
        if view.nbytes <= PART:
            return self._read_part(key, start, view)
        places = range(0, view.nbytes, PART)
        got = self._pool().map(lambda at: self._read_part(key, start + at, view[at : at + PART]), places)
        return sum(got)

    def hold(self, key: str) -> None:
        """An object that is deleted is gone for everybody."""
        check_key(key)

    def _read_part(self, key: str, start: int, target: memoryview) -> int:
        if not target.nbytes:
            return 0
        try:
            found = obstore.get_range(self._store, key, start=start, length=target.nbytes)
        except _ERRORS as error:
            # A range behind the end is refused in many ways; the size tells what it was.
            if not isinstance(error, _GONE) and self.size(key) <= start:
                return 0
            self._raise(error, key, writing=False)
        view = memoryview(found)
        target[: view.nbytes] = view
        return view.nbytes

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(PARALLEL, thread_name_prefix="cutline-objects")
            return self._workers

    def size(self, key: str) -> int:
        check_key(key)
        try:
            return int(obstore.head(self._store, key)["size"])
        except _ERRORS as error:
            self._raise(error, key, writing=False)

    def list(self, prefix: str = "") -> Iterator[str]:
        top = prefix.rpartition("/")[0]
        if top:
            check_key(top)
        try:
            found = [
                entry["path"] for page in obstore.list(self._store, prefix=top or None) for entry in page
            ]
        except _ERRORS as error:
            self._raise(error, top, writing=False)
        return iter(sorted(key for key in found if key.startswith(prefix)))

    def unfinished(self, prefix: str = "") -> Iterator[str]:
        return iter(())

    def delete(self, key: str, *, durable: bool = False) -> None:
        check_key(key)
        try:
            with contextlib.suppress(*_GONE):
                obstore.delete(self._store, key)
        except _ERRORS as error:
            self._raise(error, key, writing=True)

    def _path(self, key: str) -> str:
        return f"{self.place}/{key}"

    def _raise(self, error: Exception, key: str, *, writing: bool) -> NoReturn:
        raise meaning(error, self._path(key), writing=writing) from error


class _Source:
    """The parts of a blob, joined and cut anew. Remembers what the giver of the parts raised."""

    def __init__(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        self._parts = iter(parts)
        self._left = memoryview(b"")
        self._error: BaseException | None = None
        self.ended = False
        self.size = 0

    def take(self, size: int) -> bytearray:
        """The next ``size`` bytes; fewer at the end."""
        got = bytearray()
        while len(got) < size:
            if not self._left.nbytes:
                part = next(self._parts, None)
                if part is None:
                    self.ended = True
                    break
                self._left = memoryview(part).cast("B")
                continue
            fits = min(self._left.nbytes, size - len(got))
            got += self._left[:fits]
            self._left = self._left[fits:]
        self.size += len(got)
        return got

    def pieces(self, first: bytearray) -> Iterator[bytes]:
        """``first``, and the rest in pieces of one part each."""
        piece = first
        try:
            while piece:
                yield bytes(piece)
                piece = self.take(PART)
        except BaseException as error:
            self._error = error
            raise

    def reraise(self) -> None:
        if self._error is not None:
            raise self._error


def bucket_blobs(place: str, options: Mapping[str, str], below: str) -> ObjectBlobs:
    """The blobs in folder ``below`` of ``place``, a bucket's URL. Credentials are the environment's.

    Raises RefusedOption for options that the service does not take.
    """
    scheme, _, rest = place.partition("://")
    bucket, _, prefix = rest.partition("/")
    where = "/".join(part for part in (prefix, below) if part) or None
    http = options.get("allow_http") == "true"
    given: dict[str, Any] = {
        "prefix": where,
        "retry_config": _RETRY,
        "client_options": {**_CLIENT, "allow_http": True} if http else _CLIENT,
    }
    named = {name: value for name, value in options.items() if name != "allow_http"}
    try:
        store: ObjectStore
        if scheme == "s3":
            store = S3Store(bucket, config=_renamed(named, endpoint="endpoint", region="region"), **given)
        elif scheme == "gs":
            store = GCSStore(bucket, config=_renamed(named, endpoint="base_url"), **given)
        else:
            config = _renamed(named, endpoint="endpoint", account="account_name")
            store = AzureStore(bucket, config=config, **given)
    except _ERRORS as error:
        raise RefusedOption(f"{place} cannot be used: {_text(error)}", url=place) from None
    return ObjectBlobs(store, "/".join(part for part in (place, below) if part))


def _renamed(options: Mapping[str, str], **names: str) -> Any:
    for name in options:
        if name not in names:
            raise RefusedOption(f"the option {name!r} means nothing for this service", option=name)
    return {names[name]: value for name, value in options.items()}


def _text(error: BaseException) -> str:
    """One line, without the answer's raw form."""
    text = _ANSWER.sub(r"\1: \2", str(error).partition("Debug source")[0])
    return " ".join(text.split())[:400]


def meaning(error: Exception, place: str, *, writing: bool) -> StorageError:
    """The StorageError that an error of obstore at ``place`` amounts to."""
    text = _text(error)
    if any(sign in text for sign in _NO_BUCKET):
        bucket = "/".join(place.split("/")[:3])
        return NotAStore(f"there is no bucket {bucket}: make it, or check the name ({text})", path=place)
    if isinstance(error, _GONE):
        return BlobNotFound(f"no blob at {place}", path=place)
    refused = isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))
    refused = refused or any(sign in text for sign in _REFUSED)
    if refused and writing and not any(sign in text for sign in _CREDENTIALS):
        return StoreNotWritable(
            f"cannot write {place} ({text}): these credentials may not write there. What is stored is whole",
            path=place,
        )
    if refused or any(sign in text for sign in _CREDENTIALS):
        return StoreForbidden(
            f"{place} is not opened to these credentials ({text}): check the environment variables of the"
            " service (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...) or the machine's role. Nothing was"
            " changed",
            path=place,
        )
    if any(sign in text for sign in _FULL):
        return StoreFull(f"no room for {place} ({text}): raise the quota, or free some", path=place)
    if any(sign in text for sign in _AWAY):
        return StoreUnreachable(
            f"{'writing' if writing else 'reading'} {place} failed: the service cannot be reached ({text})."
            " Committed checkpoints are whole",
            path=place,
            unchanged=not writing,
        )
    return StorageError(f"{'writing' if writing else 'reading'} {place} failed: {text}", path=place)
