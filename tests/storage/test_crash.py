"""A crash or an error at every operation of a commit: the old cut or the new one, whole, and on it goes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cutline.errors import FateDecided, StorageError, StoreFull
from cutline.storage import open_store
from tests.storage.cast import SYSTEM, Scene, states
from tests.storage.crasher import NEW, OLD
from tests.storage.faults import Strike, disk_full, ignore, io_error, make_faulty

ROOT = Path(__file__).parents[2]


def crasher(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.storage.crasher", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(running: subprocess.Popen[str]) -> None:
    with running:
        running.communicate()
    assert running.returncode == 0


def make_base(folder: Path) -> None:
    with open_store(folder, create=True) as store:
        scene = Scene.new(store)
        scene.cut({**OLD, "a": {"x": "oldest", "same": "same"}})
        scene.cut(OLD)


def check_after_a_crash(folder: Path) -> str:
    """Which cut is there; raises if it is neither of the two, whole, or if the next one does not work."""
    with open_store(folder, create=True) as store:
        row = store.newest_whole(SYSTEM)
        found = states(store, row)
        assert found in (OLD, NEW)
        scene = Scene.resumed(store, now=20_000.0)
        assert store.catalog.undecided(scene.lineage) == []
        final = {"a": {"x": "final", "same": "same"}}
        assert states(store, scene.cut(final)) == final
        report = store.verify(SYSTEM)
        assert report.faults == []
        store.sweep(scene.lease, 4.0, keep=1)
        listed = store.catalog.checkpoints(SYSTEM)
        assert [states(store, row) for row in listed] == [final]
        living = {key for row in listed for key in row.blobs} | {f"{listed[0].manifest_key}.commit"}
        assert set(store.blobs.list()) == living
        assert list(store.blobs.unfinished()) == []
    return "new" if found == NEW else "old"


def test_dying_at_every_operation_of_a_cut(tmp_path: Path) -> None:
    make_base(tmp_path / "base")
    finish(crasher("cuts", str(tmp_path)))
    deaths = sorted((int(path.name), path) for path in tmp_path.iterdir() if path.name != "base")
    found = [check_after_a_crash(path) for _, path in deaths]
    assert len(found) > 30
    # Old up to the row, new from then on; never back.
    assert found == ["old"] * found.count("old") + ["new"] * found.count("new")
    assert 15 < found.count("old") < len(found)


def test_dying_while_a_store_is_made(tmp_path: Path) -> None:
    finish(crasher("makes", str(tmp_path)))
    attempts = list(tmp_path.iterdir())
    assert len(attempts) > 6
    for folder in attempts:
        with open_store(folder, create=True) as store:
            scene = Scene.new(store)
            assert states(store, scene.cut(OLD)) == OLD
        with open_store(folder, create=True) as store:
            assert states(store, store.newest_whole(SYSTEM)) == OLD


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """SIGKILL while cuts are taken and old ones removed; what was reported is there."""
    reported = 0
    for number in range(6):
        running = crasher("forever", str(tmp_path / "store"))
        with running:
            assert running.stdout is not None
            for _ in range(1 + 3 * number):
                reported = int(running.stdout.readline())
            running.kill()
            lines = running.stdout.read().split("\n")
            reported = max([reported, *(int(line) for line in lines[:-1])])
        with open_store(tmp_path / "store", create=True) as store:
            found = states(store, store.newest_whole(SYSTEM))
            assert found["a"] == found["b"]
            assert int(found["a"]["n"][: len(found["a"]["n"]) // 1000]) in (reported, reported + 1)
            assert store.verify(SYSTEM).faults == []
            assert not any(".tmp" in key or "/." in key for key in store.blobs.list())


@pytest.mark.parametrize("strike", [io_error, disk_full])
def test_an_error_at_every_operation_of_a_cut(tmp_path: Path, strike: Strike) -> None:
    """The process lives on: the cut is there or refused, never half, and the next one works at once."""
    make_base(tmp_path / "base")
    at = outcomes = 0
    while True:
        at += 1
        shutil.copytree(tmp_path / "base", tmp_path / str(at))
        with open_store(tmp_path / str(at), create=False) as store:
            scene = Scene.resumed(store)
            counter = make_faulty(store, at, strike)
            try:
                checkpoint = scene.begin(False, None, list(NEW))
                refs = {name: scene.write(checkpoint, name, NEW[name], False) for name in NEW}
                scene.commit(checkpoint, NEW, refs)
            except StorageError as error:
                assert strike is io_error or isinstance(error, StoreFull)
                outcomes += 1
                # Also one whose beginning was answered by an error.
                for begun in store.catalog.undecided(scene.lineage):
                    store.catalog.abort(scene.lease, scene.lineage, begun, str(error), 3.0)
                assert states(store, store.newest_whole(SYSTEM)) == OLD
            else:
                assert states(store, store.newest_whole(SYSTEM)) == NEW
            done = at > counter.count
            counter.at = 0
            final = {"a": {"x": "final", "same": "same"}, "b": {"y": "final"}}
            assert states(store, scene.cut(final)) == final
        if done:
            break
    assert outcomes > 15


def test_a_lost_response_is_no_failure(tmp_path: Path) -> None:
    make_base(tmp_path)
    with open_store(tmp_path, create=False) as store:
        scene = Scene.resumed(store)
        checkpoint = scene.begin(False, None, list(NEW))
        refs = {name: scene.write(checkpoint, name, NEW[name], False) for name in NEW}
        manifest = scene.manifest(checkpoint, refs)

        def after_the_commit(name: str) -> None:
            if name == "after its commit":
                counter.strike = ignore
                io_error(name)

        counter = make_faulty(store, 0, after_the_commit)
        counter.every = True
        row = store.commit_cut(scene.lease, manifest, {}, 2.0)
        assert counter.strike is ignore
        assert (row.fate, row.checkpoint) == ("committed", checkpoint)
        # The caller may not have heard it either, and asks again.
        again = store.commit_cut(scene.lease, manifest, {}, 2.0)
        assert again == row
        other = scene.manifest(checkpoint, refs, label="other")
        with pytest.raises(FateDecided):
            store.commit_cut(scene.lease, other, {}, 2.0)


def contenders(folder: Path, number: int) -> tuple[list[subprocess.Popen[str]], list[str]]:
    running = [crasher("holds", str(folder), "1000") for _ in range(number)]
    answers = [""] * number

    def listen(index: int) -> None:
        stdout = running[index].stdout
        assert stdout is not None
        answers[index] = stdout.readline().strip()

    threads = [threading.Thread(target=listen, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return running, answers


def test_one_owner_and_his_heir(tmp_path: Path) -> None:
    """Processes contend for a store that none of them has made yet; the winner dies; the next takes over."""
    running, answers = contenders(tmp_path / "store", 4)
    (winner,) = (process for process, answer in zip(running, answers, strict=True) if answer == "holds 1")
    assert sorted(answers) == ["holds 1"] + [f"in use {winner.pid}"] * 3
    winner.kill()
    # Not waited for: he is dead and not yet buried.
    heirs, answers = contenders(tmp_path / "store", 1)
    assert answers == ["holds 2"]
    for process in (*running, *heirs):
        with process:
            assert process.stdin is not None
            process.stdin.close()
