"""Every test module here ends with nothing of it left alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import outside
from tests.system.living import left_over


@pytest.fixture(scope="module", autouse=True)
def mark() -> Iterator[str]:
    """The mark of this module's processes."""
    with left_over() as mark:
        yield mark


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that everything outside is written to."""
    path = tmp_path / "world"
    path.touch()
    monkeypatch.setenv(outside.WORLD, str(path))
    return path
