"""Whole programs on Ray run on demand: together they take a minute."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips them unless asked for."""
    for item in items:
        if "tests/adoption/" in item.path.as_posix() and not os.environ.get("CUTLINE_TEST_ADOPTION"):
            item.add_marker(pytest.mark.skip(reason="ten programs on Ray; run `make test-adoption`"))
