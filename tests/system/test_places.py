"""The same small system on every kind of store: it runs, loses processes, stops, and goes on."""

from __future__ import annotations

import os
import secrets
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator.cli import app
from cutline.errors import StoreInUse
from cutline.storage import Owner, locate, open_store
from tests.storage.servers import S3, Postgres
from tests.system.actors import Bulky, Counter
from tests.system.living import again, kill, until


@pytest.fixture(params=["folder and SQLite", "folder and PostgreSQL", "S3 and PostgreSQL"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that is not there yet."""
    monkeypatch.setenv("CUTLINE_HOME", str(tmp_path / "home"))
    name = secrets.token_hex(6)
    if request.param == "folder and SQLite":
        return str(tmp_path / name)
    postgres: Postgres = request.getfixturevalue("postgres_server")
    if request.param == "folder and PostgreSQL":
        return f"{tmp_path / name}?catalog={postgres.url(f's_{name}')}"
    s3: S3 = request.getfixturevalue("s3_server")
    for key, value in s3.environment().items():
        monkeypatch.setenv(key, value)
    return f"{s3.url(name)}&catalog={postgres.url(f's_{name}')}"


def test_a_system_lives_there(place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with cutline.start(place, interval=None) as system:
        counter = system.spawn("counter", Counter)
        # More than one part of an upload.
        bulky = system.spawn("bulky", Bulky)
        before = bulky.fill.remote(9 << 20, 7).result()
        counter.add.remote(1).result()
        system.checkpoint()
        counter.add.remote(2).result()
        kill(system, "bulky", "counter")
        assert again(lambda: counter.add.remote(0).result()) == 3
        assert again(lambda: bulky.checksum.remote().result()) == before
        first = system.coordinator_pid
        os.kill(first, signal.SIGKILL)
        until(lambda: system.coordinator_pid != first, "another coordinator")
        assert again(system.checkpoint) >= 2
        again(lambda: system.savepoint("kept"))
        assert again(lambda: counter.add.remote(4).result()) == 7
        _in_use(place)
        shown = [repr(system.store), repr(locate(place)), str(locate(place)), system.store.url]
    with cutline.start(place, interval=None, quiet=True) as system:
        assert system.resumed
        counter, bulky = system.spawn("counter", Counter), system.spawn("bulky", Bulky)
        assert again(lambda: counter.add.remote(0).result()) == 7
        assert again(lambda: bulky.checksum.remote().result()) == before
        done = CliRunner().invoke(app, ["checkpoint", "-s", place])
        assert done.exit_code == 0 and "committed" in done.output
    target = str(tmp_path / "exported")
    told = []
    for verb in (
        ["list"],
        ["show", "kept"],
        ["verify"],
        ["tree"],
        ["du"],
        ["gc", "--dry-run"],
        ["diff", "1", "kept"],
    ):
        done = CliRunner().invoke(app, [*verb, "-s", place])
        assert done.exit_code == 0, (verb, done.output)
        told.append(done.output)
    assert "kept" in told[0]
    assert CliRunner().invoke(app, ["export", "kept", target, "-s", place]).exit_code == 0
    done = CliRunner().invoke(app, ["import", target, "-s", place, "--name", "copy"])
    assert done.exit_code == 0, done.output
    with open_store(place, create=False) as store:
        assert store.verify("default").faults == []
    out, err = capfd.readouterr()
    _no_secrets([*shown, *told, out, err, done.output], tmp_path)


def _in_use(place: str) -> None:
    with open_store(place, create=False) as store, pytest.raises(StoreInUse, match="is run by process"):
        store.catalog.acquire_lease("default", Owner.here("a second system"), 10.0, time.time())


def _no_secrets(texts: list[str], folder: Path) -> None:
    """Neither of the passwords, quoted or not, in what was said or in a file that was written."""
    found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for secret in ("pass/word", "pass%2Fword", "word@of", "secret-of-the-tests"):
        assert not any(secret in text for text in texts)
        assert not any(secret.encode() in content for content in found)
