"""gc, du, diff and tree, as they are called on the command line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cutline.coordinator.cli_gc import seconds_of
from cutline.errors import RefusedOption
from cutline.storage import open_store
from tests.coordinator.test_cli_store import asked, folder, own_pack, place, rows, run
from tests.storage.cast import SYSTEM, Scene
from tests.system.living import small_disk

__all__ = ("folder",)


def test_gc(folder: Path) -> None:
    cuts = rows(folder)
    before = {path for path in folder.rglob("*") if path.is_file()}
    would = asked("gc", "-s", folder, "--keep-last", 1, "--dry-run")
    assert would[SYSTEM]["given_up"] == [place(cuts[0]), place(cuts[2])]
    assert would["other"]["given_up"] == []
    assert {path for path in folder.rglob("*") if path.is_file()} == before
    assert "2 checkpoints would go, 2 stay" in run("gc", "-s", folder, "--keep-last", 1, "--dry-run")
    done = asked("gc", "-s", folder, "--keep-last", 1)
    for system in (SYSTEM, "other"):
        assert {**done[system], "dry_run": True} == would[system]
    # The labelled one stays with what it builds on.
    assert [row.place for row in rows(folder)] == [cuts[1].place, cuts[3].place]
    assert asked("verify", "-s", folder)[SYSTEM]["faults"] == []
    # All is kept that is younger: these were decided in 1970.
    assert asked("gc", "-s", folder, "--keep-last", 1, "--keep-for", "9000w")[SYSTEM]["given_up"] == []
    assert "market: 0 checkpoints gone, 2 stay; 0 blobs" in run("gc", "-s", folder)


def test_gc_by_age(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        for n in range(9):
            scene.cut({"a": {"x": str(n)}}, full=True, now=3600.0 * n)
        store.catalog.release_lease(scene.lease)
    found = asked("gc", "-s", tmp_path, "--keep-last", 1, "--thin", "4h:9000w", "--dry-run")[SYSTEM]
    assert [name.rpartition("/")[2] for name in found["kept"]] == ["1", "5", "9"]


@pytest.mark.parametrize("text", ["", "h", "5x", "-3d", "0s", "1 2d"])
def test_lengths_of_time_that_are_none(text: str) -> None:
    with pytest.raises(RefusedOption, match="no length of time"):
        seconds_of(text)


def test_lengths_of_time() -> None:
    assert [seconds_of(text) for text in ("90", "1.5m", "12h", "7d", "2w")] == [
        90,
        90,
        43200,
        604800,
        1209600,
    ]


@pytest.mark.parametrize(
    "arguments", [["--keep-for", "soon"], ["--thin", "1h"], ["--thin", "0h:2d"], ["--keep-last", "0"]]
)
def test_gc_refuses_what_it_cannot_mean(folder: Path, arguments: list[str]) -> None:
    before = rows(folder)
    run("gc", "-s", folder, *arguments, status=2 if arguments[0] == "--keep-last" else 1)
    assert rows(folder) == before


def test_du(folder: Path) -> None:
    found = asked("du", "-s", folder)
    cuts = found[SYSTEM]["checkpoints"]
    assert [cut["place"] for cut in cuts] == [place(row) for row in rows(folder)]
    assert cuts[0]["shared"] == cuts[1]["shared"] > 0 and all(cut["alone"] > 0 for cut in cuts)
    assert found[SYSTEM]["unlisted"] == 0 and len(found["other"]["checkpoints"]) == 1
    own_pack(folder, rows(folder)[3], "a").unlink()
    assert [cut["missing"] for cut in asked("du", "-s", folder)[SYSTEM]["checkpoints"]] == [0, 0, 0, 1]
    text = run("du", "-s", folder, "-n", SYSTEM)
    assert "kept" in text and "not listed by any checkpoint: 0 B" in text


def test_diff(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        same = {"attr:same": "same" * 9, "attr:goes": "x"}
        scene.cut({"a": {"attr:text": "1" * 100, **same}, "gone": {"attr:x": "1"}, "b": {"attr:y": "1"}})
        scene.cut({"a": {"attr:text": "2" * 90, "attr:same": "same" * 9}, "b": {"attr:y": "1"}, "new": {}})
        scene.cut({"a": {"attr:text": "2" * 90, "attr:same": "same" * 9}, "b": {"attr:y": "1"}, "new": {}})
    found = asked("diff", "1", "2", "-s", tmp_path, "-n", SYSTEM)
    assert found["before"].endswith("/1") and found["after"].endswith("/2")
    people = found["participants"]
    assert {name: each["what"] for name, each in people.items()} == {
        "a": "changed", "b": "same", "gone": "removed", "new": "added"
    }  # fmt: skip
    assert people["a"]["parts"] == [
        {"name": "text", "what": "changed", "before": 100, "after": 90, "bytes": 90},
        {"name": "goes", "what": "removed", "before": 1, "after": None, "bytes": 1},
    ]
    assert people["a"]["changed_bytes"] == 91 and people["b"]["parts"] == []
    nothing = asked("diff", "2", "3", "-s", tmp_path, "-n", SYSTEM)["participants"]
    assert {each["what"] for each in nothing.values()} == {"same"}
    text = run("diff", "1", "newest", "-s", tmp_path, "-n", SYSTEM)
    assert re.search(r"changed +│ text +│ +90 B", text)
    assert "no checkpoint '9'" in run("diff", "1", "9", "-s", tmp_path, "-n", SYSTEM, status=1)


def test_diff_of_a_piece_in_parts(tmp_path: Path) -> None:
    """It is one attribute, of which the parts that differ count."""
    grows = {"attr:log": "1" * 70, "part:1:attr:log": "2" * 30}
    shrinks = {"attr:list": "1" * 70, "part:1:attr:list": "2" * 70, "part:2:attr:list": "3" * 5}
    goes = {"attr:old": "1" * 70, "part:1:attr:old": "2"}
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        scene.cut({"a": {"attr:same": "x", "part:1:attr:same": "y", **grows, **shrinks, **goes}})
        grows.update({"part:1:attr:log": "2" * 71, "part:2:attr:log": "3" * 9})
        shrinks = {"attr:list": "1" * 70, "part:1:attr:list": "2" * 20}
        scene.cut({"a": {"attr:same": "x", "part:1:attr:same": "y", **grows, **shrinks}})
    found = asked("diff", "1", "2", "-s", tmp_path, "-n", SYSTEM)["participants"]["a"]
    assert found["parts"] == [
        {"name": "log", "what": "changed", "before": 100, "after": 150, "bytes": 80},
        {"name": "list", "what": "changed", "before": 145, "after": 90, "bytes": 20},
        {"name": "old", "what": "removed", "before": 71, "after": None, "bytes": 71},
    ]
    assert found["changed_bytes"] == 171


def test_tree(folder: Path) -> None:
    with open_store(folder, create=False) as store:
        row = store.catalog.find(SYSTEM, "2")
        scene = Scene.resumed(store)
        fork = scene.fork(row)
        fork.cut({"a": {"x": "fork"}})
        store.catalog.release_lease(scene.lease)
    first, second = asked("tree", "-s", folder)[SYSTEM]
    assert first["origin"] is None and second["origin"] == place(row)
    assert [cut["id"] for cut in first["checkpoints"]] == [1, 2, 3, 4]
    assert [(cut["id"], cut["label"]) for cut in second["checkpoints"]] == [(3, None)]
    text = run("tree", "-s", folder)
    assert f"{first['lineage']}: 4 checkpoints, 1 to 4" in text and "labelled kept (2)" in text
    assert re.search(rf"└── {second['lineage']}: 1 checkpoint,.* restore from 2", text.replace("\n", " "))


def test_on_a_disk_that_is_read_only(tmp_path: Path) -> None:
    """What reads works; what would write says what it cannot write, and changes nothing."""
    with small_disk(tmp_path / "disk", "size=16m") as disk:
        with open_store(disk / "s", create=True) as store:
            scene = Scene.new(store)
            for n in range(3):
                scene.cut({"a": {"x": str(n)}}, full=True)
            store.catalog.release_lease(scene.lease)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for verb in (["verify"], ["du"], ["tree"], ["diff", "1", "2", "-n", SYSTEM]):
            asked(*verb, "-s", disk / "s")
        assert len(asked("gc", "-s", disk / "s", "--keep-last", 1, "--dry-run")[SYSTEM]["given_up"]) == 2
        asked("export", "newest", tmp_path / "e", "-s", disk / "s", "-n", SYSTEM)
        for verb in (["gc", "--keep-last", "1"], ["import", str(tmp_path / "e")]):
            assert f"cannot write {disk}" in run(*verb, "-s", disk / "s", status=1)
        assert f"cannot write {disk}" in run(
            "export", "1", disk / "e", "-s", disk / "s", "-n", SYSTEM, status=1
        )
        assert len(asked("verify", "-s", disk / "s")[SYSTEM]["whole"]) == 3
