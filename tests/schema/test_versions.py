"""Each version of an application opens the checkpoints of those before it, or fails as `check` said.

A few of the pairs here; all of them with ``make test-schema``.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator.checking import import_program
from cutline.errors import Misuse
from cutline.participant.classes import Classes
from cutline.storage import open_store
from tests.schema.versions import VERSIONS, write_versions

ROOT = Path(__file__).resolve().parents[2]
ALL = bool(os.environ.get("CUTLINE_TEST_SCHEMA"))
PAIRS = [(old, new) for old in VERSIONS for new in VERSIONS if old <= new]


class Shops:
    """The application's versions, and a store with a savepoint of each that is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folders = write_versions(folder)
        self.store = folder / "store"
        self._made: set[int] = set()
        self._reports: dict[tuple[int, str], tuple[int, dict[str, Any]]] = {}
        # Seconds that a call is on its way: longer than it takes to make a savepoint.
        self.held = 3.0

    def run(self, version: int, *command: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folders[version]), str(ROOT)])
        return subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": path},
            cwd=self.folders[version],
            capture_output=True,
            text=True,
            timeout=120,
        )

    def program(self, version: int, what: str, point: str) -> subprocess.CompletedProcess[str]:
        woken = str(self.woken(point))
        return self.run(version, "program.py", what, str(self.store / point), point, str(self.held), woken)

    def woken(self, point: str) -> Path:
        """Where the participant that answers late writes down that it has."""
        return self.store.with_name(f"woken-{point}")

    def point(self, version: int) -> str:
        """A savepoint of that version, with calls on their way."""
        point = f"v{version}"
        while version not in self._made:
            done = self.program(version, "make", point)
            assert done.returncode == 0, done.stderr
            if "LATE" in done.stdout:
                shutil.rmtree(self.store / point)
                self.held *= 2
            else:
                self._made.add(version)
        return point

    def check(self, version: int, point: str) -> tuple[int, dict[str, Any]]:
        if (version, point) not in self._reports:
            command = ["check", point, "--against", "shop", "-s", str(self.store / point), "--json"]
            done = self.run(version, "-m", "cutline", *command)
            assert done.returncode in (0, 1), done.stderr
            self._reports[version, point] = done.returncode, json.loads(done.stdout)
        return self._reports[version, point]


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    yield Shops(tmp_path_factory.mktemp("versions"))


def contents(folder: Path) -> dict[str, bytes]:
    # SQLite's own working files are no content.
    files = (
        path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    )
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize(("old", "new"), PAIRS if ALL else [(1, 4), (1, 5)])
def test_a_version_opens_what_an_earlier_one_has_saved_or_fails_as_check_said(
    shops: Shops, old: int, new: int
) -> None:
    point = shops.point(old)
    before = contents(shops.store / point)
    status, report = shops.check(new, point)
    assert contents(shops.store / point) == before
    assert status == (0 if report["fits"] else 1)
    assert report["fits"] is (old == new or new < 5)
    woken = shops.woken(point)
    woken.write_text("")
    done = shops.program(new, "open", point)
    if report["fits"]:
        assert done.returncode == 0, done.stderr
        shown = ast.literal_eval(done.stdout.partition("SHOWN ")[2])
        assert shown == {
            "mood": "ACTIVE" if new >= 4 else "BUSY",
            "lines": ["first"],
            "planned": [[3, "c", "cyd"]],
            "sum": 2,
            "orders": {"a": ["a", 1, "ada", 7], "b": ["b", 2, "bob", 7]},
        }
        assert {"2", "3"} <= set(woken.read_text().split())
        with open_store(shops.store / point, create=False) as store:
            row = store.catalog.find("default", "newest")
            members = store.read_manifest(row).channels["members"]
        assert row.label != point
        assert members["shop"]["class_name"] == ("shop:Market" if new >= 3 else "shop:Shop")
        return
    # Nobody else began on half a cut: what was due would have been done at once.
    assert woken.read_text() == ""
    assert done.returncode != 0 and "SHOWN" not in done.stdout
    problems = report["participants"]["shop"]["problems"]
    # It ends with the first one that check lists.
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cutline.errors.SchemaMismatch: ") and problems[0]["text"] in last
    found = {(problem["what"], problem["path"]) for problem in problems}
    plan = "plan" if old < 3 else "prepare"
    assert found == {("method", "continuation of gate.hold"), ("call", f"suspended call of {plan}")}
    # The checkpoint is what it was, and the program that wrote it goes on from it.
    assert shops.program(old, "open", point).returncode == 0


def test_check_says_what_would_be_migrated(shops: Shops) -> None:
    status, report = shops.check(4, shops.point(1))
    shop = report["participants"]["shop"]
    assert (status, shop["class"], shop["now"], shop["problems"]) == (0, "shop:Shop", "shop:Market", [])
    assert shop["suspended"] == ["plan"]
    migrated = {(each["name"], each["found"], each["wanted"]) for each in shop["migrations"]}
    assert migrated == {("shop:Market", 0, 1), ("shop:Line", 0, 1), ("sales:Purchase", 0, 1)}


def test_what_cannot_be_checked(shops: Shops) -> None:
    point = shops.point(1)
    place = ["-s", str(shops.store / point)]
    for arguments, why in (
        (["nowhere", "--against", "shop:Shop", *place], "CheckpointNotFound"),
        ([point, *place], "--against"),
    ):
        done = shops.run(1, "-m", "cutline", "check", *arguments)
        assert done.returncode == 2 and why in done.stderr and not done.stdout, done.stderr


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("no_such_module", "does not import: ModuleNotFoundError"),
        ("json:Nobody", "json has no 'Nobody'"),
        ("nowhere.py", "there is no such file"),
        ("ends.py", "does not import: SystemExit: 3"),
    ],
)
def test_modules_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    with pytest.raises(Misuse, match=rf"--against {entry}: .*{why}"):
        import_program([entry])


def test_the_script_stands_for_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "app.py").write_text("class Agent: pass\nassert __name__ != '__main__'")
    script = import_program([str(tmp_path / "app.py"), "json:dumps"])
    assert Classes(script).find("__main__", "Agent").__module__ == "__cutline_main__"
    monkeypatch.delitem(sys.modules, "__cutline_main__")


def test_listing_works_without_the_module(shops: Shops) -> None:
    point = shops.point(1)
    with open_store(shops.store / point, create=False) as store:
        assert [row.label for row in store.catalog.checkpoints("default") if row.label] == [point]
        assert store.verify("default").faults == []
    assert "shop" not in sys.modules
