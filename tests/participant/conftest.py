"""Places where images are written by a persister process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .persisting import Place, a_place


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Place]:
    """A place where there has never been a process."""
    with a_place(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place of all tests."""
    with a_place(tmp_path_factory.mktemp("common")) as made:
        yield made


@pytest.fixture
def place(common: Place) -> Iterator[Place]:
    """The same place, and as a rule the same process: it stays for a moment when a test has ended."""
    yield common
    common.close_all()
    assert common.outcomes.empty()
