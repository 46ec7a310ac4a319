"""export and import, as they are called on the command line."""

from __future__ import annotations

from pathlib import Path

from cutline.storage import open_store
from cutline.storage.importing import claimed_by
from tests.coordinator.test_cli_store import asked, folder, place, rows, run
from tests.storage.cast import SYSTEM, states

__all__ = ("folder",)


def test_out_and_in_again(folder: Path, tmp_path: Path) -> None:
    found = asked("export", "kept", tmp_path / "file", "-s", folder, "-n", SYSTEM)
    row = rows(folder)[1]
    assert found["checkpoint"] == place(row) and found["bytes"] == (tmp_path / "file").stat().st_size
    asked("export", "2", tmp_path / "dir", "--folder", "-s", folder, "-n", SYSTEM)
    assert (tmp_path / "dir" / "cutline-export").is_file()
    for number, name in enumerate(("file", "dir")):
        done = asked("import", tmp_path / name, "-s", tmp_path / "new", "-n", f"copy {number}")
        assert done["system"] == f"copy {number}" and done["export"] and not done["claimed"]
        with open_store(tmp_path / "new", create=False) as store, open_store(folder, create=False) as source:
            found_row = store.catalog.find(f"copy {number}", "kept")
            assert states(store, found_row) == states(source, row)
    asked("verify", "-s", tmp_path / "new")
    assert "is there already" in run("export", "1", tmp_path / "file", "-s", folder, "-n", SYSTEM, status=1)
    assert "import-" in run("tree", "-s", tmp_path / "new")


def test_a_claim(folder: Path, tmp_path: Path) -> None:
    run("export", "newest", tmp_path / "e", "-s", folder, "-n", SYSTEM)
    text = run("import", tmp_path / "e", "-s", tmp_path / "new", "--claim")
    assert "the source was not told" in text and "--allow` lets them run here" in text
    done = asked("import", tmp_path / "e", "-s", tmp_path / "new", "--claim", "--source", folder)
    assert done["claimed"] and done["told"] == str(folder)
    # Told of it later: it is the same copy.
    assert [place(row) for row in rows(tmp_path / "new")] == [done["checkpoint"]]
    with open_store(folder, create=False) as store:
        assert claimed_by(store, rows(folder)[0].lineage) == done["export"]
    run("import", tmp_path / "e", "-s", tmp_path / "new", "--source", folder, status=2)


def test_what_is_refused_makes_nothing(folder: Path, tmp_path: Path) -> None:
    assert "no export" in run("import", tmp_path / "nothing", "-s", tmp_path / "new", status=1)
    assert not (tmp_path / "new").exists()
    assert "no checkpoint '77'" in run("export", "77", tmp_path / "e", "-s", folder, "-n", SYSTEM, status=1)
    assert not (tmp_path / "e").exists()
