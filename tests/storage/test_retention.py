"""Which checkpoints go, and what is left of them: exactly what the kept ones need."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.errors import CheckpointNotFound, Misuse
from cutline.storage import CheckpointRow, LineageRow, Store, open_store
from cutline.storage.catalog import Fate
from cutline.storage.retention import Policy, expendable, stays
from tests.storage.cast import SYSTEM, Scene, states


def line(name: str = "l", origin: tuple[str, int] | None = None, upto: int = 100) -> LineageRow:
    return LineageRow(name, "s", 1, origin, 0, upto, 1)


def row(
    checkpoint: int,
    fate: Fate = "committed",
    *,
    lineage: str = "l",
    label: str | None = None,
    parent: tuple[str, int] | None = None,
) -> CheckpointRow:
    return CheckpointRow("s", lineage, checkpoint, "full", label, fate, 0.0, 0.0, 0, parent)


def gone(rows: list[CheckpointRow], keep: int, broken: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
    found = expendable([line()], rows, Policy(keep), now=0.0, broken={("l", number) for number in broken})
    return sorted(number for _, number in found)


def test_keep_last() -> None:
    assert gone([row(n) for n in range(1, 15)], 10) == [1, 2, 3, 4]
    assert gone([row(n) for n in range(1, 5)], 10) == []
    assert gone([row(n) for n in range(1, 5)], 0) == [1, 2, 3]


def test_labels_are_kept_and_do_not_count() -> None:
    rows = [row(1, label="a"), row(2), row(3), row(4, label="b"), row(5, label="c")]
    assert gone(rows, 1) == [2]


def test_aborted_ones_do_not_count() -> None:
    rows = [row(1), row(2), *(row(n, "aborted") for n in range(3, 50))]
    assert gone(rows, 2) == []


def test_what_is_under_way_keeps_its_base() -> None:
    rows = [row(1), row(2), row(3), row(4, "begun", parent=("l", 1)), row(5)]
    assert gone(rows, 1) == [2, 3]


def test_the_newest_whole_one_is_kept() -> None:
    rows = [row(n) for n in range(1, 7)]
    assert gone(rows, 2, {3, 4, 5, 6}) == [1, 3, 4]


def test_where_a_line_forked_off_is_kept_until_it_has_a_cut() -> None:
    rows = [row(n) for n in range(1, 5)]
    lines = [line(), line("f", ("l", 2))]
    assert expendable(lines, rows, Policy(1), now=0.0) == {("l", 1), ("l", 3)}
    assert expendable(lines, [*rows, row(3, lineage="f")], Policy(1), now=0.0) == {
        ("l", 1),
        ("l", 2),
        ("l", 3),
    }


@given(
    st.lists(st.tuples(st.sampled_from(["committed", "aborted", "begun"]), st.booleans()), max_size=20),
    st.integers(1, 5),
)
def test_what_stays_never_goes(history: list[tuple[Fate, bool]], keep: int) -> None:
    rows = [
        row(n, fate, label=f"label{n}" if pinned else None, parent=("l", max(1, n - 2)))
        for n, (fate, pinned) in enumerate(history, 1)
    ]
    found = expendable([line()], rows, Policy(keep), now=0.0)
    assert not found & stays([line()], rows).keys()
    committed = [each for each in rows if each.fate == "committed"]
    assert len(found) == 0 or len(committed) - len(found) >= keep
    assert not committed or committed[-1].place not in found


# With blobs


def state(n: int) -> dict[str, dict[str, str]]:
    return {name: {"n": f"{n}" * 200, "same": "same"} for name in "abc"}


def needed(store: Store) -> set[str]:
    rows = store.catalog.checkpoints(SYSTEM)
    return {key for each in rows for key in (*each.blobs, f"{each.manifest_key}.commit")}


def check_all_listed(store: Store) -> None:
    report = store.verify(SYSTEM)
    assert report.faults == []
    assert report.whole == [each.place for each in store.catalog.checkpoints(SYSTEM)]


def test_deltas_keep_what_they_build_on(tmp_path: Path) -> None:
    """RET-1: full every 10, keep 2: the full's row goes, its packs stay while a kept delta needs them."""
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        for n in range(25):
            scene.cut(state(n), full=n % 10 == 0)
            store.sweep(scene.lease, 0.0, keep=2)
            check_all_listed(store)
            assert set(store.blobs.list()) == needed(store)
        assert len(store.catalog.checkpoints(SYSTEM)) == 2


