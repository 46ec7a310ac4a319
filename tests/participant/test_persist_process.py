"""Images that another process writes: the same ones, whatever becomes of that process."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutline.errors import RefusedOption
from cutline.participant import persist_client
from cutline.participant.page_log import Picked
from cutline.participant.persist import Persister
from cutline.participant.persist_client import (
    LOCK,
    SOCKET,
    WORTH,
    ProcessPersister,
    chosen_persister,
    persister_for,
    persister_here,
)
from cutline.participant.persist_wire import HungUp, receive, send
from cutline.participant.places import machine_id
from cutline.participant.scratch import leave_common
from cutline.participant.shared_memory import CHUNK, LARGEST, Buffer, buffers
from cutline.storage.extents import Extents
from cutline.storage.image import Region
from tests.participant.persisting import (
    Place,
    captured,
    check,
    job_of,
    lives,
    needs_process,
    random_bytes,
    signalled,
)
from tests.system.living import until

pytestmark = needs_process
PAGE = os.sysconf("SC_PAGE_SIZE")


def test_images_full_and_delta_of_bytes_that_are_shared_and_that_are_not(place: Place) -> None:
    persister = place.persister()
    contents = {0: random_bytes(20 * WORTH), 1: random_bytes(1000)}
    ref = place.written(persister, job_of(1, contents))
    assert persister.pid and persister.pid != os.getpid()
    check(place, ref, contents)
    buffers().room(CHUNK)
    buffers().prepare()
    for number in range(2, 6):
        part = captured(2 * WORTH)
        assert buffers().place(part.data) is not None
        runs = [(100, part[:WORTH].data), (WORTH + 500, part[WORTH:].data)]
        regions = [Region(0, 20 * WORTH, Extents.of(runs)), Region(1, 1000, Extents.of([]))]
        contents[0] = contents[0].copy()
        contents[0][100 : 100 + WORTH], contents[0][WORTH + 500 : 2 * WORTH + 500] = (
            part[:WORTH],
            part[WORTH:],
        )
        ref = place.written(persister, job_of(number, {}, parent=ref, regions=regions, state=None))
        assert ref.kind == "delta" and len(ref.chain) == number
        check(place, ref, contents)


def test_rows_are_put_in_order_there(place: Place) -> None:
    persister = place.persister()
    pages = CHUNK // PAGE
    buffers().room(CHUNK)
    buffers().room(CHUNK)
    buffers().prepare()
    chunks = [captured(CHUNK), captured(CHUNK)]
    # As the log of pages has it: rows of both chunks, out of order; the region begins inside the first.
    rows = np.array([5, 1024 + 3, 2, 1024 + 900, 7] * 10, np.int64)
    if pages != 1024:
        pytest.skip("the log has other chunks with pages of this size")
    size = len(rows) * PAGE - 100
    runs = np.array([0, 2 * PAGE]), np.array([2 * PAGE, size - 2 * PAGE])
    picked = Picked(chunks, rows, runs, 100)
    wanted = np.concatenate([np.concatenate(chunks).reshape(-1, PAGE)[row] for row in rows])[100:]
    ref = place.written(persister, job_of(1, {}, regions=[Region(0, size, picked)]))
    assert persister.pid
    check(place, ref, {0: wanted})
    # Where one of them is not shared it is done here, with the same outcome.
    mixed = Picked([chunks[0], chunks[1].copy()], rows, runs, 100)
    check(place, place.written(persister, job_of(2, {}, regions=[Region(0, size, mixed)])), {0: wanted})


def test_small_images_start_no_process_and_build_on_those_it_wrote(fresh: Place) -> None:
    persister = fresh.persister()
    contents = {0: random_bytes(1000)}
    check(fresh, fresh.written(persister, job_of(1, contents)), contents)
    assert not persister.pid and not list(fresh.folder.iterdir())
    contents = {0: random_bytes(WORTH)}
    ref = fresh.written(persister, job_of(2, contents))
    assert persister.pid
    regions = [Region(0, WORTH, Extents.of([]))]
    ref = fresh.written(persister, job_of(3, {}, parent=ref, regions=regions, state=None))
    check(fresh, ref, contents)


def test_an_image_that_cannot_be_written_is_an_outcome(place: Place) -> None:
    persister = place.persister()
    ref = place.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    (Path(place.url) / "blobs" / ref.key).unlink()
    # Another persister process does not remember what it was.
    signalled(persister.pid, signal.SIGKILL)
    regions = [Region(0, WORTH + PAGE, Extents.of([(0, random_bytes(WORTH).data)]))]
    persister.submit(job_of(2, {}, parent=ref, regions=regions))
    outcome = place.outcomes.get(timeout=60)
    assert outcome.ref is None and outcome.damaged and "is missing" in outcome.reason
    persister.submit(job_of(3, {}, regions=regions))
    outcome = place.outcomes.get(timeout=60)
    assert outcome.ref is None and not outcome.damaged and "write it whole" in outcome.reason


@pytest.mark.parametrize("moment", ["before", "while it writes", "when it is done"])
def test_a_killed_process_is_replaced_and_no_image_is_lost(place: Place, moment: str) -> None:
    persister = place.persister()
    ref = place.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    for number in range(2, 4):
        contents = {0: random_bytes(4 << 20)}
        pid = persister.pid
        if moment == "before":
            signalled(pid, signal.SIGKILL)
        job = job_of(number, contents)
        persister.submit(job)
        folder = Path(place.url, "blobs", job.key).parent
        if moment == "while it writes":
            until(lambda: folder.exists() and any(folder.iterdir()), "a file")  # noqa: B023
            signalled(pid, signal.SIGKILL)
        elif moment == "when it is done":
            until(lambda: list(folder.glob("*.pack")), "the pack")  # noqa: B023
            signalled(pid, signal.SIGKILL)
        outcome = place.outcomes.get(timeout=60)
        assert outcome.ref is not None, outcome.reason
        ref = outcome.ref
        check(place, ref, contents)
        if moment == "before":
            assert persister.pid not in (0, pid)


def test_it_is_killed_again_and_again(place: Place) -> None:
    persister = place.persister()
    stop = threading.Event()
    random.seed(5)

    def kill() -> None:
        while not stop.wait(random.uniform(0.02, 0.4)):
            pid = persister.pid
            if pid:
                signalled(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        ref = None
        contents = {0: random_bytes(4 << 20), 1: random_bytes(5000)}
        for number in range(1, 5):
            part = captured(1 << 20)
            regions = None
            if ref is not None:
                at = number * 4096
                regions = [Region(0, 4 << 20, Extents.of([(at, part.data)])), Region(1, 5000, Extents.of([]))]
                contents[0] = contents[0].copy()
                contents[0][at : at + part.nbytes] = part
            ref = place.written(persister, job_of(number, contents, parent=ref, regions=regions))
            check(place, ref, contents)
    finally:
        stop.set()
        killer.join()


def test_where_it_cannot_be_started_the_thread_writes(
    fresh: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    contents = {0: random_bytes(WORTH)}
    for executable, why in (
        ("/nowhere/python", "cannot be started"),
        ("/bin/false", "as soon as it is started"),
    ):
        monkeypatch.setattr(sys, "executable", executable)
        persister = fresh.persister()
        with caplog.at_level(logging.WARNING, "cutline"):
            check(fresh, fresh.written(persister, job_of(1, contents)), contents)
        assert why in caplog.text and not persister.pid
        # It is left alone for a while.
        caplog.clear()
        check(fresh, fresh.written(persister, job_of(2, contents)), contents)
        assert not caplog.text


def test_where_there_is_no_folder_for_it_the_thread_writes(
    fresh: Place, caplog: pytest.LogCaptureFixture
) -> None:
    fresh.folder.rmdir()
    contents = {0: random_bytes(WORTH)}
    check(fresh, fresh.written(fresh.persister(), job_of(1, contents)), contents)
    assert LOCK in caplog.text


def test_what_would_have_to_be_moved_in_masses_is_written_by_the_thread(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist_client, "MOST_MOVED", WORTH)
    persister = place.persister()
    contents = {0: random_bytes(WORTH + 1)}
    check(place, place.written(persister, job_of(1, contents)), contents)
    assert not persister.pid


def test_a_process_that_stands_still_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    persister = place.persister()
    place.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    monkeypatch.setattr(persist_client, "SILENCE", 1.0)
    assert persister._connection is not None
    persister._connection.socket.settimeout(1.0)
    pid = persister.pid
    signalled(pid, signal.SIGSTOP)
    try:
        contents = {0: random_bytes(WORTH)}
        persister.submit(job_of(2, contents))
        persister.drain()
        outcome = place.outcomes.get(timeout=1)
        assert outcome.ref is not None
        check(place, outcome.ref, contents)
        assert "silent" in caplog.text
        caplog.clear()
        # It is called again, but not waited for as long as one that was just started.
        persister._rest_until = 0.0
        check(place, place.written(persister, job_of(3, contents)), contents)
        assert f"silent for {persist_client.ONCE_SILENT:.0f} s" in caplog.text and not persister.pid
        signalled(pid, signal.SIGCONT)
        persister._rest_until = 0.0
        check(place, place.written(persister, job_of(4, contents)), contents)
        assert persister.pid == pid
    finally:
        signalled(pid, signal.SIGKILL)


def test_those_that_begin_at_once_have_one_process(fresh: Place) -> None:
    persisters = [fresh.persister(f"p{number}") for number in range(4)]
    for number, persister in enumerate(persisters):
        persister.submit(job_of(number, {0: random_bytes(WORTH)}))
    refs = [fresh.outcomes.get(timeout=60).ref for _ in persisters]
    assert None not in refs
    assert len({persister.pid for persister in persisters}) == 1


def test_it_ends_soon_after_the_last_one_has_gone(fresh: Place) -> None:
    one, two = fresh.persister("one"), fresh.persister("two")
    for persister in (one, two):
        fresh.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    pid = one.pid
    one.close()
    contents = {0: random_bytes(WORTH)}
    check(fresh, fresh.written(two, job_of(2, contents)), contents)
    assert two.pid == pid and one.pid == 0
    two.close()
    until(lambda: not lives(pid), "its end")
    assert not (fresh.folder / SOCKET).exists()
    three = fresh.persister("three")
    check(fresh, fresh.written(three, job_of(3, contents)), contents)
    assert three.pid not in (0, pid)


_PARTICIPANT = """
import sys, threading
from pathlib import Path
from tests.participant.persisting import Place, job_of, random_bytes
place = Place.__new__(Place)
import queue
from cutline.storage import open_blobs
place.url, place.folder, place.outcomes = sys.argv[1], Path(sys.argv[2]), queue.SimpleQueue()
place.blobs, place.persisters = open_blobs(place.url), []
persister = place.persister("another")
place.written(persister, job_of(7, {0: random_bytes(200_000)}))
print(persister.pid, flush=True)
for number in range(8, 1000):
    place.written(persister, job_of(number, {0: random_bytes(16 << 20)}))
