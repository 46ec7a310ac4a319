"""Blobs in this process's memory: for tests and for systems that need no durability."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from cutline.errors import BlobExists, BlobNotFound

from .blobs import Held, check_key

__all__ = ("MemoryBlobs",)


class MemoryBlobs:
    """A dict with the contract of `BlobStore`, durability apart."""

    far = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes] = {}

    def create(self, key: str, parts: Iterable[bytes | bytearray | memoryview]) -> int:
        check_key(key)
        content = b"".join(parts)
        with self._lock:
            if key in self._blobs:
                raise BlobExists(f"there is a blob {key} already", key=key)
            self._blobs[key] = content
        return len(content)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        content = self._content(key)
        return content[start:] if length is None else content[start : start + length]

    def read_into(self, key: str, start: int, target: memoryview) -> int:
        part = self._content(key)[start : start + target.nbytes]
        target[: len(part)] = part
        return len(part)

    def size(self, key: str) -> int:
        return len(self._content(key))

    def hold(self, key: str) -> Held:
        return _HeldBytes(self._content(key))

    def list(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            keys = sorted(key for key in self._blobs if key.startswith(prefix))
        return iter(keys)

    def unfinished(self, prefix: str = "") -> Iterator[str]:
        return iter(())

    def delete(self, key: str, *, durable: bool = False) -> None:
        with self._lock:
            self._blobs.pop(key, None)

    def _content(self, key: str) -> bytes:
        check_key(key)
        with self._lock:
            content = self._blobs.get(key)
        if content is None:
            raise BlobNotFound(f"no blob {key}", key=key)
        return content


class _HeldBytes:
    """The bytes themselves."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read_into(self, start: int, target: memoryview) -> int:
        part = self._content[start : start + target.nbytes]
        target[: len(part)] = part
        return len(part)
