"""The file of lines: each once, whatever dies when; what people do to it; what two writers do."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutline.errors import OutputRefused, StorageError, StoreFull, StoreInUse
from cutline.storage import line_file as module
from cutline.storage.line_file import LineFile
from cutline.storage.sinks import Origin, Record
from tests.crash.disk import Choice, Disk, Op, choices, lay_out, tree_of

ANN, BOB = Origin("l1", "ann", 1), Origin("l1", "bob", 2)


def record(origin: Origin, number: int, text: str = "") -> Record:
    body = text or f"{origin.participant} {number}"
    return Record(origin, number, 1, f"{body}\n".encode())


def opened(path: Path) -> LineFile:
    file = LineFile(path)
    file.open()
    return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "lines"


def test_lines_and_numbers(path: Path) -> None:
    file = LineFile(path)
    assert file.open() == {}
    file.publish([record(ANN, 1), record(ANN, 2)])
    file.publish([record(BOB, 1), record(ANN, 3)])
    # What it has is not written again.
    file.publish([record(ANN, 2), record(ANN, 3), record(ANN, 4)])
    file.close()
    file.close()
    assert path.read_text().splitlines() == ["ann 1", "ann 2", "bob 1", "ann 3", "ann 4"]
    again = LineFile(path)
    assert again.open() == {ANN: 4, BOB: 1} and not again.news
    again.close()


def test_what_was_there_stays_and_a_line_without_an_end_is_ended(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("before\nhalf")
    file = opened(path)
    file.publish([record(ANN, 1)])
    file.close()
    assert path.read_text() == "before\nhalf\nann 1\n"


def test_one_writer_at_a_time(path: Path) -> None:
    first = opened(path)
    with pytest.raises(StoreInUse, match="one at a time"):
        opened(path)
    first.publish([record(ANN, 1)])
    first.close()
    second = opened(path)
    second.publish([record(ANN, 2)])
    second.close()


@pytest.mark.parametrize("link", ["soft", "hard"])
def test_one_writer_at_a_time_under_all_of_its_names(path: Path, tmp_path: Path, link: str) -> None:
    """Each would add its lines at the end that it has seen, over the other's."""
    first = opened(path)
    other = tmp_path / "elsewhere" / "lines"
    other.parent.mkdir()
    if link == "soft":
        other.symlink_to(path)
    else:
        other.hardlink_to(path)
    with pytest.raises(StoreInUse, match="under another of its names"):
        opened(other)
    # Nor may a sink's file be another one's journal.
    with pytest.raises(StoreInUse):
        opened(first.place)
    first.publish([record(ANN, 1)])
    first.close()
    second = opened(other)
    second.publish([record(BOB, 1)])
    second.close()
    assert path.read_text() == "ann 1\nbob 1\n"


def test_a_journal_does_not_grow_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOURNAL_MAX", 2000)
    file = opened(path)
    for number in range(1, 80):
        file.publish([record(ANN, number)])
        assert file.place.stat().st_size < 3000
    with pytest.raises(StoreInUse):
        opened(path)
    file.close()
    assert opened(path).numbers == {ANN: 79}
    assert len(path.read_text().splitlines()) == 79


def test_changes_by_people_between_entries(path: Path, tmp_path: Path) -> None:
    file = opened(path)
    file.publish([record(ANN, 1)])
    with path.open("a") as added:
        added.write("a person")
    file.publish([record(ANN, 2)])
    assert path.read_text() == "ann 1\na person\nann 2\n"
    path.unlink()
    file.publish([record(ANN, 3)])
    assert path.read_text() == "ann 3\n"
    path.rename(tmp_path / "moved")
    path.write_text("another\n")
    file.publish([record(ANN, 4)])
    assert path.read_text() == "another\nann 4\n"
    path.write_text("")
    file.publish([record(ANN, 5)])
    assert path.read_text() == "ann 5\n"
    assert len(file.news) == 4
    file.close()
    # While nobody had it open, too.
    path.unlink()
    file = opened(path)
    assert len(file.news) == 1 and file.numbers == {ANN: 5}
    file.publish([record(ANN, 6)])
    assert path.read_text() == "ann 6\n"
    file.close()


class Dies(BaseException):
    """The process ends here."""


