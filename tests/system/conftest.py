"""Every test module here ends with nothing of it left alive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.living import left_over


@pytest.fixture(scope="module", autouse=True)
def mark() -> Iterator[str]:
    """The mark of this module's processes."""
    with left_over() as mark:
        yield mark
