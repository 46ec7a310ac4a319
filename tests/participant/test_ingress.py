"""The ingress log: what was acknowledged is there, what was not may be gone, damage is never an end."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutline.errors import Corrupt, NotAuthentic, StoreFull, StoreInUse, StoreNotWritable
from cutline.participant import ingress
from cutline.participant.ingress import IngressLog
from cutline.participant.ingress_segment import logs_in

KEY = bytes(32)


def fill(path: Path, *batches: int) -> list[int]:
    """A log with batches of so many records; returns where the file ended after each."""
    log = IngressLog(path, KEY)
    ends = []
    for size in batches:
        log.append([["tell", log.last + 1 + k, "somebody", "method", b"x" * 20] for k in range(size)])
        ends.append(path.stat().st_size)
    log.close()
    return ends


def small(path: Path, count: int = 0) -> IngressLog:
    """A log whose files have few records, with so many more of them, each synced for itself."""
    log = IngressLog(path, KEY, segment_bytes=400, spent_bytes=200)
    for _ in range(count):
        log.append([record(log.last + 1)])
    return log


def record(number: int) -> list[Any]:
    """What the record of that index holds."""
    return ["tell", number, "somebody", "method", b"x" * (number % 50)]


def indices(log: IngressLog) -> list[int]:
    """Of all that it has; their content is looked at."""
    found = log.after(log.first - 1)
    assert all(each[1:] == record(each[0]) for each in found)
    return [each[0] for each in found]


def read(path: Path) -> list[int]:
    """The indices that an opened log has."""
    log = IngressLog(path, KEY)
    try:
        return [record[0] for record in log.after(log.first - 1)]
    finally:
        log.close()


def test_records_come_back_in_order_from_a_position(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.log"
    fill(path, 2, 3)
    log = IngressLog(path, KEY)
    assert log.last == 5
    assert [record[0] for record in log.after(3)] == [4, 5]
    assert log.after(4) == [[5, "tell", 5, "somebody", "method", b"x" * 20]]
    log.close()


def test_every_torn_end_is_cut_at_a_record(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    ends = fill(path, 2, 2)
    whole = path.read_bytes()
    for size in range(ends[0], len(whole)):
        path.write_bytes(whole[:size])
        assert read(path) in ([1, 2], [1, 2, 3]), size
        log = IngressLog(path, KEY)
        assert log.append([["tell", 9, "x", "y", []]]) == log.last
        log.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_before_a_later_sync_is_an_error_and_never_an_end(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.log"
    path.unlink(missing_ok=True)
    ends = fill(path, 1, 3, 1)
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, ends[1] - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(Corrupt, match="x.log") as caught:
        IngressLog(path, KEY)
    assert path.read_bytes() == bytes(whole)
    assert caught.value.facts["offset"] <= at


def test_pages_of_one_sync_that_came_out_of_order_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    ends = fill(path, 2, 3)
    whole = bytearray(path.read_bytes())
    whole[ends[0] : ends[0] + 30] = bytes(30)
    path.write_bytes(whole)
    assert read(path) == [1, 2]


def test_a_full_disk_takes_nothing(tmp_path: Path) -> None:
    limited = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from cutline.participant.ingress import IngressLog\n"
        "log = IngressLog(Path(sys.argv[1]), bytes(32))\n"
        "log.append([['tell', 1, 'a', 'b', b'x']])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    log.append([['tell', 2, 'a', 'b', b'x' * 9000]])\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
        "print(log.append([['tell', 3, 'a', 'b', b'y']]))\n"
    )
    path = tmp_path / "x.log"
    done = subprocess.run(
        [sys.executable, "-c", limited, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["StoreNotWritable", "2"]
    assert read(path) == [1, 2]
    assert issubclass(StoreFull, Exception)


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom pathlib import Path\nfrom cutline.participant.ingress import IngressLog\n"
            "log = IngressLog(Path(sys.argv[1]), bytes(32))\nprint('open', flush=True)\nsys.stdin.read()\n",
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(StoreInUse, match="x.lock"):
        IngressLog(path, KEY, patience=0.0)
    holder.kill()
    holder.communicate(timeout=30)
    IngressLog(path, KEY).close()


# -- several files ---------------------------------------------------------------------------------------


def test_files_follow_each_other_and_the_oldest_go_when_all_of_them_is_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = small(path, 40)
    files = log.segments
    assert files[0] == path and len(files) > 5
    assert indices(log) == list(range(1, 41))
    assert log.forget(3) == 0
    assert log.forget(20) > 0
    assert 1 < log.first <= 21 and indices(log) == list(range(log.first, 41))
    assert not path.exists() and log.after(20)[0][0] == 21
    # Less than was said before brings nothing back, and more than there is takes nothing that comes.
    assert log.forget(5) == 0
    log.forget(1000)
    assert log.append([record(41)]) == 41
    assert indices(log)[-1] == 41 and len(log.segments) <= 2
    first = log.first
    log.close()
    again = small(path)
    assert (again.first, again.last) == (first, 41) and indices(again) == list(range(first, 42))
    again.close()
    assert logs_in(tmp_path) == [path]


def test_what_was_removed_and_is_needed_after_all_is_an_error(tmp_path: Path) -> None:
    log = small(tmp_path / "x.log", 30)
    log.forget(20)
    with pytest.raises(Corrupt, match=rf"records 5 to {log.first - 1}.*restore="):
        log.after(4)
    log.close()


def test_a_file_of_which_much_may_go_is_ended_before_it_is_large(tmp_path: Path) -> None:
    log = IngressLog(tmp_path / "x.log", KEY, spent_bytes=200)
    for number in range(1, 200):
        log.append([record(number)])
        log.forget(number - 5)
    assert len(log.segments) <= 3
    assert sum(path.stat().st_size for path in log.segments) < 4000
    log.close()


@pytest.mark.parametrize("which", [0, 1, -2])
def test_a_file_that_is_gone_is_an_error(tmp_path: Path, which: int) -> None:
    log = small(tmp_path / "x.log", 40)
    log.close()
    files = log.segments
    files[which].unlink()
    if which == 0:
        # It may have been removed by right: whoever needs it is told.
        again = small(tmp_path / "x.log")
        with pytest.raises(Corrupt, match="records 1 to"):
            again.after(0)
        again.close()
        return
    with pytest.raises(Corrupt, match="are not there"):
        small(tmp_path / "x.log")


@pytest.mark.parametrize("size", [0, 10, -1])
def test_an_older_file_that_was_cut_is_an_error(tmp_path: Path, size: int) -> None:
    log = small(tmp_path / "x.log", 40)
    log.close()
    content = log.segments[1].read_bytes()
    log.segments[1].write_bytes(content[:size])
    with pytest.raises(Corrupt, match=r"are not there|at byte \d+, is damaged"):
        small(tmp_path / "x.log")


def test_a_file_in_another_ones_place_is_an_error(tmp_path: Path) -> None:
    log = small(tmp_path / "x.log", 40)
    log.close()
    shutil.copy(log.segments[2], log.segments[1])
    with pytest.raises(Corrupt, match="is in its place"):
        small(tmp_path / "x.log")
    other = small(tmp_path / "y.log", 40)
    other.close()
    shutil.copy(other.segments[1], log.segments[1])
    with pytest.raises(NotAuthentic):
        small(tmp_path / "x.log")


@pytest.mark.parametrize("content", [b"", b"\xc1ing", bytes(50), b"garbage" * 9])
def test_a_crash_at_the_beginning_of_a_file_leaves_nothing_that_counts(
    tmp_path: Path, content: bytes
) -> None:
    log = small(tmp_path / "x.log", 12)
    log.close()
    next_one = tmp_path / f"x.{log.last + 1:016d}.log"
    next_one.write_bytes(content)
    again = small(tmp_path / "x.log", 3)
    assert indices(again) == list(range(1, 16))
    again.close()
    assert next_one in again.segments and indices(small(tmp_path / "x.log")) == list(range(1, 16))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_told_or_is_of_what_was_synced_last(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    log = small(folder / "x.log", 20)
    log.close()
    file = data.draw(st.sampled_from(log.segments))
    raw = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "zeros"]))
    if how == "cut":
        del raw[at:]
    else:
        stop = at + 1 if how == "flip" else data.draw(st.integers(at + 1, len(raw)))
        raw[at:stop] = bytes(each ^ 0x55 if how == "flip" else 0 for each in raw[at:stop])
    is_same = raw == file.read_bytes()
    file.write_bytes(raw)
    try:
        again = small(folder / "x.log")
    except Corrupt as error:
        assert not is_same and str(folder) in str(error)
        return
    # What cannot be told from a crash: the end of the last file, cut at a record.
    found = indices(again)
    again.close()
    assert found == list(range(1, len(found) + 1))
    assert is_same or (file == log.segments[-1] and (len(found) >= 19 or how != "flip"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "forget", "open", "fail"]), st.integers(1, 12)), max_size=40
    )
)
def test_whatever_is_done_the_log_is_what_it_should_be(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    log = small(folder / "x.log")
    last = spent = 0
    for what, amount in steps:
        if what == "append":
            log.append([record(last + k) for k in range(1, amount + 1)])
            last += amount
        elif what == "forget":
            spent = max(spent, min(last, amount * 4))
            log.forget(amount * 4)
        elif what == "open":
            log.close()
            log = small(folder / "x.log")
        else:
            with failing(amount), pytest.raises((StoreFull, StoreNotWritable)):
                log.append([record(last + k) for k in range(1, amount + 1)])
        assert log.last == last and log.first <= spent + 1
        assert indices(log) == list(range(log.first, last + 1))
    log.close()


class failing:
    """The sync, or the write, of an append fails, and what was written may be there in part."""

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        def sync(_file: int) -> None:
            raise OSError(errno.EIO, "an error of the disk")

        def write(file: int, content: bytes, at: int) -> None:
            os.pwrite(file, content[: len(content) // 2], at)
            raise OSError(errno.ENOSPC, "no space")

        name, with_it = ("sync", sync) if self.amount % 2 else ("write_all", write)
        self.patch.setattr(ingress, name, with_it)

    def __exit__(self, *_details: object) -> None:
        self.patch.undo()


def test_what_cannot_be_taken_back_ends_the_taking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = small(tmp_path / "x.log", 2)
    real: Callable[[int, int], None] = os.ftruncate

    def fails(*_given: Any) -> None:
        raise OSError(errno.EIO, "an error of the disk")

    monkeypatch.setattr(ingress, "sync", fails)
    monkeypatch.setattr(os, "ftruncate", fails)
    with pytest.raises(StoreNotWritable, match="whether that input counts"):
        log.append([record(3)])
    monkeypatch.undo()
    assert os.ftruncate is real
    with pytest.raises(StoreNotWritable, match="no other is taken"):
        log.append([record(3)])
    assert indices(log) == [1, 2]
    log.close()
    again = small(tmp_path / "x.log")
    assert indices(again) == [1, 2, 3]
    again.close()


def test_the_log_of_an_older_version_is_the_first_file(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    fill(path, 30)
    log = small(path)
    log.append([record(31)])
    assert [each.name for each in log.segments] == ["x.log", "x.0000000000000031.log"]
    log.forget(30)
    assert indices(log) == [31]
    log.close()


def test_resealing_writes_all_files_with_the_new_key(tmp_path: Path) -> None:
    path, other = tmp_path / "x.log", bytes(range(32))
    log = small(path, 30)
    log.forget(10)
    kept = indices(log)
    log.close()
    again = IngressLog(path, other, former=[KEY])
    again.reseal()
    again.close()
    with pytest.raises(NotAuthentic):
        IngressLog(path, KEY)
    renewed = IngressLog(path, other)
    assert indices(renewed) == kept
    renewed.close()
