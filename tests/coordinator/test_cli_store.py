"""The verbs over a store, as they are called on the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cutline.coordinator.cli import app
from cutline.storage import CheckpointRow, open_store
from tests.storage.cast import SYSTEM, Scene


def run(*arguments: object, status: int = 0) -> str:
    """What a command prints on both streams."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


def asked(*arguments: object, status: int = 0) -> Any:
    """The document of a command with --json."""
    return json.loads(run(*arguments, "--json", status=status))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_store(tmp_path / "s", create=True) as store:
        scene = Scene.new(store)
        for n in range(4):
            state = {"a": {"x": f"{n}" * 300, "same": "same"}, "b": {"y": "b" * 200}}
            scene.cut(state, full=n % 2 == 0, label="kept" if n == 1 else None)
        Scene.new(store, "other").cut({"a": {"x": "1"}})
        store.catalog.release_lease(scene.lease)
    return tmp_path / "s"


def rows(folder: Path, system: str = SYSTEM) -> list[CheckpointRow]:
    with open_store(folder, create=False) as store:
        return store.catalog.checkpoints(system)


def own_pack(folder: Path, row: CheckpointRow, participant: str) -> Path:
    return folder / "blobs" / next(key for key in row.blobs if f"/{row.checkpoint}/{participant}-" in key)


def flip(path: Path, at: int = 20) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def place(row: CheckpointRow) -> str:
    return f"{row.lineage}/{row.checkpoint}"


def test_verify_of_what_is_whole(folder: Path) -> None:
    found = asked("verify", "-s", folder)
    assert found[SYSTEM]["newest_whole"] == place(rows(folder)[-1])
    assert [len(found[name]["whole"]) for name in (SYSTEM, "other")] == [4, 1]
    assert found[SYSTEM]["damaged"] == {} and found[SYSTEM]["faults"] == []
    assert list(asked("verify", "-s", folder, "-n", "other")) == ["other"]
    assert "market: 4 of 4 checkpoints are whole" in run("verify", "-s", folder)
    assert "there are: market, other" in run("verify", "-s", folder, "-n", "nobody", status=1)


def test_verify_names_every_damaged_part_and_what_still_is_whole(folder: Path) -> None:
    cuts = rows(folder)
    harmed = [
        own_pack(folder, cuts[3], "a"),
        own_pack(folder, cuts[2], "a"),
        own_pack(folder, cuts[3], "b"),
        folder / "blobs" / f"{cuts[0].manifest_key}.commit",
    ]
    # The first two are one chain: what is behind a fault is read all the same.
    for path in harmed:
        flip(path)
    found = asked("verify", "-s", folder, status=1)[SYSTEM]
    names = {str(path.relative_to(folder / "blobs")) for path in harmed}
    assert {fault["key"] for fault in found["faults"]} == names
    assert len(found["faults"]) == len(names)
    assert found["whole"] == [place(row) for row in cuts[:2]]
    assert set(found["damaged"]) == {place(row) for row in cuts[2:]}
    assert found["newest_whole"] == place(cuts[1])
    text = run("verify", "-s", folder, status=1)
    assert all(name in text for name in names) and f"newest whole checkpoint: {place(cuts[1])}" in text
    run("verify", "-s", folder, "-n", "other")


def test_verify_with_nothing_whole(folder: Path) -> None:
    for path in (folder / "blobs").rglob("*.pack"):
        flip(path, -1)
    assert asked("verify", "-s", folder, status=1)[SYSTEM]["newest_whole"] is None
    assert "none: nothing can be restored" in run("verify", "-s", folder, status=1)


def test_rebuild_catalog(folder: Path) -> None:
    before = rows(folder)
    assert "whole, with 5 checkpoints" in run("rebuild-catalog", folder, status=1)
    for path in folder.glob("catalog.sqlite*"):
        path.unlink()
    (folder / "blobs" / f"{before[0].manifest_key}.commit").unlink()
    assert "rebuild-catalog" in run("list", "-s", folder, status=1)
    found = asked("rebuild-catalog", folder)
    assert found["systems"][SYSTEM]["checkpoints"] == [place(row) for row in before[1:]]
    assert len(found["left_out"]) == 1 and str(before[0].manifest_key) in found["left_out"][0]
    assert [row.place for row in rows(folder)] == [row.place for row in before[1:]]
    text = run("rebuild-catalog", folder, "--force")
    assert "market: 3 checkpoints in 1 lineages" in text and str(before[0].manifest_key) in text


def test_rebuild_catalog_beside_a_living_system(folder: Path) -> None:
    """The catalog is gone, so only the endpoint file tells that somebody is there."""
    (folder / "catalog.sqlite").unlink()
    endpoint = folder / "endpoint-default.json"
    endpoint.write_text(json.dumps({"address": "x", "token": "t", "pid": os.getpid()}))
    assert f"process {os.getpid()}" in run("rebuild-catalog", folder, status=1)
    endpoint.write_text("torn")
    run("rebuild-catalog", folder)


def test_the_readme_lists_the_verbs_there_are() -> None:
    """Each verb once, but for those that the README tells of elsewhere."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    listed = re.findall(r"^\| `cutline ([a-z-]+)[^`]*` \|", text, re.MULTILINE)
    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    } | {group.name for group in app.registered_groups}
    assert len(listed) == len(set(listed))
    assert known - set(listed) == {"demo", "bench", "simulate"}
    assert set(listed) <= known
