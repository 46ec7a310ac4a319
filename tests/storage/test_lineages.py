"""Forks: each branch keeps its own, at every length, whatever happens to the other; order is never time."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutline.errors import CheckpointNotFound
from cutline.storage import CheckpointRow, open_store
from tests.storage.cast import SYSTEM, Scene, states

State = dict[str, dict[str, str]]


def items(*names: str) -> State:
    return {"agent": {str(number): name for number, name in enumerate(names)}}


def test_a_fork_and_its_origin_never_mix(tmp_path: Path) -> None:
    """LIN-1: full [a]; b on the one side, c on the other; both by deltas of the same parent."""
    with open_store(tmp_path, create=True) as store:
        main = Scene.new(store)
        origin = main.cut(items("a"))
        expected: list[tuple[CheckpointRow, State]] = [(origin, items("a"))]
        expected.append((main.cut(items("a", "b")), items("a", "b")))
        fork = main.fork(origin)
        expected.append((fork.cut(items("a", "c")), items("a", "c")))
        assert expected[1][0].checkpoint == expected[2][0].checkpoint == 2
    for more in ("", "d", "de", "def"):
        with open_store(tmp_path, create=False) as store:
            for row, state in [*expected, *reversed(expected)]:
                assert states(store, row) == state
            if more:
                lease = Scene.resumed(store, now=10_000.0 * (1 + len(more))).lease
                for index, first in ((0, "b"), (1, "c")):
                    line = store.catalog.lineages(SYSTEM)[index].lineage
                    scene = Scene(store, lease, line)
                    scene.load(store.newest_whole(SYSTEM, line))
                    state = items("a", first, *more)
                    expected.append((scene.cut(state), state))


def test_a_fork_of_a_fork_counts_on(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        main = Scene.new(store)
        rows = [main.cut(items(*"a" * n)) for n in range(1, 6)]
        fork = main.fork(rows[2])
        inner = fork.cut(items("fork"))
        assert inner.checkpoint == 4
        second = fork.fork(rows[3])
        assert second.cut(items("second")).checkpoint == 5
        third = fork.fork(inner)
        assert states(store, store.newest_whole(SYSTEM)) == items("fork")
        assert store.newest_whole(SYSTEM, third.lineage) == inner
        assert store.newest_whole(SYSTEM, main.lineage) == rows[4]


def test_newest_follows_the_lineage_not_the_clock(tmp_path: Path) -> None:
    """LIN-3: the clock goes back an hour, twelve checkpoints, two in one moment; then an old fork."""
    with open_store(tmp_path, create=True) as store:
        main = Scene.new(store)
        clock = [1e6, 1e6 + 1, 1e6 + 2, 1e6 - 3600, 1e6 - 3600, *(1e6 - 3599.999,) * 7]
        rows = [main.cut(items(f"{n}"), now=now) for n, now in enumerate(clock)]
        assert store.catalog.find(SYSTEM, "newest") == store.newest_whole(SYSTEM) == rows[-1]
        fork = main.fork(rows[1])
        newest = fork.cut(items("fork"), now=5.0)
        assert store.newest_whole(SYSTEM) == newest
        assert store.catalog.checkpoints(SYSTEM) == [*rows, newest]


def test_retention_of_one_line_never_touches_what_another_uses(tmp_path: Path) -> None:
    """RET-3: a fork from an old delta; the origin's retention runs on and on."""
    with open_store(tmp_path, create=True) as store:
        main = Scene.new(store)
        rows = [main.cut(items(*"abc"[: n + 1])) for n in range(3)]
        bare = main.fork(rows[1])
        fork = main.fork(rows[2])
        state = items("a", "b", "c", "fork")
        cut = fork.cut(state)
        for n in range(8):
            main.cut(items(*"abc", f"{n}"), full=n % 3 == 0)
            store.sweep(main.lease, 0.0, keep=2)
            assert states(store, cut) == state
            assert states(store, store.newest_whole(SYSTEM, bare.lineage)) == items("a", "b")
        assert store.verify(SYSTEM).faults == []
        # Where the bare fork stands stays; the fork with a cut of its own has let go of its origin.
        kept = [row.checkpoint for row in store.catalog.checkpoints(SYSTEM, lineage=main.lineage)]
        assert kept == [2, 10, 11]
        assert states(store, bare.cut(items("a", "b", "bare"))) == items("a", "b", "bare")
        store.sweep(main.lease, 0.0, keep=2)
        kept = [row.checkpoint for row in store.catalog.checkpoints(SYSTEM, lineage=main.lineage)]
        assert kept == [10, 11]
        with pytest.raises(CheckpointNotFound, match="retention"):
            main.fork(rows[1])


def test_a_fork_whose_cuts_are_broken_falls_back_behind_the_fork(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        main = Scene.new(store)
        rows = [main.cut(items(*"abc"[: n + 1])) for n in range(3)]
        fork = main.fork(rows[1])
        cut = fork.cut(items("x"))
        store.blobs.delete(next(key for key in cut.blobs if fork.lineage in key and key.endswith(".pack")))
        assert store.newest_whole(SYSTEM) == rows[1]
