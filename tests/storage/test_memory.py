"""Blobs in memory keep the contract."""

from __future__ import annotations

import pytest

from cutline.storage import BlobStore, MemoryBlobs
from tests.storage.conformance import BlobStoreTests


class TestMemoryBlobs(BlobStoreTests):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return MemoryBlobs()

    def back_door(self, blobs: BlobStore, key: str) -> bytes:
        assert isinstance(blobs, MemoryBlobs)
        return blobs._blobs[key]
