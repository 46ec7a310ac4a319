"""One local Ray per test module: it takes seconds to start.

Run on demand, `make test-ray`: a Ray beside other work comes up late, and some of these tests wait only two
seconds for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips them unless asked for; what Ray warns of is Ray's business."""
    for item in items:
        if "tests/ray/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("default"))
            if not os.environ.get("CUTLINE_TEST_RAY"):
                item.add_marker(pytest.mark.skip(reason="needs a Ray of its own; run `make test-ray`"))


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A local Ray with more CPUs than the machine has; nothing here needs them."""
    ray.init("local", num_cpus=16, resources={"lamp": 1}, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where a system keeps its checkpoints."""
    return str(tmp_path / "checkpoints")
