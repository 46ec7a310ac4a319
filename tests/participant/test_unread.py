"""A restored Map reads what it is asked for: how much that is, counted, and what happens to the rest."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutline import Log, Map
from cutline.errors import CannotCapture, Corrupt
from cutline.participant import key_index
from cutline.participant.capture import Captured, Capturer
from cutline.participant.key_index import Indexed
from cutline.participant.restore import restore
from cutline.participant.unread import Unread
from cutline.participant.unshelving import left_unread
from cutline.storage import directory
from cutline.storage.blobs import Held, pack_key
from cutline.storage.directory import DirectoryBlobs
from cutline.storage.image import ImageRef, read_image, write_image
from tests.participant.maps_in_a_row import Colour, Open, Point

ENTRIES = 40_000
# Of those that make a pack of many extents.
MANY = 200_000


class Counting(DirectoryBlobs):
    """Counts the bytes that are read; `is_far`: cannot hold anything."""

    is_far = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_bytes = 0

    def read_into(self, key: str, start: int, target: memoryview) -> int:
        self.read_bytes += target.nbytes
        return super().read_into(key, start, target)

    def read_held(self, fd: int, start: int, target: memoryview, path: str) -> int:
        self.read_bytes += target.nbytes
        return super().read_held(fd, start, target, path)

    def hold(self, key: str) -> Held | None:
        return None if self.is_far else super().hold(key)


class Agent(Open):
    """Has Maps."""

    seen: Any
    few: Any


class Stored:
    """The checkpoints of one agent in a folder."""

    def __init__(self, folder: Path, agent: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.blobs, self.agent, self.number = Counting(folder), agent, 0
        self.capturer = Capturer("p")
        self.refs: dict[int, ImageRef] = {}

    def take(self, full: bool = False, most: int = 20) -> Captured:
        before = None if full or not self.number else self.number
        self.number += 1
        captured = self.capturer.capture(self.agent, number=self.number, against=before)
        self.refs[self.number] = write_image(
            self.blobs,
            pack_key("s", "1f", 1, self.number, "p", 1),
            header={"checkpoint": self.number},
            sections={},
            pieces=captured.pieces,
            regions=captured.regions,
            parent=None if before is None else self.refs[before],
            most=most,
        )
        self.capturer.committed(self.number)
        return captured

    def restore(self, later: bool = True, number: int | None = None) -> Any:
        self.blobs.read_bytes = 0
        image = read_image(self.blobs, self.refs[number or self.number], left=left_unread if later else None)
        self.known = Capturer("p").expecting()
        return restore(
            image.pieces,
            image.regions,
            participant="p",
            header=image.header,
            restored=self.known,
            unread=image.unread,
        )

    def restart(self, later: bool = True) -> Any:
        self.agent = self.restore(later)
        self.capturer = Capturer("p")
        self.capturer.adopt(self.number, self.agent, self.known)
        return self.agent

    def pack(self, number: int | None = None) -> Path:
        return Path(self.blobs.root, self.refs[number or self.number].key)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many entries were made of blocks that are read by key."""
    counts = [0]
    true = Indexed._loaded

    def loaded(self: Indexed, what: str, start: int, stop: int) -> Any:
        made = true(self, what, start, stop)
        counts[0] += len(made) if type(made) is dict else 0
        return made

    monkeypatch.setattr(Indexed, "_loaded", loaded)
    yield counts


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    chance = random.Random(1)
    return {f"key {number}": (chance.random(), f"value {number}") for number in range(ENTRIES)}


@pytest.fixture(scope="module")
def noise() -> dict[str, bytes]:
    """Nothing to compress: what is where in a file is known."""
    chance = random.Random(2)
    return {f"key {number}": chance.randbytes(40) for number in range(MANY)}


def is_unread(seen: Any) -> bool:
    return isinstance(seen._items, Unread)


