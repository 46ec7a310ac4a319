"""Objects of a bucket: the contract, in a real S3 server and in obstore's memory."""

from __future__ import annotations

import secrets

import obstore
import pytest
from obstore.store import MemoryStore

from cutline.storage import BlobStore
from cutline.storage.location import locate
from cutline.storage.objects import ObjectBlobs, bucket_blobs
from tests.storage.conformance import BlobStoreTests
from tests.storage.servers import S3


def opened(url: str) -> ObjectBlobs:
    """The blobs at a bucket's URL."""
    where = locate(url)
    return bucket_blobs(where.place, where.options, "")


class TestObjectsInMemory(BlobStoreTests):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return ObjectBlobs(MemoryStore(), "memory")

    def back_door(self, blobs: BlobStore, key: str) -> bytes:
        assert isinstance(blobs, ObjectBlobs)
        return bytes(obstore.get(blobs._store, key).bytes())


class TestObjectsInS3(BlobStoreTests):
    @pytest.fixture
    def blobs(self, s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
        for name, value in s3_server.environment().items():
            monkeypatch.setenv(name, value)
        return opened(s3_server.url(secrets.token_hex(6)))

    def back_door(self, blobs: BlobStore, key: str) -> bytes:
        assert isinstance(blobs, ObjectBlobs)
        return bytes(obstore.get(blobs._store, key).bytes())
