"""What tests of more than one room need."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutline.participant import handle
from tests.storage.servers import postgres_server, s3_server

__all__ = ("no_port_left_behind", "postgres_server", "s3_server", "store_folder")

# What the verbs of the Makefile tell the tests.
_TESTS = "CUTLINE_TEST_"


def pytest_configure(config: pytest.Config) -> None:
    """Keys of the tests' stores are not the user's, and what the user's environment tells is not theirs."""
    for name in [name for name in os.environ if name.startswith("CUTLINE_") and not name.startswith(_TESTS)]:
        del os.environ[name]
    folder = tempfile.mkdtemp(prefix="cutline-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["CUTLINE_HOME"] = folder
    # Ray starts its workers with nice 15. Beside the other parts they would get a thirtieth of a core: no
    # worker is up in minutes then, and what is tested is the patience of the tests.
    os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    """A folder for one store, not made yet; its name has what a careless quoting would stumble over."""
    return tmp_path / "check points %2F ü"


@pytest.fixture(autouse=True)
def no_port_left_behind() -> Iterator[None]:
    """Tests that step a runner in this thread must not leave its handlers' port to the next test."""
    yield
    vars(handle._threads).pop("port", None)