def dying(monkeypatch: pytest.MonkeyPatch, path: Path, part: float) -> None:
    """The next entry is written to the file in part only, by a process that dies."""
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, at: int) -> int:
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            real(descriptor, bytes(data)[: int(len(data) * part)], at)
            raise Dies
        return real(descriptor, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        file = opened(path)
        with pytest.raises(Dies):
            file.publish([record(ANN, 2), record(BOB, 7)])
        file.close()


@pytest.mark.parametrize("part", [0, 0.3, 1])
def test_a_death_in_the_middle_of_an_entry(path: Path, monkeypatch: pytest.MonkeyPatch, part: float) -> None:
    file = opened(path)
    file.publish([record(ANN, 1)])
    file.close()
    dying(monkeypatch, path, part)
    seen = path.read_text()
    file = opened(path)
    assert file.numbers == {ANN: 2, BOB: 7} and not file.news
    file.close()
    # Nothing that somebody has read was taken back.
    assert path.read_text().startswith(seen)
    assert path.read_text() == "ann 1\nann 2\nbob 7\n"


def test_a_change_in_the_middle_of_an_entry_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(path)
    file.publish([record(ANN, 1)])
    file.close()
    dying(monkeypatch, path, 0.5)
    before = path.read_bytes()
    for wrong in (b"ann 1\nann 3", b"ann", before + b"more than that, by a person\n"):
        path.write_bytes(wrong)
        with pytest.raises(OutputRefused, match="nobody can tell which of them are there"):
            opened(path)
        assert path.read_bytes() == wrong
    # As the message says: put back, or moved away.
    path.write_bytes(before)
    opened(path).close()
    assert path.read_text() == "ann 1\nann 2\nbob 7\n"
    path.unlink()
    file = opened(path)
    file.publish([record(ANN, 3)])
    assert path.read_text() == "ann 3\n"


def test_a_file_moved_away_in_the_middle_of_an_entry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(path)
    file.publish([record(ANN, 1)])
    file.close()
    dying(monkeypatch, path, 0.5)
    path.unlink()
    file = opened(path)
    assert path.read_text() == "ann 2\nbob 7\n" and file.news
    file.publish([record(ANN, 3)])
    file.close()
    assert path.read_text() == "ann 2\nbob 7\nann 3\n"


def test_a_damaged_journal_is_an_error(path: Path) -> None:
    file = opened(path)
    for number in range(1, 4):
        file.publish([record(ANN, number)])
    file.close()
    raw = file.place.read_bytes()
    for at in (2, len(raw) // 2):
        file.place.write_bytes(raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :])
        with pytest.raises(OutputRefused, match="is damaged"):
            opened(path)
    file.place.write_bytes(raw)
    opened(path).close()


def test_a_journal_of_a_newer_cutline_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(module, "_VERSION", 2)
        file = opened(path)
        file.publish([record(ANN, 1)])
        file.close()
    raw = file.place.read_bytes()
    with pytest.raises(OutputRefused, match="newer Cutline"):
        opened(path)
    assert file.place.read_bytes() == raw and path.read_text() == "ann 1\n"


def test_no_regular_file(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(OutputRefused, match="no regular file"):
        opened(path)


def test_a_full_disk_and_a_failed_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(path)
    file.publish([record(ANN, 1)])
    for name in ("pwrite", "fdatasync"):
        for at in range(1, 3):
            failing(monkeypatch, name, at, lambda: file.publish([record(ANN, number_of(path) + 1)]))
            file.open()
            assert file.numbers == {ANN: number_of(path)}
    file.publish([record(ANN, number_of(path) + 1)])
    file.close()
    lines = path.read_text().splitlines()
    assert lines == [f"ann {number}" for number in range(1, len(lines) + 1)]


def number_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def failing(monkeypatch: pytest.MonkeyPatch, name: str, at: int, work: Callable[[], None]) -> None:
    real, count = getattr(os, name), 0

    def fails(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails)
        with pytest.raises(StoreFull):
            work()


# -- power cuts --------------------------------------------------------------------------------------------


class Recorder:
    """Writes down what a line file does to its folder, as `tests.crash.disk` takes it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fail_sync: int = 0) -> None:
        self.folder, self.log, self.syncs, self.fail_sync = folder, [], 0, fail_sync
        self.real = {name: getattr(os, name) for name in ("open", "pwrite", "fdatasync", "fsync", "replace")}
        self.real["unlink"] = os.unlink
        for name in ("open", "pwrite", "fdatasync", "fsync", "replace"):
            monkeypatch.setattr(os, name, getattr(self, name))
        monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: self.unlink(path))

    log: list[Op]

    def note(self, kind: str, **about: Any) -> None:
        root = self.folder.stat().st_ino
        fields = {
            "folder": root,
            "other_folder": root,
            "node": 0,
            "offset": 0,
            "name": "",
            "other": "",
            "data": b"",
        }
        self.log.append(Op(kind, **{**fields, **about}))

    def open(self, path: Any, flags: int, *mode: Any) -> int:
        fresh = not os.path.exists(path)
        descriptor: int = self.real["open"](path, flags, *mode)
        if fresh and Path(path).parent == self.folder:
            self.note("C", node=os.fstat(descriptor).st_ino, name=Path(path).name)
        return descriptor

    def pwrite(self, descriptor: int, data: Any, at: int) -> int:
        done: int = self.real["pwrite"](descriptor, data, at)
        self.note("W", node=os.fstat(descriptor).st_ino, offset=at, data=bytes(data)[:done])
        return done

    def fsync(self, descriptor: int) -> None:
        self.syncs += 1
        node = os.fstat(descriptor).st_ino
        if self.syncs == self.fail_sync:
            # What it would have synced is lost for good, and is in the page cache all the same.
            self.note("E", node=node)
            raise OSError(errno.EIO, "Input/output error")
        self.note("F", node=node)

    fdatasync = fsync

    def replace(self, old: Path, new: Path) -> None:
        node = old.stat().st_ino
        self.real["replace"](old, new)
        self.note("R", node=node, name=old.name, other=new.name)

    def unlink(self, path: Path) -> None:
        if path.exists():
            self.note("U", node=path.stat().st_ino, name=path.name)
            self.real["unlink"](path)


def deeds(folder: Path, lot: random.Random, log: Recorder) -> tuple[list[str], list[tuple[int, int]]]:
    """Publishes in batches of random size; what should be there, and how much after how many operations."""
    wanted: list[str] = []
    said: list[tuple[int, int]] = []
    file = LineFile(folder / "lines")
    numbers = opened_at_last(file)
    next_number = {origin: numbers.get(origin, 0) for origin in (ANN, BOB)}
    for _ in range(lot.randrange(1, 6)):
        batch = []
        for _ in range(lot.randrange(1, 4)):
            origin = lot.choice((ANN, BOB))
            next_number[origin] += 1
            text = f"{origin.participant} {next_number[origin]} {'x' * lot.choice((0, 10, 700))}"
            batch.append(record(origin, next_number[origin], text))
            wanted.append(text)
        try:
            file.publish(batch)
        except StorageError:
            # Opened anew, as the coordinator does; what was published is asked of it.
            known = opened_at_last(file)
            file.publish([each for each in batch if each.number > known.get(each.origin, 0)])
        said.append((len(log.log), len(wanted)))
        if lot.random() < 0.2:
            file.close()
            opened_at_last(file)
    file.close()
    return wanted, said


def opened_at_last(file: LineFile) -> dict[Origin, int]:
    """One sync may fail."""
    try:
        return file.open()
    except StorageError:
        return file.open()


@pytest.mark.parametrize("seed", range(int(os.environ.get("CUTLINE_TEST_SINKS", "3"))))
def test_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    lot = random.Random(seed)
    monkeypatch.setattr(module, "JOURNAL_MAX", lot.choice((200, 3000)))
    folder = tmp_path / "live"
    folder.mkdir()
    if lot.random() < 0.5:
        (folder / "lines").write_text("before\n")
    disk = Disk(folder)
    with monkeypatch.context() as patch:
        log = Recorder(folder, patch, fail_sync=lot.choice((0, 0, lot.randrange(1, 14))))
        wanted, said = deeds(folder, lot, log)
    # From here on nothing loses its power.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    judged = 0
    for number, op in enumerate(log.log, 1):
        disk.apply(op)
        kept = max((count for after, count in said if after <= number), default=0)
        for choice in choices(f"{seed}/{number}", 2):
            judged += 1
            judge(
                disk, choice, tmp_path / f"after-{judged}", wanted, kept, f"operation {number}, {choice.name}"
            )
    assert {path: content for path, content in disk.now().items()} == tree_of(folder)


def judge(disk: Disk, choice: Choice, place: Path, wanted: list[str], kept: int, where: str) -> None:
    """What was said to be published is there, and what follows is published once when it comes again."""
    lay_out(disk.after_a_power_cut(choice), place)
    file = LineFile(place / "lines")
    numbers = file.open()
    before = [line for line in lines_of(place) if line != "before"]
    assert before == wanted[: len(before)] and len(before) >= kept, where
    found = {origin: 0 for origin in (ANN, BOB)}
    for line in before:
        who, number = line.split()[:2]
        found[ANN if who == "ann" else BOB] = int(number)
    assert numbers == {origin: number for origin, number in found.items() if number}, where
    rest = []
    for line in wanted:
        who, number = line.split()[:2]
        origin = ANN if who == "ann" else BOB
        if int(number) > numbers.get(origin, 0):
            rest.append(record(origin, int(number), line))
    file.publish(rest)
    file.close()
    assert [line for line in lines_of(place) if line != "before"] == wanted, where


def lines_of(place: Path) -> list[str]:
    return (place / "lines").read_text().splitlines()