def test_a_cut_is_given_up_by_hand(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        full = scene.cut(state(0), full=True)
        labelled = scene.cut(state(1), label="release")
        newest = scene.cut(state(2))
        begun = scene.begin(False, None, [])
        for place, reason in ((labelled.place, "label 'release'"), (newest.place, f"checkpoint {begun}")):
            with pytest.raises(Misuse, match=reason):
                store.delete_cut(scene.lease, *place)
        store.delete_cut(scene.lease, *full.place)
        with pytest.raises(CheckpointNotFound):
            store.delete_cut(scene.lease, *full.place)
        store.sweep(scene.lease, 0.0)
        check_all_listed(store)
        assert states(store, labelled) == state(1)
        store.catalog.unpin(scene.lease, *labelled.place, "release")
        store.delete_cut(scene.lease, *labelled.place)
        store.sweep(scene.lease, 0.0)
        assert states(store, newest) == state(2)


def test_aborts_leave_nothing_behind(tmp_path: Path) -> None:
    """RET-5: 50 checkpoints aborted at random points, late packs, restarts; the count goes on."""
    chance = random.Random(7)
    store = open_store(tmp_path, create=True)
    scene = Scene.new(store)
    for n in range(80):
        if n % 20 == 19:
            scene.begin(False, None, [])
            store.close()
            store = open_store(tmp_path, create=True)
            scene = Scene.resumed(store, now=10_000.0 * n)
        if n % 8 in (0, 3, 6):
            scene.cut(state(n), full=chance.random() < 0.2)
        else:
            checkpoint = scene.begin(False, None, list("abc"))
            names = list("abc")[: chance.randrange(4)]
            for name in names[1:]:
                scene.write(checkpoint, name, state(n)[name], False)
            store.catalog.abort(scene.lease, scene.lineage, checkpoint, "random", 1.0)
            store.sweep(scene.lease, 0.0, keep=3)
            for name in names[:1]:
                scene.write(checkpoint, name, state(n)[name], False)
    store.sweep(scene.lease, 0.0, keep=3)
    assert len(store.catalog.checkpoints(SYSTEM)) == 3
    assert set(store.blobs.list()) == needed(store)
    assert list(store.blobs.unfinished()) == []
    assert len(store.catalog.checkpoints(SYSTEM, fates=("aborted",))) <= 20
    check_all_listed(store)
    store.close()


def test_undecided_ones_and_what_might_build_on_them_stay(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        base = scene.cut(state(0))
        first, second = scene.begin(False, None, ["a"]), scene.begin(False, None, ["a"])
        packs = [scene.write(n, "a", state(n)["a"], False).key for n in (first, second)]
        foreign = "market/0123456789abcdef/1/1/a-1-00.pack"
        for key in (foreign, "other/x/1/1/a-1-00.pack", "market/odd"):
            store.blobs.create(key, [b"not ours to remove"])
        before = set(store.blobs.list())
        for _ in range(2):
            store.sweep(scene.lease, 0.0, keep=1)
            assert set(store.blobs.list()) == before
        # Aborted, but the older one, begun before that decision, is under way.
        store.catalog.abort(scene.lease, scene.lineage, second, "x", 1.0)
        store.sweep(scene.lease, 0.0, keep=1)
        assert set(store.blobs.list()) == before
        store.catalog.abort(scene.lease, scene.lineage, first, "x", 1.0)
        store.sweep(scene.lease, 0.0, keep=1)
        assert set(store.blobs.list()) == before - set(packs)
        assert states(store, base) == state(0)


def test_a_given_up_row_waits_for_its_blobs(tmp_path: Path) -> None:
    """An id begun before is still under way: the blobs of the cut given up stay, and so does its row."""
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        scene.cut(state(0), full=True)
        old = scene.begin(False, None, [])
        second = scene.cut(state(1), full=True)
        scene.cut(state(2), full=True)
        store.delete_cut(scene.lease, *second.place)
        for _ in range(2):
            swept = store.sweep(scene.lease, 0.0)
            assert (swept.given_up, swept.removed) == ([second.place], [])
        store.catalog.abort(scene.lease, scene.lineage, old, "x", 1.0)
        assert set(store.sweep(scene.lease, 0.0).removed) >= set(second.blobs)
        assert store.sweep(scene.lease, 0.0).given_up == []


def test_an_interrupted_collection_is_finished_later(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        for n in range(6):
            scene.cut(state(n), full=True)
        left = 4
        delete = store.blobs.delete

        def die_soon(key: str, *, durable: bool = False) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            delete(key, durable=durable)

        store.blobs.delete = die_soon  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            store.sweep(scene.lease, 0.0, keep=2)
        store.blobs.delete = delete  # type: ignore[method-assign]
        check_all_listed(store)
    with open_store(tmp_path, create=True) as store:
        scene = Scene.resumed(store)
        scene.cut(state(9))
        store.sweep(scene.lease, 0.0, keep=2)
        check_all_listed(store)
        assert set(store.blobs.list()) == needed(store)


def test_two_collectors_beside_writers(tmp_path: Path) -> None:
    """Cuts are taken, aborted and pinned while two threads collect; every cut listed stays whole."""
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        scene.cut(state(0))
        stop = threading.Event()
        failed: list[BaseException] = []

        def collect() -> None:
            try:
                with open_store(tmp_path, create=False) as mine:
                    while not stop.is_set():
                        mine.sweep(scene.lease, 0.0, keep=2)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=collect) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for n in range(1, 25):
                if n % 5 == 0:
                    lost = scene.begin(False, None, list("abc"))
                    scene.write(lost, "a", state(n)["a"], False)
                    store.catalog.abort(scene.lease, scene.lineage, lost, "x", 1.0)
                found = scene.cut(state(n), full=n % 7 == 0, label=f"l{n}" if n % 11 == 0 else None)
                assert states(store, found) == state(n)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failed == []
        store.sweep(scene.lease, 0.0, keep=2)
        check_all_listed(store)
        assert set(store.blobs.list()) == needed(store)
        assert [each.label for each in store.catalog.checkpoints(SYSTEM)] == ["l11", "l22", None, None]


def test_a_record_being_written_is_not_collected(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        cuts = [scene.cut(state(n), full=True) for n in range(2)]
        lost = scene.begin(True, None, [])
        store.catalog.abort(scene.lease, scene.lineage, lost, "x", 1.0)
        keys = [f"{cut.manifest_key}.commit" for cut in cuts] + [
            f"market/{scene.lineage}/1/{lost}/a-1-0.pack"
        ]
        left = []
        for key in keys:
            folder, _, name = key.rpartition("/")
            left.append(f"{folder}/.{name}.0123456789ab")
            path = tmp_path / "blobs" / left[-1]
            path.parent.mkdir(exist_ok=True)
            path.touch()
        store.blobs.delete(keys[1])
        store.sweep(scene.lease, 0.0, keep=1)
        assert list(store.blobs.unfinished()) == left[1:2]
        # The sweep has written it; what somebody began and did not end is nothing to wait for any more.
        assert keys[1] in set(store.blobs.list())
        store.sweep(scene.lease, 0.0, keep=1)
        assert list(store.blobs.unfinished()) == []


def test_a_missing_commit_record_is_written_by_the_sweep(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        scene = Scene.new(store)
        checkpoint = scene.begin(True, None, ["a"])
        refs = {"a": scene.write(checkpoint, "a", {"x": "1"}, True)}
        cut = store.commit_cut(scene.lease, scene.manifest(checkpoint, refs), {}, 2.0, record=False)
        record = f"{cut.manifest_key}.commit"
        assert record not in set(store.blobs.list())
        store.sweep(scene.lease, 0.0)
        assert record in set(store.blobs.list())
        check_all_listed(store)
