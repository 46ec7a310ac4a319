"""Files of steps: torn, damaged, forged, written to by a process that was taken for dead, needed no more."""

from __future__ import annotations

import errno
import os

import pytest

from cutline.errors import Corrupt, NewerFormat, NotAuthentic
from cutline.participant import step_files
from cutline.participant.handle import bound_port
from cutline.participant.log import Log
from cutline.participant.step_files import FOLDER, folder_of, forget, reseal
from cutline.participant.steps import Steps
from cutline.storage.disk import write_all

from .stepping import KEY, LINE, OTHER_KEY, World, files, records, world

__all__ = ("world",)


def test_a_torn_end_is_a_step_that_never_returned(world: World) -> None:
    cut = world.cut()
    first = world.step(1)
    (path,) = files(world)
    before = len(records(path))
    second = world.step(2)
    whole = records(path)
    for length in [*range(before, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        called = len(world.called)
        world.crash(cut)
        assert world.step(1) == first
        assert world.step(2) != second
        assert len(world.called) == called + 1
        files(world)[-1].unlink()
    # Not even the head.
    path.write_bytes(whole[:10])
    world.crash(cut)
    assert world.step(1) != first


def test_damage_before_what_is_whole_stops_all(world: World) -> None:
    cut = world.cut()
    for number in range(3):
        world.step(number)
    (path,) = files(world)
    whole = records(path)
    start = len(whole) * 2 // 3
    for at in range(0, start, 5):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises(Corrupt, match="remove the folder") as caught:
            world.crash(cut)
        assert str(path) in str(caught.value)
    path.write_bytes(whole)
    world.crash(cut)


def test_a_step_that_is_gone_from_an_older_file_stops_all(world: World) -> None:
    cut = world.cut()
    world.step(1)
    (path,) = files(world)
    whole = path.read_bytes()
    world.step(2)
    world.crash(cut)
    world.step("another way")
    path.write_bytes(whole)
    with pytest.raises(Corrupt, match="counted when a newer one was begun"):
        world.crash(cut)
    path.unlink()
    with pytest.raises(Corrupt, match="is gone"):
        world.crash(cut)


def test_what_a_zombie_writes_is_never_taken(world: World) -> None:
    cut = world.cut()
    world.step(1)
    zombie, desk = world.steps, world.desk
    world.crash(cut)
    world.step(1)
    returned = world.step(2)
    # The process of the older epoch wakes up, and makes the same step, with another outcome.
    theirs = Log(list(world.log)[:1])
    desk.steps = zombie
    undo = bound_port(desk, thread_only=True)
    assert theirs.step(world.ask, 2) != returned
    zombie.section(cut + 1)
    theirs.pop()
    assert theirs.step(world.ask, 2) != returned
    undo()
    assert len(files(world)) == 3
    world.crash(cut)
    world.step(1)
    assert world.step(2) == returned


def test_room_is_written_ahead_and_given_back(world: World) -> None:
    world.step(1)
    (path,) = files(world)
    assert path.stat().st_size > len(records(path)) + 10_000
    sizes = {path.stat().st_size for number in range(400) if world.step(number)}
    # It grew seldom, and by more each time.
    assert len(sizes) in (2, 3) and max(sizes) > 2.5 * min(sizes)
    world.cut()
    assert path.stat().st_size == len(records(path))


@pytest.mark.parametrize("rest", [b"", bytes(1), bytes(5000)])
def test_whoever_is_killed_leaves_room(world: World, rest: bytes) -> None:
    cut = world.cut()
    said = [world.step(number) for number in range(3)]
    (path,) = files(world)
    path.write_bytes(records(path) + rest)
    world.crash(cut)
    assert [world.step(number) for number in range(3)] == said
    assert len(world.called) == 3


def test_a_zombie_writes_in_the_room_that_it_has(world: World) -> None:
    """Its file begins before the cut, so it is not read when the new epoch begins, and read later."""
    older = world.cut()
    world.step(1)
    steps, desk = world.steps, world.desk
    # Another process takes the cut, so that this one keeps its file open.
    world.process()
    newer = world.cut()
    world.crash(newer)
    mine = world.step(2)
    desk.steps = steps
    undo = bound_port(desk, thread_only=True)
    theirs = Log(list(world.log)[:1])
    assert theirs.step(world.ask, 2) != mine
    undo()
    world.crash(older)
    world.step(1)
    assert world.step(2) == mine


def test_a_record_fits_where_room_does_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = world.cut()

    def full(file: int, content: bytes, at: int) -> None:
        if len(content) > 10_000:
            write_all(file, content[:7], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(file, content, at)

    monkeypatch.setattr(step_files, "write_all", full)
    said = [world.step(number) for number in range(3)]
    (path,) = files(world)
    assert path.read_bytes() == records(path)
    world.crash(cut)
    assert [world.step(number) for number in range(3)] == said


def test_a_forged_file_is_not_loaded(world: World) -> None:
    cut = world.cut()
    world.step(1)
    (path,) = files(world)
    with pytest.raises(NotAuthentic):
        world.process(key=OTHER_KEY)
        world.roll_back(cut)
    # Nor one of somebody else's.
    other = folder_of(world.home, LINE, "other")
    other.mkdir()
    path.rename(other / path.name)
    with pytest.raises(NotAuthentic):
        Steps("other", 1, LINE, world.home, KEY).restored(9, cut, world.cuts[cut][1])


def test_a_new_key(world: World) -> None:
    cut = world.cut()
    answer = world.step(1)
    with pytest.raises(NotAuthentic):
        reseal(world.home, b"n" * 32, [OTHER_KEY])
    reseal(world.home, OTHER_KEY, [KEY], only_check=True)
    reseal(world.home, OTHER_KEY, [KEY])
    # One that was interrupted is done again.
    reseal(world.home, OTHER_KEY, [KEY])
    world.process(key=OTHER_KEY)
    world.roll_back(cut)
    assert world.step(1) == answer
    reseal(world.home, KEY, [], trust=True)
    world.crash(cut)
    assert world.step(1) == answer


def test_a_file_of_a_newer_cutline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = world.cut()
    with monkeypatch.context() as patch:
        patch.setattr(step_files, "FORMAT", 2)
        world.step(1)
    with pytest.raises(NewerFormat):
        world.crash(cut)


def test_files_go_when_nobody_can_go_back_so_far(world: World) -> None:
    cuts = []
    for number in range(4):
        cuts.append(world.cut())
        world.step(number)
    assert len(files(world)) == 4
    forget(world.home, LINE, cuts[2], 0)
    assert len(files(world)) == 2
    world.crash(cuts[2])
    world.step(2)
    world.step(3)
    assert len(world.called) == 4
    forget(world.home, LINE, cuts[3] + 1, 5)
    assert not folder_of(world.home, LINE, "agent").exists()
    assert world.step(4)["answer"] == 5
    forget(world.home, "no such lineage", 9, 9)
    assert (world.home / FOLDER).is_dir()
