"""What every place for blobs promises to who reads later; part of the conformance suite."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest

from cutline.errors import BlobNotFound
from cutline.storage.blobs import BlobStore


class HoldingTests(ABC):
    """Of ``blobs``, which is made anew for each test."""

    @pytest.fixture
    @abstractmethod
    def blobs(self) -> BlobStore | Iterator[BlobStore]: ...

    def test_what_is_held_stays_readable_or_nothing_is_held(self, blobs: BlobStore) -> None:
        content = random.Random(9).randbytes(3_000_000)
        blobs.create("s/held", [content])
        held = blobs.hold("s/held")
        blobs.delete("s/held", durable=True)
        with pytest.raises(BlobNotFound):
            blobs.size("s/held")
        target = bytearray(2_000_000)
        if held is None:
            # Then whoever wants to read later has to know that.
            assert blobs.far
            return
        assert held.read_into(500_000, memoryview(target)) == len(target)
        assert target == content[500_000:2_500_000]
        assert held.read_into(2_999_999, memoryview(target)) == 1 and target[:1] == content[-1:]
        blobs.create("s/held", [b"another one"])
        assert held.read_into(0, memoryview(target)) == len(target) and target == content[:2_000_000]
        with pytest.raises(BlobNotFound):
            blobs.hold("s/gone")
