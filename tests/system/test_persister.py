"""The process that writes the large images of a system: there is one, it may be killed, it ends with it."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import cutline
from cutline.participant.persist_client import SOCKET
from tests.participant.persisting import needs_process
from tests.system.actors import Bulky
from tests.system.living import again, kill, left_over, marked, until

pytestmark = needs_process


def _persisters(mark: str) -> list[int]:
    """The processes that were started to write images, and have not ended."""
    found = []
    for pid in marked(mark):
        try:
            if SOCKET.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            # It ended while we looked.
            continue
    return found


def test_one_process_for_all_that_may_be_killed_and_goes_with_the_system(tmp_path: Path) -> None:
    with left_over() as mark:
        with cutline.start(tmp_path / "store", interval=None, quiet=True) as system:
            # Both begin at once.
            names = ["one", "two"]
            bulky = {name: system.spawn(name, Bulky) for name in names}
            sums = {}
            for turn in range(2):
                for name in names:
                    sums[name] = bulky[name].fill.remote((1 << 20) + turn, turn).result()
                system.checkpoint()
                (pid,) = _persisters(mark)
                os.kill(pid, signal.SIGKILL)
            for name in names:
                sums[name] = bulky[name].fill.remote(3 << 20, 9).result()
            with ThreadPoolExecutor(1) as pool:
                taken = pool.submit(system.checkpoint)
                # In the middle of an image, as a rule.
                wait([taken], 0.03)
                for pid in _persisters(mark):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                taken.result()
            kill(system, "one", "two")
            assert {name: again(lambda: bulky[name].checksum.remote().result()) for name in names} == sums  # noqa: B023
            for name in names:
                sums[name] = again(lambda: bulky[name].fill.remote(2 << 20, 10).result())  # noqa: B023
            again(system.checkpoint)
            (pid,) = _persisters(mark)
            called_at = Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2]))
            assert called_at.is_socket()
        assert not called_at.parent.exists()
        until(lambda: not _persisters(mark), "the end of the persister process")
