"""Participants, and cuts at rest, whose Maps are read as they are asked for; retention beside them."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import Corrupt, RefusedOption
from cutline.participant.unread import Unread
from tests.coordinator.test_cli_store import run
from tests.system.living import again, kill

NAME, ENTRIES = "lazy", 60_000
# Of two extents, or what is read first would be all.
TABLE = {f"k{n}": (n, "some more text") for n in range(ENTRIES)}


def is_unread(seen: Any) -> bool:
    return isinstance(seen._items, Unread)


@cutline.actor(lazy_maps=True)
class Keeper:
    """Keeps a large table."""

    def __init__(self) -> None:
        self.seen: cutline.Map[str, Any] = cutline.Map(TABLE)
        self.few: cutline.Map[str, int] = cutline.Map(a=1)

    def put(self, key: str, value: Any) -> bool:
        self.seen[key] = value
        return is_unread(self.seen)

    def remove(self, key: str) -> None:
        del self.seen[key]

    def look(self, *keys: str) -> tuple[list[Any], int, bool]:
        return [self.seen.get(key) for key in keys], len(self.seen), is_unread(self.seen)

    def all(self) -> list[Any]:
        return list(self.seen.items())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one checkpoint, labelled."""
    folder = tmp_path_factory.mktemp("lazy") / "store"
    with cutline.start(folder, name=NAME, interval=None) as system:
        keeper = system.spawn("keeper", Keeper)
        assert cutline.get(keeper.look.remote("k1", "x")) == ([TABLE["k1"], None], ENTRIES, False)
        system.savepoint("early")
    return folder


@pytest.fixture
def store(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "store"))


def packs(store: Path) -> set[Path]:
    return set((store / "blobs").rglob("*.pack"))


def test_participants_read_what_they_are_asked_for_through_captures_kills_and_retention(store: Path) -> None:
    wanted: dict[str, Any] = dict(TABLE)
    with cutline.start(store, name=NAME, interval=None, keep=1, restore="early") as system:
        keeper = system.spawn("keeper", Keeper)
        for turn in range(4):
            assert again(lambda: cutline.get(keeper.put.remote(f"k{turn}", -turn)))  # noqa: B023
            wanted[f"k{turn}"] = -turn
            again(lambda: cutline.get(keeper.remove.remote(f"k{ENTRIES - 1 - turn}")))  # noqa: B023
            del wanted[f"k{ENTRIES - 1 - turn}"]
            system.checkpoint()
            if turn == 1:
                kill(system, "keeper")
            assert again(lambda: cutline.get(keeper.look.remote("k3", "x"))) == (
                [wanted["k3"], None],
                len(wanted),
                True,
            )
        # A savepoint is written whole: what is unread, as it is stored.
        system.savepoint("late")
        assert again(lambda: cutline.get(keeper.look.remote("k3"))) == ([wanted["k3"]], len(wanted), True)
        assert again(lambda: cutline.get(keeper.all.remote())) == list(wanted.items())
    run("gc", "-s", store, "-n", NAME, "--keep-last", "1")
    for lazy in (False, True):
        seen = cutline.load("late", store, name=NAME, lazy_maps=lazy)["keeper"].seen
        assert is_unread(seen) == lazy and list(seen.items()) == list(wanted.items())


def test_a_cut_at_rest_is_read_later_than_its_store_has_it(store: Path) -> None:
    cut = cutline.load("early", store, name=NAME, lazy_maps=True)
    keeper = cut["keeper"]
    assert is_unread(keeper.seen) and not is_unread(keeper.few)
    assert keeper.look("k5", "x") == ([TABLE["k5"], None], ENTRIES, True)
    # Whoever removes it, and all else: a collector does no more than that.
    shutil.rmtree(store)
    assert keeper.look("k59999") == ([TABLE["k59999"]], ENTRIES, True)
    assert keeper.all() == list(TABLE.items())


def test_a_fork_of_what_was_read_in_part_has_all_of_it(store: Path) -> None:
    cut = cutline.load("early", store, name=NAME, lazy_maps=True)
    cut["keeper"].put("k5", "five")
    cut["keeper"].remove("k6")
    forked = cut.fork("forked")
    assert forked.changed == ("keeper",)
    target = store.parent / "out.export"
    run("export", "forked", "-s", store, "-n", NAME, target)
    other = store.parent / "other"
    with cutline.start(other, name="else", interval=None):
        pass
    run("import", target, "-s", other, "-n", NAME)
    for place in (store, other):
        keeper = cutline.load("forked", place, name=NAME, lazy_maps=True)["keeper"]
        assert keeper.look("k5", "k6", "k7") == (["five", None, TABLE["k7"]], ENTRIES - 1, True)
        assert list(keeper.seen)[:8] == [f"k{n}" for n in (0, 1, 2, 3, 4, 5, 7, 8)]


def test_damage_is_told_by_whom_and_where(store: Path) -> None:
    cut = cutline.load("early", store, name=NAME, lazy_maps=True)
    pack = min(path for path in packs(store) if "keeper" in path.name)
    content = bytearray(pack.read_bytes())
    content[100:-100] = bytes(len(content) - 200)
    # In the file that is held open, as a disk does it.
    with open(pack, "r+b") as file:
        file.write(content)
    with pytest.raises(Corrupt, match=r"participant 'keeper': self\.seen: .* checkpoint 2 wrote") as raised:
        cut["keeper"].look("k5")
    assert raised.value.facts["participant"] == "keeper" and raised.value.facts["path"] == "self.seen"
    with pytest.raises(Corrupt):
        cutline.load("early", store, name=NAME, lazy_maps=True)
    del cut
    gc.collect()


def test_it_is_said_with_true_or_false() -> None:
    with pytest.raises(RefusedOption, match="lazy_maps"):
        cutline.actor(lazy_maps="yes")
