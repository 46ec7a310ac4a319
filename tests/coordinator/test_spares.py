"""Spares without Ray: a thread stands by as a host would."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator import spares
from cutline.coordinator.spares import Spares
from cutline.errors import SpawnFailed
from cutline.participant.standing_by import LAUNCH_BYTES, await_document, received
from tests.system.living import comes_to, until

PLAIN = {"num_cpus": 0, "name": ""}


class Stage:
    """Hosts that are threads, and what they were told."""

    def __init__(self, folder: Path) -> None:
        self.plain: Mapping[str, Any] = PLAIN
        self.started: list[str] = []
        self.heard: dict[str, bytes] = {}
        self.ended: list[str] = []
        self.failing = False
        # Whether hosts come up.
        self.curtain = threading.Event()
        self.curtain.set()
        self.spares = Spares(1, folder, lambda: self.plain, self.start, self.ended.append)

    def start(self, options: Mapping[str, Any], launch: str, path: str) -> None:
        """A host is asked for."""
        if self.failing:
            raise SpawnFailed("no room")
        self.started.append(launch)
        self.path = path
        threading.Thread(target=self.host, args=(path, launch), daemon=True).start()

    def host(self, path: str, launch: str) -> None:
        """What a host does."""
        self.curtain.wait()
        self.heard[launch] = await_document(path, launch)

    def comes_up(self) -> str:
        """Has a spare come up; its launch."""
        self.spares.expect(PLAIN)
        self.spares.tend()
        until(lambda: any(spare.connection for _, spare in self.spares.standing()), "a spare that is up")
        return self.spares.standing()[0][0]

    def are_up(self, count: int) -> None:
        """Waits until so many are, and has them started."""

        def all_up() -> bool:
            self.spares.tend()
            standing = self.spares.standing()
            return len(standing) == count and all(spare.connection for _, spare in standing)

        until(all_up, f"{count} spares that are up")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Spares that are started at once."""
    monkeypatch.setattr(spares, "SETTLED_AFTER", 0.0)
    made = Stage(tmp_path)
    yield made
    made.curtain.set()
    made.spares.close()


def doc(launch: str) -> bytes:
    """A document that fills several buffers of a socket."""
    return launch.encode() * 100_000


def test_who_is_lost_goes_into_a_spare_that_is_up_and_another_one_takes_its_place(stage: Stage) -> None:
    launch = stage.comes_up()
    assert stage.spares.take(PLAIN, doc) == launch
    comes_to(lambda: stage.heard, {launch: doc(launch)}, "the document")
    assert stage.spares.take(PLAIN, doc) == ""
    assert stage.comes_up() != launch
    assert stage.ended == []


def test_a_spare_that_is_coming_up_is_taken_too_and_gets_its_document_then(stage: Stage) -> None:
    stage.curtain.clear()
    stage.spares.expect(PLAIN)
    stage.spares.tend()
    (launch,) = stage.started
    assert stage.spares.take(PLAIN, doc) == launch
    assert stage.spares.take(PLAIN, doc) == ""
    stage.spares.tend()
    assert len(stage.started) == 2
    stage.curtain.set()
    comes_to(lambda: stage.heard.get(launch, b""), doc(launch), "the document")
    # Its end is that of whoever has taken it.
    assert not stage.spares.lost(launch)


def test_whoever_was_taken_and_ends_before_it_is_up_is_a_loss_of_its_participant(stage: Stage) -> None:
    stage.curtain.clear()
    stage.spares.expect(PLAIN)
    stage.spares.tend()
    assert stage.spares.take(PLAIN, doc) == stage.started[0]
    assert not stage.spares.lost(stage.started[0])


def test_one_with_options_of_its_own_gets_none(stage: Stage) -> None:
    stage.comes_up()
    assert stage.spares.take({**PLAIN, "num_cpus": 1}, doc) == ""
    assert stage.heard == {}


def test_there_are_none_where_nobody_could_use_one_and_none_where_none_is_wanted(
    stage: Stage, tmp_path: Path
) -> None:
    stage.spares.expect({**PLAIN, "num_cpus": 1})
    stage.spares.tend()
    assert stage.started == []
    stage.spares.count = 0
    stage.spares.expect(PLAIN)
    stage.spares.tend()
    assert stage.started == []


def test_they_come_one_after_the_other_and_no_more_than_are_wanted(stage: Stage) -> None:
    stage.spares.count = 2
    stage.curtain.clear()
    stage.spares.expect(PLAIN)
    stage.spares.tend()
    stage.spares.tend()
    # The first one is still coming up.
    assert len(stage.started) == 1
    stage.curtain.set()
    stage.are_up(2)
    stage.spares.tend()
    assert len(stage.started) == 2


