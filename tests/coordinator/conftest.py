"""What all tests of the coordinator stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cutline.storage import Store
from cutline.storage.store import memory_store


@pytest.fixture
def store() -> Iterator[Store]:
    """A store in memory."""
    with memory_store() as made:
        yield made
