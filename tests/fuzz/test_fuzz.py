"""A slice of `make fuzz-format`; what it found, one by one; and that its judges can find something."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutline.errors import Corrupt, NotAStore, StorageError
from cutline.storage import CheckpointRow, memory_store, open_store, read_image, store
from cutline.storage import blobs as blobs_module
from cutline.storage.importing import import_cut, open_export
from cutline.storage.repair import rebuild_catalog
from tests.fuzz import judge
from tests.fuzz.__main__ import a_base, one
from tests.fuzz.base import FILE, Base, state_of
from tests.fuzz.bomb import EXPLODED, bombs
from tests.storage.cast import SYSTEM, Scene

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> Iterator[Base]:
    with a_base() as base:
        yield base


@pytest.fixture
def base(made: Base) -> Base:
    """With a damaged store that is not damaged yet: what seed 0 of no damage leaves."""
    place = made.place / "damaged"
    subprocess.run(["rm", "-rf", str(place)], check=True)
    place.mkdir()
    subprocess.run(["cp", "-r", str(made.closed), str(made.place / FILE), str(place)], check=True)
    return made


def test_two_seconds() -> None:
    """In a process of its own: it may have so much memory and no more."""
    seed = str(random.randrange(10**6))
    command = [sys.executable, "-m", "tests.fuzz", "--duration", "2", "--seed", seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    count, last = done.stdout.splitlines()[-1].split(" damages, ")
    assert int(count) > 0 and last == "0 wrong"


def test_a_seed_is_the_same_damage_again(made: Base) -> None:
    def again(seed: str) -> tuple[list[str], int]:
        done, refusals = one(made, seed)
        return done, len(refusals)

    for number in range(5):
        assert again(f"same/{number}") == again(f"same/{number}")


@pytest.mark.parametrize("number", range(3))
def test_nothing_is_wrong_with_what_is_not_damaged(base: Base, number: int) -> None:
    top = base.place / "damaged" / "closed"
    refused = judge.judge_store(top, base, random.Random(number), single=True)
    # A catalog that is whole is not made again.
    assert [text for text in refused if not text.startswith("rebuilding: the catalog of")] == []
    assert judge.judge_export(base.place / "damaged" / FILE, base) == []


def test_a_wrong_state_and_an_unpickled_bomb_are_seen(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    top = base.place / "damaged" / "closed"

    def other(opened: store.Store, row: object) -> dict[str, tuple[str]]:
        return {"a": ("other",)}

    with monkeypatch.context() as patched:
        patched.setattr(judge, "state_of", other)
        with pytest.raises(judge.Wrong, match="something else"):
            judge.judge_store(top, base, random.Random(1), single=True)

    def careless(opened: store.Store, row: CheckpointRow) -> object:
        pickle.loads(bombs()[0])
        return state_of(opened, row)

    monkeypatch.setattr(judge, "state_of", careless)
    with pytest.raises(judge.Wrong, match="unpickled"):
        judge.judge_store(top, base, random.Random(1), single=True)
    EXPLODED.clear()


def test_an_older_cut_in_silence_is_seen(base: Base) -> None:
    top = base.place / "damaged" / "closed"
    (top / "catalog.sqlite").write_bytes((base.earlier / "catalog.sqlite").read_bytes())
    # The records tell; without them nobody could, and that is two things damaged.
    judge.judge_store(top, base, random.Random(1), single=True)
    for record in top.rglob("*.commit"):
        record.unlink()
    with pytest.raises(judge.Wrong, match="nothing was said|nothing wrong"):
        judge.judge_store(top, base, random.Random(1), single=True)


# What it found


def test_a_marker_that_is_a_pipe_is_not_waited_for(base: Base) -> None:
    top = base.place / "damaged" / "closed"
    (top / "cutline.json").unlink()
    os.mkfifo(top / "cutline.json")
    with pytest.raises(Corrupt, match="cutline.json is missing"):
        open_store(top, create=True)
    assert "written anew" in str(rebuild_catalog(top, force=True).left_out)
    with open_store(top, create=False) as opened:
        assert state_of(opened, opened.newest_whole(SYSTEM)) in base.states.values()


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 50_000, '{"format": 1, "digest": "", "n": 1e999}'])
def test_a_marker_that_no_reader_follows(base: Base, text: str) -> None:
    top = base.place / "damaged" / "closed"
    (top / "cutline.json").write_text(text)
    with pytest.raises(Corrupt, match="cutline.json is damaged"):
        open_store(top, create=False)


def test_an_export_that_is_a_pipe_is_not_waited_for(base: Base) -> None:
    top = base.place / "damaged" / FILE
    top.unlink()
    os.mkfifo(top)
    with memory_store() as target, pytest.raises(NotAStore, match="neither a file nor a folder"):
        import_cut(target, open_export(top))


def test_a_manifest_that_has_grown_is_not_read_whole(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size would not fit into any memory, and what it says is not believed."""
    monkeypatch.setattr(blobs_module, "DOCUMENT_MAX", 100_000)
    top = base.place / "damaged" / "closed"
    for path in top.rglob("manifest-*"):
        os.truncate(path, 1 << 44)
    with open_store(top, create=False) as opened:
        with pytest.raises(Corrupt, match="more than 100,000 bytes"):
            opened.newest_whole(SYSTEM)
        assert len(opened.verify(SYSTEM).whole) == 0


def test_a_manifest_that_could_not_be_read_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_store() as opened:
        scene = Scene.new(opened)
        row = scene.cut({"a": {"x": "1"}})
        monkeypatch.setattr(store, "DOCUMENT_MAX", 100)
        with pytest.raises(StorageError, match="would have"):
            scene.cut({"a": {"x": "2"}})
        assert opened.newest_whole(SYSTEM) == row
        assert read_image(opened.blobs, scene.refs["a"])
