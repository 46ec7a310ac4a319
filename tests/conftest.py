"""What tests of more than one room need."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    """A folder for one store, not made yet; its name has what a careless quoting would stumble over."""
    return tmp_path / "check points %2F ü"
