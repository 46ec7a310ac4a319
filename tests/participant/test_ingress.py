"""The ingress log: what was acknowledged is there, what was not may be gone, damage is never an end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutline.errors import Corrupt, StoreFull, StoreInUse
from cutline.participant.ingress import IngressLog

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


def read(path: Path) -> list[int]:
    """The indices that an opened log has."""
    log = IngressLog(path, KEY)
    try:
        return [record[0] for record in log.after(0)]
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
    with pytest.raises(Corrupt, match="x.log"):
        IngressLog(path, KEY)
    assert path.read_bytes() == bytes(whole)


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
