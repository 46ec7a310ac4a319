"""The persister process where memory, threads or descriptors are short, and for a participant that forks."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from cutline.participant import persist_client
from cutline.participant.persist import Persister
from cutline.participant.persist_client import (
    SOCKET,
    WORTH,
)
from cutline.participant.persist_server import Server, _Client
from cutline.participant.shared_memory import CHUNK, buffers
from tests.participant.persisting import (
    Place,
    captured,
    check,
    job_of,
    lives,
    needs_process,
    random_bytes,
)
from tests.system.living import until

pytestmark = needs_process


@pytest.mark.parametrize("moment", ["it starts the process", "it calls it"])
def test_a_child_forked_meanwhile_holds_up_nobody(
    fresh: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    children = []
    ended, ends = os.pipe()
    name = "_run_apart" if moment == "it starts the process" else "send"
    original = getattr(persist_client, name)

    def forked(*arguments: Any) -> None:
        original(*arguments)
        child = os.fork()
        if not child:
            # It lives until the other end is closed.
            os.close(ends)
            os.read(ended, 1)
            os._exit(0)
        children.append(child)
        monkeypatch.setattr(persist_client, name, original)

    monkeypatch.setattr(persist_client, name, forked)
    persister = fresh.persister()
    try:
        with caplog.at_level(logging.WARNING, "cutline"):
            fresh.written(persister, job_of(1, {0: random_bytes(WORTH)}))
            pid = persister.pid
            assert len(children) == 1 and pid
            persister.close()
            until(lambda: not lives(pid), "its end")
            contents = {0: random_bytes(WORTH)}
            other = fresh.persister("other")
            check(fresh, fresh.written(other, job_of(2, contents)), contents)
            assert other.pid not in (0, pid) and not caplog.text
    finally:
        os.close(ends)
        os.close(ended)
        for child in children:
            os.waitpid(child, 0)


def test_it_has_the_environment_in_which_the_store_was_opened(
    fresh: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTLINE_TEST_SECRET", "of the store")
    persister = fresh.persister()
    monkeypatch.setenv("CUTLINE_TEST_SECRET", "of a tool that a handler uses")
    fresh.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    told = Path(f"/proc/{persister.pid}/environ").read_bytes().split(b"\0")
    assert b"CUTLINE_TEST_SECRET=of the store" in told


def test_it_finds_modules_where_its_participant_does(
    fresh: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It knows no site-packages of its own.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.setattr(sys, "path", [os.path.relpath(entry) for entry in sys.path if entry])
    persister = fresh.persister()
    monkeypatch.chdir("/")
    contents = {0: random_bytes(WORTH)}
    check(fresh, fresh.written(persister, job_of(1, contents)), contents)
    assert persister.pid


def _no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("none is left")


def _nonsense(*_: Any, **__: Any) -> Any:
    raise LookupError("nobody")


@pytest.mark.parametrize(
    ("place_of_it", "broken"),
    [
        ("Packing", _no_memory),
        ("_Connection.write", _no_memory),
        ("_Connection.write", lambda *_: {"ref": None}),
        ("_Connection.write", lambda *_: {"strange": 1}),
        ("ImageRef.from_doc", _no_memory),
    ],
)
def test_whatever_goes_wrong_on_the_way_the_thread_writes(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place_of_it: str,
    broken: Any,
) -> None:
    persister = place.persister()
    place.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    monkeypatch.setattr(f"cutline.participant.persist_client.{place_of_it}", broken)
    for number in (2, 3):
        contents = {0: random_bytes(WORTH)}
        check(place, place.written(persister, job_of(number, contents)), contents)
        assert "could not be sent" in caplog.text
    # An answer that was not read must not be taken for that to the next image.
    assert persister.pid == 0
    persister.drain()


def test_the_answer_to_another_image_is_none_to_this_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    persister = place.persister()
    other = place.written(persister, job_of(1, {0: random_bytes(WORTH)}))
    answer = {"ref": other.to_doc(), "reason": "", "damaged": False, "tables": None}
    monkeypatch.setattr(persist_client._Connection, "write", lambda *_: answer)
    contents = {0: random_bytes(WORTH)}
    ref = place.written(persister, job_of(2, contents))
    check(place, ref, contents)
    assert "was asked for" in caplog.text


def test_what_nobody_foresaw_is_an_outcome_too(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Persister(place.blobs, place.outcomes.put, "p")
    monkeypatch.setattr("cutline.participant.persist.write_image", _nonsense)
    made.submit(job_of(1, {0: random_bytes(1000)}))
    outcome = place.outcomes.get(timeout=60)
    assert outcome.checkpoint == 1 and outcome.ref is None and "nobody" in outcome.reason
    monkeypatch.undo()
    made.drain()
    contents = {0: random_bytes(1000)}
    check(place, place.written(made, job_of(2, contents)), contents)
    made.close()
    assert "nobody foresaw" in caplog.text


@pytest.mark.parametrize("busy", [True, False])
def test_who_goes_while_the_process_looks_after_everybody_is_only_gone(place: Place, busy: bool) -> None:
    one, other = socket.socketpair()
    listener = socket.socket(socket.AF_UNIX)
    client = _Client(Server(listener, "nowhere"), one)
    client.busy = busy
    for end in (one, other, listener):
        end.close()
    client.look()
    client.beat()
    assert not client.gone.is_set()


def test_memory_that_is_given_up_here_is_given_up_there_though_only_small_images_follow(place: Place) -> None:
    def mapped_there() -> int:
        return Path(f"/proc/{persister.pid}/maps").read_text().count("memfd:cutline-captured")

    persister = place.persister()
    held = [buffers().room(CHUNK) for _ in range(4)]
    buffers().prepare()
    held = [captured(CHUNK) for _ in range(4)]
    contents = dict(enumerate(held))
    place.written(persister, job_of(1, contents))
    assert mapped_there() >= 5
    held.clear()
    contents.clear()
    pid = persister.pid
    for number in range(2, 30):
        place.written(persister, job_of(number, {0: random_bytes(1000)}))
    # The spool stays, and one more at most.
    until(lambda: mapped_there() <= 2, "the end of what lies idle")
    contents = {0: captured(CHUNK), 1: random_bytes(WORTH)}
    check(place, place.written(persister, job_of(30, contents)), contents)
    assert persister.pid == pid


def test_one_too_many_is_turned_away_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_Client, "start", no_thread)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()
        caller.connect(str(tmp_path / SOCKET))
        server = Server(listener, str(tmp_path / SOCKET))
        server._accept()
        caller.settimeout(20)
        assert caller.recv(1) == b"" and not server._clients
        listener.setblocking(False)
        server._accept()
