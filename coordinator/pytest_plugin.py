"""The pytest plugin: the fixture ``cutline_point`` restores a checkpoint in a test, as plain instances.

    def test_nobody_is_poor(cutline_point):
        cut = cutline_point("before-release")
        assert cut["t0"].cash >= 0

Every run of pytest imports this module, so it imports nothing of Cutline before the fixture is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .loading import Cut

__all__ = ("cutline_point", "pytest_addoption")

_STORE = "cutline_store"
_NAME = "cutline_name"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cutline-store``, and in pytest's configuration ``cutline_store`` and ``cutline_name``."""
    group = parser.getgroup("cutline", "checkpoints in tests (cutline)")
    group.addoption("--cutline-store", metavar="STORE", help="folder or URL that cutline_point reads from")
    parser.addini(_STORE, "folder or URL that cutline_point reads from; relative to the root of the tests")
    parser.addini(_NAME, "the system's name for cutline_point", default="default")


@pytest.fixture(scope="session")
def cutline_point(request: pytest.FixtureRequest) -> Callable[..., Cut]:
    """``cutline_point(point, storage, name=..., only=..., main=..., trust=..., allow=...)``: `cutline.load`
    with the store and the system of the configuration. Each call gives instances of its own."""
    config = request.config

    def restored(point: str | int = "newest", storage: Any = None, **options: Any) -> Cut:
        from .loading import load

        options.setdefault("name", config.getini(_NAME))
        return load(point, _chosen(config) if storage is None else storage, **options)

    return restored


def _chosen(config: pytest.Config) -> str:
    """The store of the command line, else of the configuration. Raises Misuse if neither names one."""
    given, written = config.getoption("--cutline-store"), config.getini(_STORE)
    if not given and not written:
        from cutline.errors import Misuse

        raise Misuse(
            "cutline_point does not know which store to read: run pytest with --cutline-store=STORE, write "
            "cutline_store = STORE into pytest's configuration, or cutline_point(point, STORE)"
        )
    base = config.invocation_params.dir if given else config.rootpath
    place = str(given or written)
    return place if "://" in place else os.path.join(base, place)