def test_one_key_of_many_costs_one_block(tmp_path: Path, noise: dict[str, bytes], decoded: list[int]) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(noise), few=Map(a=1)))
    stored.take()
    size = stored.pack().stat().st_size
    assert not is_unread(stored.restore().few)
    seen = stored.restore().seen
    # The ends of the pack, in extents of a mebibyte; all else is asked for.
    assert len(seen) == MANY and decoded == [0] and stored.blobs.read_bytes <= 4 << 20
    before = stored.blobs.read_bytes
    assert seen["key 77777"] == noise["key 77777"] and decoded == [4096]
    assert stored.blobs.read_bytes - before <= 4 << 20 < size / 2.5
    # Its neighbours are there, and so is their bucket. Read once, it is the same object.
    before = stored.blobs.read_bytes
    assert seen["key 77777"] is seen["key 77777"] and stored.blobs.read_bytes == before
    assert "key x" not in seen and seen.get(5) is None and seen.get(b"key 1", b"3") == b"3"
    # What is not there may cost a block in forty.
    assert decoded[0] <= 4 * 4096 and is_unread(seen)
    assert dict(seen) == noise and list(seen) == list(noise) and not is_unread(seen)
    assert decoded[0] == MANY


def test_what_is_unread_is_referred_to_and_not_written_again(
    tmp_path: Path, table: dict[str, Any], decoded: list[int]
) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), few=Map(a=1)))
    stored.take()
    wanted = dict(table)
    for turn in range(12):
        agent = stored.restart()
        for key, value in [(f"key {turn}", turn), (f"new {turn}", "x")]:
            agent.seen[key] = wanted[key] = value
        del agent.seen[f"key {ENTRIES - 1 - turn}"], wanted[f"key {ENTRIES - 1 - turn}"]
        decoded[0] = 0
        captured = stored.take(most=3)
        assert is_unread(agent.seen) and decoded == [0]
        assert captured.changed_bytes < 10_000 and captured.containers["entries"] == len(wanted) + 1
        # Folded, and the packs in between are gone.
        living = {*stored.refs[stored.number].chain}
        for key in list(stored.blobs.list()):
            if key not in living:
                stored.blobs.delete(key)
    assert len(stored.refs[stored.number].chain) <= 4
    assert list(stored.restore().seen.items()) == list(wanted.items()) == list(agent.seen.items())
    assert list(stored.restore(later=False).seen.items()) == list(wanted.items())


def test_what_retention_removes_can_still_be_read(tmp_path: Path, table: dict[str, Any]) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), few=Map(a=1)))
    stored.take()
    agent = stored.restore()
    assert agent.seen["key 5"] == table["key 5"]
    for key in list(stored.blobs.list()):
        stored.blobs.delete(key)
    assert not list(stored.blobs.list())
    assert agent.seen["key 30000"] == table["key 30000"] and is_unread(agent.seen)
    assert agent.seen == table


def test_where_nothing_can_be_held_the_bytes_are_read_with_the_image(
    tmp_path: Path, table: dict[str, Any], decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), few=Map(a=1)))
    stored.take()
    stored.blobs.is_far = True
    agent = stored.restore()
    for key in list(stored.blobs.list()):
        stored.blobs.delete(key)
    assert agent.seen["key 30000"] == table["key 30000"] and 0 < decoded[0] <= 4096
    assert agent.seen == table


def test_few_files_are_held_at_once_and_closed_with_their_maps(
    tmp_path: Path, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), few=Map(a=1)))
    stored.take()
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(directory, "HELD", len(directory._HeldFile.living) + 3)
    agents = [stored.restore() for _ in range(5)]
    assert len(os.listdir("/dev/fd")) == before + 3
    # The others have the bytes.
    reads = [(is_unread(agent.seen), agent.seen["key 9"]) for agent in agents]
    assert reads == [(True, table["key 9"])] * 5
    lengths = [len(list(agent.seen)) for agent in agents]
    assert lengths == [ENTRIES] * 5
    gc.collect()
    assert len(os.listdir("/dev/fd")) == before
    agents = [stored.restore() for _ in range(2)]
    assert len(os.listdir("/dev/fd")) == before + 2
    del agents, stored.known
    gc.collect()
    assert len(os.listdir("/dev/fd")) == before