"""


def test_a_killed_participant_does_not_hurt_it_and_leaves_nothing_behind(place: Place) -> None:
    persister = place.persister()
    place.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    root, before = str(Path(__file__).resolve().parents[2]), place.unfinished()
    other = subprocess.Popen(
        [sys.executable, "-c", _PARTICIPANT, place.url, str(place.folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert other.stdout is not None
    try:
        assert int(other.stdout.readline()) == persister.pid
        until(lambda: place.unfinished() - before, "an image that is being written")
    finally:
        other.kill()
        other.communicate()
    until(lambda: not place.unfinished() - before, "the end of what nobody waits for")
    pid, contents = persister.pid, {0: random_bytes(WORTH)}
    check(place, place.written(persister, job_of(2, contents)), contents)
    assert persister.pid == pid


def test_who_talks_nonsense_is_turned_away(place: Place) -> None:
    persister = place.persister()
    place.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    pid = persister.pid
    buffer = Buffer(4096)

    def told(*documents: dict[str, Any]) -> list[Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(place.folder / SOCKET))
            connection.settimeout(20)
            answers = []
            try:
                for document in documents:
                    fds = [buffer.descriptor] if document.get("new") else []
                    send(connection, document, fds)
                    answers.append(receive(connection))
            except HungUp:
                answers.append(None)
            return answers

    greeting = {"greeting": 1, "store": place.url}
    assert told({"greeting": 1, "store": "/nowhere"})[0]["refused"].startswith("no store at /nowhere")
    assert told({"hello": 1}) == [None]
    assert told(greeting, {"new": [[1, 8192]], "gone": [], "job": {}})[1:] == [None]
    assert told(greeting, {"new": [], "gone": [], "job": {"key": 1}, "spool": 1})[1:] == [None]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place.folder / SOCKET))
        connection.sendall(b"\xff" * 8)
        connection.settimeout(20)
        assert connection.recv(1) == b""
    buffer.close()
    contents = {0: random_bytes(WORTH)}
    check(place, place.written(persister, job_of(2, contents)), contents)
    assert persister.pid == pid


def test_what_the_environment_may_say() -> None:
    assert chosen_persister({}) == "process"
    assert persister_here({"CUTLINE_PERSISTER": "thread"}) == ("thread", "CUTLINE_PERSISTER says so")
    with pytest.raises(RefusedOption, match="choose one of process, thread"):
        chosen_persister({"CUTLINE_PERSISTER": "fork"})


def test_what_writes_the_images_of_a_participant(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spec = {
        "member": ["p", 0],
        "machine": machine_id(),
        "persister": "process",
        "store": place.url,
        "system": "s",
        "run": "r",
    }

    def made(**told: str) -> Persister:
        return persister_for({**spec, **told}, place.blobs, place.outcomes.put, place.folder)

    one, thread, two, three = (
        made(),
        made(persister="thread"),
        made(machine="another"),
        made(machine="another"),
    )
    assert type(thread) is Persister
    folders = [each._folder for each in (one, two, three) if isinstance(each, ProcessPersister)]
    (common,) = tmp_path.iterdir()
    assert folders == [place.folder, common, common]
    for each in (one, thread, two, three):
        each.close()
    leave_common(str(common))
    # Somebody else was there first.
    common.mkdir(mode=0o755)
    other = made(machine="another")
    assert type(other) is Persister
    other.close()


def test_what_large_copies_left_is_given_up_after_a_rest(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what no image followed: of a trial at birth, of a capture that came to nothing."""
    monkeypatch.setattr(ProcessPersister, "rest", 0.2)
    persister = place.persister()
    large = buffers().large
    for _ in range(2):
        large.room(LARGEST + 1)
        until(lambda: not large._idle, "nothing lies idle")
    place.written(persister, job_of(1, {0: random_bytes(1000)}))
    large.room(LARGEST + 1)
    persister.close()
    assert not large._idle
