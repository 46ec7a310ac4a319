"""Tests that start a Ray cluster of several nodes run on demand: the cluster alone takes half a minute."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips them unless asked for; what Ray warns of is Ray's business."""
    for item in items:
        if "tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("default"))
            if not os.environ.get("CUTLINE_TEST_CLUSTER"):
                item.add_marker(pytest.mark.skip(reason="needs a cluster; run `make test-cluster`"))
