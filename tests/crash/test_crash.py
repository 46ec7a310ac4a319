"""A slice of `make test-crash`, and that its model of a disk forgets what it should."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.__main__ import a_place, caught
from tests.crash.deeds import STATES
from tests.crash.disk import KEPT, Choice, Disk, Op, Tree, chance, choices, lay_out, tree_of
from tests.crash.judge import said_in
from tests.crash.planted import PLANTED
from tests.crash.power import power
from tests.crash.process import process
from tests.crash.shim import why_not
from tests.crash.worker import Worker, a_worker

NOTHING = choices("", 0)[0]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with a_worker() as running:
        yield running


@pytest.fixture
def places(worker: Worker) -> Iterator[tuple[Path, Path]]:
    with a_place() as found:
        yield found


@pytest.mark.parametrize(("deed", "every"), [("commit", 12), ("gc", 12), ("input", 4), ("step", 6)])
def test_power_cuts(worker: Worker, places: tuple[Path, Path], deed: str, every: int) -> None:
    place, base = places
    tally = power(worker, deed, base, place, seed="a slice", lots=1, every=every)
    assert tally.lost == [] and tally.states > 15


@pytest.mark.parametrize("how", ["kill", "EIO"])
@pytest.mark.parametrize("deed", ["export", "import", "input"])
def test_a_child_that_is_struck(worker: Worker, places: tuple[Path, Path], deed: str, how: str) -> None:
    place, base = places
    tally = process(worker, deed, base, place, how, every=9)
    assert tally.lost == [] and tally.points > 4


@pytest.mark.parametrize(
    "name",
    [
        "no directory fsync",
        "row before pack",
        "synchronous=NORMAL",
        "collection by age",
        "input before it is durable",
        "step before it is durable",
    ],
)
def test_planted_bugs_are_caught(worker: Worker, places: tuple[Path, Path], name: str) -> None:
    place, base = places
    assert caught(worker, PLANTED[name], base, place, every=6).lost


def test_what_was_said_binds() -> None:
    said = said_in(["try new", "said new", "try newer", "try export file"], "old")
    assert said.newest == ["new", "newer"] and said.exported == set()
    assert said_in(["said export file"], None).exported == {"file"}
    assert set(said.newest) < set(STATES)


# The model of a disk


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "old").write_bytes(b"old")
    return Disk(tmp_path / "top")


def op(kind: str, node: int, folder: int = 0, *, name: str = "", other: str = "", data: bytes = b"") -> Op:
    return Op(kind, folder, folder, node, 0, name, other, data)


def test_the_model_forgets_what_was_not_synced(disk: Disk, tmp_path: Path) -> None:
    top = (tmp_path / "top").stat().st_ino
    old = (tmp_path / "top" / "old").stat().st_ino
    start: Tree = {"": None, "/old": b"old"}
    disk.apply(op("C", 7, top, name="new"))
    disk.apply(op("W", 7, data=b"content"))
    assert disk.after_a_power_cut(NOTHING) == start
    assert disk.after_a_power_cut(KEPT) == disk.now() == {**start, "/new": b"content"}
    disk.apply(op("F", 7))
    assert disk.after_a_power_cut(NOTHING) == start, "the bytes are there, and no name"
    disk.apply(op("F", top))
    assert disk.after_a_power_cut(NOTHING) == {**start, "/new": b"content"}
    disk.apply(op("R", 7, top, name="new", other="old"))
    assert disk.after_a_power_cut(NOTHING) == {**start, "/new": b"content"}
    assert disk.after_a_power_cut(KEPT) == {"": None, "/old": b"content"}
    # What has lost its name can still be written to.
    disk.apply(op("W", old, data=b"xx"))
    assert disk.now() == {"": None, "/old": b"content"}


def test_a_failed_sync_loses_for_good(disk: Disk, tmp_path: Path) -> None:
    old = (tmp_path / "top" / "old").stat().st_ino
    disk.apply(op("W", old, data=b"NEW"))
    disk.apply(op("E", old))
    disk.apply(op("F", old))
    assert disk.after_a_power_cut(NOTHING)["/old"] == b"old"
    assert disk.now()["/old"] == b"NEW"


def test_writes_are_torn_and_a_seed_says_how(disk: Disk, tmp_path: Path) -> None:
    old = (tmp_path / "top" / "old").stat().st_ino
    disk.apply(op("W", old, data=b"y" * 2000))
    found = {disk.after_a_power_cut(chance(str(n)))["/old"] or b"" for n in range(200)}
    assert {b"old", b"y" * 2000, bytes(2000), b"y" * 512} <= found
    assert len(found) > 20
    assert disk.after_a_power_cut(chance("7")) == disk.after_a_power_cut(chance("7"))


def test_a_tree_is_laid_out_as_it_is(tmp_path: Path) -> None:
    tree: Tree = {"": None, "/a": None, "/a/b": b"x", "/c": b""}
    lay_out(tree, tmp_path / "laid")
    assert tree_of(tmp_path / "laid") == tree
    assert os.listdir(tmp_path / "laid" / "a") == ["b"]


def test_a_choice_says_what_it_keeps() -> None:
    assert [choice.name for choice in choices("s", 1)][-1] == "by lot (s/0)"
    assert all(isinstance(choice, Choice) for choice in choices("s", 3))
