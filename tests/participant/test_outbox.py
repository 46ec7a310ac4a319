"""An outbox over its limit: messages wait, then are taken one at a time, and what they send goes to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from cutline.barrier import Endpoint, LocalSnapshot, Member
from cutline.barrier.events import AckArrived, Flush, Gone, LinkOpened, Released
from cutline.barrier.messages import Frame, Positions, Stamp
from cutline.errors import Overloaded
from cutline.participant.frame_parts import in_parts
from cutline.participant.handle import Handle
from cutline.participant.outbox import OutboxLimit
from cutline.participant.runner import Runner
from cutline.participant.spill import Spill, in_memory

from .test_runner import Counter, heard, tell, two
from .town import Town

A, B = Member("A", 1), Member("B", 2)
BIG = 50_000


def sender(*sizes: int) -> Endpoint:
    """An endpoint with a frame of each size in its outbox."""
    end = Endpoint(A, "run", 1, LocalSnapshot(0, 0, None))
    end.handle(LinkOpened(B))
    for size in sizes:
        end.handle(Released(B, [bytes([size % 251]) * size]))
        end.handle(Flush())
    return end


def release(end: Endpoint, upto: int) -> None:
    """The receiver releases."""
    end.handle(AckArrived(Stamp("run", 1, B, A), Positions(upto, upto, 99)))


# -- the limit -----------------------------------------------------------------------------------------


def test_below_the_limit_nothing_is_held_up() -> None:
    limit = OutboxLimit(1000, 1.0)
    assert not limit.holds_up(sender(1000), 0.0) and not limit.stalled and limit.waits == []


def test_over_the_limit_messages_wait_until_something_was_released() -> None:
    end, limit = sender(600, 600), OutboxLimit(1000, 1.0)
    assert limit.holds_up(end, 0.0) and limit.stalled and limit.waits == ["B"]
    release(end, 1)
    assert not limit.holds_up(end, 0.5) and not limit.stalled and limit.waits == []


def test_after_a_second_without_a_release_messages_are_taken_one_at_a_time_until_there_is_one() -> None:
    end, limit = sender(600, 600, 600, 600), OutboxLimit(1000, 1.0)
    assert limit.holds_up(end, 0.0) and limit.holds_up(end, 0.9)
    for now in (1.0, 1.1, 5.0):
        assert not limit.holds_up(end, now) and limit.overflowing and not limit.stalled
    release(end, 1)
    assert limit.holds_up(end, 5.1) and not limit.overflowing
    assert not limit.holds_up(end, 6.1)


# -- the disk ------------------------------------------------------------------------------------------


def test_what_is_moved_is_the_same_and_not_in_memory(tmp_path: Path) -> None:
    end, spill = sender(5000, 10, 7000), Spill(tmp_path / "spill", 20_000)
    before = [bytes(frame.body) for frame in end.outgoing[B].frames]
    assert in_memory(end) == 12_010
    assert spill.move(end) == 12_000 and spill.used(end) == 12_000 and in_memory(end) == 10
    assert [bytes(frame.body) for frame in end.outgoing[B].frames] == before
    assert end.outbox_bytes == 12_010
    assert spill.move(end) == 0
    assert list((tmp_path / "spill").iterdir()) == []


def test_a_file_counts_until_its_last_frame_is_released(tmp_path: Path) -> None:
    end, spill = sender(5000, 7000), Spill(tmp_path, 20_000)
    spill.move(end)
    release(end, 1)
    assert spill.used(end) == 12_000
    release(end, 2)
    assert spill.used(end) == 0 and end.outbox_bytes == 0


def test_beyond_the_limit_of_the_disk_it_is_an_error(tmp_path: Path) -> None:
    end, spill = sender(5000, 7000), Spill(tmp_path, 11_999)
    with pytest.raises(Overloaded, match="11,999 bytes"):
        spill.move(end)
    assert in_memory(end) == 12_000


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Overloaded, match="spill"):
        Spill(tmp_path / "file" / "spill").move(sender(5000))


def test_frames_on_disk_travel_like_others_and_come_back_from_those_who_left(tmp_path: Path) -> None:
    end, spill = sender(5000, 7000), Spill(tmp_path, 20_000)
    spill.move(end)
    (undelivered,) = end.handle(Gone(B, 1))
    assert [bytes(body) for body in undelivered.bodies] == [bytes([7000 % 251]) * 7000]  # type: ignore[union-attr]


def test_the_section_of_an_image_is_the_same_from_disk(tmp_path: Path) -> None:
    end, spill = sender(5000, 10, 7000), Spill(tmp_path, 20_000)
    table = end.outgoing[B].captured(1, False)
    from_memory = msgpack.packb([[*B, *table]])
    assert b"".join(in_parts([[*B, *table]])) == from_memory
    spill.move(end)
    moved = end.outgoing[B].captured(2, False)
    parts = in_parts([[*B, *moved]])
    assert b"".join(parts) == from_memory
    # As much as there is on disk does not fit into memory a second time.
    assert sum(type(part) is memoryview for part in parts) == 2


@pytest.mark.parametrize("size", [0, 255, 4095, 4096, 65_535, 65_536, 200_000])
def test_a_section_in_parts_is_what_msgpack_makes_of_it(size: int) -> None:
    frames = [Frame(1, 3, b"a" * size, 2**64 - 1), Frame(4, 4, b"b", 7), Frame(5, 500, b"c" * size, 0)]
    channels = [["A", 1, 500, 0, 2**63, frames], ["B", 2, 0, 0, 0, []]]
    parts = in_parts(channels)
    assert b"".join(parts) == msgpack.packb(channels)
    assert [part for part in parts if part is frames[0].body or part is frames[2].body] == (
        [frames[0].body, frames[2].body] if size >= 4096 else []
    )


# -- a participant -------------------------------------------------------------------------------------


class Echo(Counter):
    """Sends on what it gets, several times."""

    def echo(self, left: int, blob: bytes) -> None:
        self.heard.append(left)
        for _ in range(2 if left else 0):
            self.other.echo.tell(left - 1, blob)

    def flood(self, count: int, left: int, blob: bytes) -> None:
        for _ in range(count):
            self.other.echo.tell(left, blob)


@pytest.fixture
def town() -> Iterator[Town]:
    """An empty town."""
    made = Town()
    yield made
    made.close()


def flood(a: Runner, b: Runner, count: int, left: int) -> None:
    """Both send a lot at once."""
    tell(a, "b", "flood", count, left, b"x" * BIG)
    tell(b, "a", "flood", count, left, b"x" * BIG)


def all_heard(a: Runner, b: Runner) -> bool:
    """Whether both have heard what comes of 20 messages that each bring about two more."""
    return len(heard(a)) + len(heard(b)) == 120


def has_spilled(*runners: Runner) -> bool:
    """Whether something lies on disk."""
    return any(r.outbox.spill and r.endpoint and r.outbox.spill.used(r.endpoint) for r in runners)


def tight(town: Town, folder: Path, disk: int) -> tuple[Runner, Runner]:
    """Two that have little room."""
    a, b = two(town, Echo)
    for runner, other in ((a, "b"), (b, "a")):
        assert runner.endpoint is not None
        runner.endpoint.window = 4
        runner.outbox = OutboxLimit(4 * BIG, 1.0, Spill(folder, disk))
        instance: Any = runner.instance
        instance.other = Handle(other, "", runner.desk)
    return a, b


def pass_time(town: Town, rounds: int, until: Callable[[], bool] = lambda: False) -> None:
    """Everybody steps; the clock goes on."""
    for _ in range(rounds):
        if until():
            return
        for runner in town.runners.values():
            for _ in range(20):
                runner.step(0.0)
        town.clock.now += 0.3


def test_a_circle_that_sends_more_than_it_takes_for_a_while_gets_through_it(
    town: Town, tmp_path: Path
) -> None:
    a, b = tight(town, tmp_path, 1000 * BIG)
    flood(a, b, 20, 1)
    pass_time(town, 600, lambda: all_heard(a, b))
    assert sorted(heard(a)) == sorted(heard(b)) == [0] * 40 + [1] * 20
    pass_time(town, 20)
    assert a.endpoint is not None and not a.endpoint.outbox_bytes and not a.outbox.waits


def test_a_cut_with_frames_on_disk_is_restored_like_any_other(town: Town, tmp_path: Path) -> None:
    a, b = tight(town, tmp_path, 1000 * BIG)
    flood(a, b, 20, 1)
    pass_time(town, 60, lambda: has_spilled(a, b))
    assert has_spilled(a, b)
    number = town.begin(full=True)
    pass_time(town, 2)
    town.decide(number, True)
    pass_time(town, 600, lambda: all_heard(a, b))
    assert sorted(heard(a)) == sorted(heard(b)) == [0] * 40 + [1] * 20
    town.roll_back(number)
    pass_time(town, 2)
    assert len(heard(a)) < 60
    town.resume(number)
    pass_time(town, 600, lambda: all_heard(a, b))
    assert sorted(heard(a)) == sorted(heard(b)) == [0] * 40 + [1] * 20


def test_beyond_the_disk_the_coordinator_is_told_who_waits_for_whom(town: Town, tmp_path: Path) -> None:
    a, b = tight(town, tmp_path, 3 * BIG)
    flood(a, b, 20, 3)
    pass_time(town, 20)
    said = town.said("failed")
    assert {doc["policy"] for _, doc in said} == {"overloaded"}
    name, doc = said[0]
    assert doc["waits"] == [{"a": "b", "b": "a"}[name]]
    assert town.runners[name].tainted and "bytes of disk" in doc["text"]