def damage(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        was = file.read(1)
        file.seek(at)
        file.write(bytes([was[0] ^ 1]))


def test_a_damaged_block_says_whose_and_which_at_the_first_read(
    tmp_path: Path, noise: dict[str, bytes]
) -> None:
    table = noise
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), few=Map(a=1)))
    stored.take()
    size = stored.pack().stat().st_size
    agent = stored.restore()
    damage(stored.pack(), size // 2)
    assert agent.seen["key 5"] == table["key 5"]
    blocks = -(-MANY // 4096)
    wrong = rf"participant 'p': self\.seen: block \d+ of {blocks} of the entries that checkpoint 1 wrote"
    for _ in range(2):
        with pytest.raises(Corrupt, match=wrong) as raised:
            agent.seen[f"key {MANY // 2 - 1000}"]
        assert "for checkpoint 1: stored object" in str(raised.value)
        facts = raised.value.facts
        assert (facts["participant"], facts["path"], facts["checkpoint"]) == ("p", "self.seen", 1)
        assert facts["key"] == stored.refs[1].key and facts["part"].startswith("block ")
    assert pickle.loads(pickle.dumps(raised.value)).facts == facts
    # It is neither there nor missing.
    for act in (lambda: agent.seen.get(f"key {MANY // 2 - 1000}"), lambda: list(agent.seen)):
        with pytest.raises(Corrupt, match=wrong):
            act()
    assert agent.seen["key 7"] == table["key 7"]
    # A delta refers to it; of a whole one it would be a part.
    stored.agent, stored.capturer = agent, Capturer("p")
    stored.capturer.adopt(1, agent, stored.known)
    agent.seen["key 7"] = 1
    stored.take()
    with pytest.raises(CannotCapture, match="had to be read"):
        stored.take(full=True)


def test_a_damaged_index_is_told_at_the_restore(tmp_path: Path, noise: dict[str, bytes]) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(noise), few=Map(a=1)))
    stored.take()
    pack = stored.pack().read_bytes()
    damage(stored.pack(), pack.index(key_index._MAGIC) - 100)
    with pytest.raises(Corrupt, match="damaged extent"):
        stored.restore()


