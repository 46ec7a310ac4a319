"""One local Ray per test module: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Ray warns of is Ray's business."""
    for item in items:
        if "tests/ray/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("default"))


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