def test_there_is_one_for_each_who_could_use_it_as_far_as_memory_reaches(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 2
    monkeypatch.setattr(spares, "room_for_another", lambda standing: standing < room)
    stage.spares.count = None
    for launch in ("a", "b", "c"):
        assert stage.spares.expect(PLAIN)
        stage.spares.serve(launch)
    assert not stage.spares.expect({**PLAIN, "num_cpus": 1})
    stage.are_up(2)
    stage.spares.tend()
    assert len(stage.started) == 2
    room = 10
    stage.are_up(3)
    stage.spares.tend()
    assert len(stage.started) == 3
    # All three are lost: those who stand by are for them, and not for fewer.
    for launch in ("a", "b", "c"):
        assert not stage.spares.lost(launch)
    stage.spares.tend()
    assert {stage.spares.take(PLAIN, doc) for _ in range(3)} == {*stage.started}
    stage.spares.tend()
    assert len(stage.started) == 3


def test_the_first_one_comes_however_little_memory_there_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "room_for_another", lambda _standing: False)
    stage.spares.count = None
    stage.spares.serve("a")
    stage.spares.serve("b")
    stage.comes_up()
    stage.spares.tend()
    assert len(stage.started) == 1


def test_one_that_has_died_is_passed_over(stage: Stage) -> None:
    launch = stage.comes_up()
    connection = stage.spares.standing()[0][1].connection
    assert connection is not None
    # A process that has ended has closed its socket; this shuts both ends of it.
    connection.shutdown(socket.SHUT_RDWR)
    comes_to(lambda: stage.heard, {launch: b""}, "the end of the wait")
    assert stage.spares.take(PLAIN, doc) == ""
    assert stage.ended == [launch]


def test_one_that_died_unused_is_nobodys_loss(stage: Stage) -> None:
    launch = stage.comes_up()
    assert stage.spares.lost(launch)
    assert stage.spares.take(PLAIN, doc) == ""
    # Whatever it died of may still be there.
    stage.spares.tend()
    assert stage.started == [launch]
    assert not stage.spares.lost("somebody's")


def test_one_that_fits_no_more_is_ended_and_replaced(stage: Stage) -> None:
    launch = stage.comes_up()
    stage.plain = {**PLAIN, "label_selector": {"node": "!in(gone)"}}
    stage.spares.tend()
    comes_to(lambda: stage.heard, {launch: b""}, "the end of the misfit")
    assert stage.ended == [launch]
    assert len(stage.started) == 2
    assert stage.spares.take(PLAIN, doc) == ""


def test_spares_end_with_their_coordinator(stage: Stage) -> None:
    up = stage.comes_up()
    stage.spares.close()
    comes_to(lambda: stage.heard, {up: b""}, "its end")
    assert stage.ended == [up]
    # One that comes up after that finds nobody.
    assert await_document(stage.path, up) == b""
    assert not Path(stage.path).exists()


def test_one_that_nobody_knows_is_sent_away(stage: Stage) -> None:
    up = stage.comes_up()
    assert await_document(stage.path, "x" * LAUNCH_BYTES) == b""
    assert [launch for launch, _ in stage.spares.standing()] == [up]


def test_part_of_a_document_is_none(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        spare = threading.Thread(target=lambda: heard.append(await_document(path, "a" * LAUNCH_BYTES)))
        spare.start()
        connection, _ = listener.accept()
        with connection:
            assert received(connection, LAUNCH_BYTES) == b"a" * LAUNCH_BYTES
            connection.sendall((10).to_bytes(8, "big") + b"half")
        spare.join()
    assert heard == [b""]


def test_a_host_that_cannot_be_started_is_tried_again_later(stage: Stage) -> None:
    stage.failing = True
    stage.spares.expect(PLAIN)
    stage.spares.tend()
    assert stage.spares.standing() == []
    stage.failing = False
    stage.spares.tend()
    assert stage.started == []
    # Somebody was started since, so that may be over.
    assert stage.comes_up() == stage.started[0]


def test_a_connection_that_cannot_be_taken_ends_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of descriptors, say: whoever stands in the queue is let in when there are some again."""
    real, failures = socket.socket.accept, [OSError(24, "Too many open files")] * 2

    def accept(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    launch = stage.comes_up()
    assert not failures
    assert stage.spares.take(PLAIN, doc) == launch
    comes_to(lambda: stage.heard, {launch: doc(launch)}, "the document")


def test_nobody_is_asked_to_stand_by_after_the_end(stage: Stage) -> None:
    stage.spares.expect(PLAIN)
    stage.spares.close()
    stage.spares.count = 1
    stage.spares.tend()
    assert stage.started == []