def test_maps_of_other_things_are_read_whole(tmp_path: Path) -> None:
    log: Log[Any] = Log(range(ENTRIES // 4))
    tables: dict[str, Any] = {
        "odd": Map({(number, "x"): number for number in range(10_000)}),
        "points": Map({number: Point(number, "p") for number in range(10_000)}),
        "nested": Map({**{number: number for number in range(10_000)}, "log": log}),
        "huge": Map({number << 60: number for number in range(10_000)}),
        "half": Map({**{f"k{number}": number for number in range(10_000)}, "\ud800": 1}),
    }
    stored = Stored(tmp_path / "s", Agent(log=log, **tables))
    stored.take()
    agent = stored.restore()
    for name, seen in tables.items():
        assert not is_unread(getattr(agent, name)), name
        assert list(getattr(agent, name).items()) == list(seen.items()) or name == "points"
    assert agent.nested["log"] is agent.log and list(agent.log) == list(log)
    assert [point.x for point in agent.points.values()] == list(range(10_000))


@pytest.mark.parametrize("odd", ((1, "x"), Colour.RED, 7 << 70, frozenset((1, 2)), 2.5))
def test_a_removed_key_of_another_kind_is_removed(tmp_path: Path, odd: Any) -> None:
    content: dict[Any, Any] = {number: number for number in range(2 * ENTRIES)}
    stored = Stored(tmp_path / "s", Agent(seen=Map(content)))
    stored.take()
    for there in (stored.agent.seen, content):
        # No checkpoint has ever had it. With enough of plain ones beside it to be read by key.
        there[odd] = 0
        del there[odd], there[1]
        there.update({number: -number for number in range(2, ENTRIES // 2)})
    stored.take()
    seen = stored.restore().seen
    assert odd not in seen and 1 not in seen and seen[7] == -7
    assert dict(seen) == content


def test_values_that_may_change_are_there_and_the_others_are_read_later(
    tmp_path: Path, decoded: list[int]
) -> None:
    shared = [1]
    table: dict[str, Any] = {f"key {number}": number for number in range(40_000)}
    table["key 30000"] = table["key 31000"] = shared
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), shared=shared))
    stored.take()
    agent = stored.restart()
    assert decoded == [0] and agent.seen["key 30000"] is agent.shared is agent.seen["key 31000"]
    agent.seen["key 30000"].append(2)
    stored.take()
    again = stored.restart()
    assert again.seen["key 31000"] == [1, 2] and again.seen["key 3"] == 3 and is_unread(again.seen)
    del again.seen["key 30000"]
    stored.take()
    last = stored.restart()
    assert "key 30000" not in last.seen and last.seen["key 31000"] is last.shared == [1, 2]
    assert [*last.seen.values()].count([1, 2]) == 1 and len(last.seen) == 39_999


def test_keys_of_every_plain_kind_are_found(tmp_path: Path, decoded: list[int]) -> None:
    table: dict[Any, Any] = {}
    for number in range(10_000):
        table.update({number: "int", f"k{number}": "str", f"k{number}".encode(): "bytes", -number - 1: "int"})
    table.update({None: "none", (1 << 63) - 1: "most", -(1 << 63): "least", "": "", "\xe9\U0001f600": "u"})
    stored = Stored(tmp_path / "s", Agent(seen=Map(table)))
    stored.take()
    for key, value in [*list(table.items())[::2500], *list(table.items())[-5:]]:
        seen = stored.restore().seen
        assert seen[key] == value and is_unread(seen)
    seen = stored.restore().seen
    for key in (1 << 63, "\ud800", -(1 << 63) - 1, "k10000", b""):
        assert key not in seen and is_unread(seen)
    # Equal to a key that is there, and of another type.
    assert seen[True] == "int" and is_unread(seen) and seen[7.0] == "int" and not is_unread(seen)
    with pytest.raises(TypeError):
        stored.restore().seen[[1]]
    with pytest.raises(KeyError, match="gone"):
        stored.restore().seen["gone"]


def test_copies_and_messages_have_all_of_it(tmp_path: Path, table: dict[str, Any]) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), few=Map(a=1)))
    stored.take()
    ways: list[Any] = [copy.copy, copy.deepcopy, dict, lambda seen: pickle.loads(pickle.dumps(seen)), Map]
    for way in ways:
        assert list(way(stored.restore().seen).items()) == list(table.items())
    one, other = stored.restore().seen, stored.restore().seen
    assert one == other and one == table and table == stored.restore().seen and not one != other
    assert repr(stored.restore().seen) == f"Map({table!r})" and bool(stored.restore().seen)
    with_more = stored.restore().seen | {"x": 1}
    assert len(with_more) == ENTRIES + 1 and with_more.popitem() == ("x", 1)
    emptied = stored.restore().seen
    emptied.clear()
    assert not emptied and list(emptied) == [] and "key 1" not in emptied
    large = stored.restore().seen
    large.update(dict.fromkeys(table, 0))
    assert set(large.values()) == {0} and len(large) == ENTRIES


def test_threads_may_read_one_cut(tmp_path: Path, table: dict[str, Any]) -> None:
    stored = Stored(tmp_path / "s", Agent(seen=Map(table), few=Map(a=1)))
    stored.take()
    seen = stored.restore().seen
    wrong: list[Any] = []

    def read(first: int) -> None:
        for number in range(first, ENTRIES, 997):
            if seen.get(f"key {number}") != table[f"key {number}"] or f"new {number}" in seen:
                wrong.append(number)

    readers = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert not wrong


def test_an_index_is_skipped_by_who_reads_all(tmp_path: Path) -> None:
    """Pickles in a row, as the format says, and nothing else is needed."""
    import io

    stored = Stored(tmp_path / "s", Agent(seen=Map({n: -n for n in range(10_000)})))
    captured = stored.take()
    (content,) = (bytes(p.content) for p in captured.pieces if p.name.startswith("entries:") and p.content)
    stream = io.BytesIO(content)
    whole, gone, count = pickle.load(stream)
    found: dict[int, int] = {}
    for _ in range(count):
        found.update(pickle.load(stream))
    assert (whole, gone, count) == (True, [], 3) and found == {n: -n for n in range(10_000)}
    assert stream.tell() < len(content) and content.endswith(key_index._MAGIC)
