"""Messages and states of unusual size and direction; many checkpoints at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import CheckpointAborted
from tests.system.actors import Bouncer, Bulky, Counter
from tests.system.living import again, kill, pid_of, recoveries, until

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, mark: str) -> Iterator[cutline.System]:
    with cutline.start(tmp_path_factory.mktemp("store"), interval=None, quiet=True) as system:
        yield system


@pytest.fixture(autouse=True)
def told(system: cutline.System) -> None:
    again(system.status)


@pytest.mark.parametrize("size", [int(3.9 * MIB), int(4.1 * MIB), 64 * MIB])
def test_a_large_message_there_and_back_and_on(system: cutline.System, size: int) -> None:
    one, two = system.spawn(f"bulky {size}", Bulky), system.spawn(f"other {size}", Bulky)
    assert one.swallow.remote(b"x" * size).result() == size
    assert len(one.give.remote(size).result()) == size
    one.forward.remote(two, size).result()
    assert until(lambda: two.swallow.remote(b"").result() == 0, "the other one")
    # Checkpoints go on, and hold what was on its way.
    one.forward.tell(two, size)
    assert system.checkpoint() > 0


def test_a_state_of_200_megabytes(system: cutline.System) -> None:
    size = 200 * 1000 * 1000
    heavy = system.spawn("heavy", Bulky)
    total = heavy.fill.remote(size, 3).result()
    kept = system.checkpoint()
    row = system.checkpoints()[-1]
    assert row.checkpoint == kept and row.summary["state_bytes"] >= size
    kill(system, "heavy")
    assert again(lambda: heavy.checksum.remote().result()) == total
    # The next delta writes next to nothing of it.
    again(system.checkpoint)
    row = system.checkpoints()[-1]
    assert row.kind == "delta" and row.summary["written_bytes"] < size / 10
    assert heavy.fill.remote(1000, 3).result() > 0


def test_ping_pong_and_talking_to_oneself(system: cutline.System) -> None:
    tokens, hits = 50, 10
    one, two = system.spawn("ping", Bouncer), system.spawn("pong", Bouncer)
    one.meet.remote(two).result()
    two.meet.remote(one).result()
    again(system.checkpoint)
    before = len(recoveries(system))
    for token in range(tokens):
        one.ball.tell(token, hits)
    again(system.checkpoint)
    kill(system, "pong")
    assert len(recoveries(system)) == before + 1

    def results() -> tuple[Any, Any]:
        return again(lambda: (one.result.remote().result(), two.result.remote().result()))

    def ended() -> bool:
        both = results()
        done = sum(finished for _seen, _own, _ordered, finished in both) == tokens
        return bool(done) and sum(own for _seen, own, _ordered, _f in both) == tokens * (hits + 1) * 20

    until(ended, "all tokens to end", 30.0)
    first, second = results()
    assert first[0] == {token: hits // 2 + 1 for token in range(tokens)}
    assert second[0] == {token: hits // 2 for token in range(tokens)}
    assert first[2] and second[2]


def test_a_burst_is_neither_lost_nor_reordered(system: cutline.System) -> None:
    counter = system.spawn("burst", Counter)
    for number in range(3000):
        counter.note.tell(number)
        if number == 1500:
            system.checkpoint()
    kill(system, "burst")
    assert again(lambda: counter.notes.remote().result()) == list(range(3000))


def test_a_handle_may_be_there_before_its_participant(system: cutline.System) -> None:
    # Cyclic wiring: it is used when both are there.
    one = system.spawn("early", Bouncer)
    one.meet.remote(system.handle("tardy")).result()
    tardy = system.spawn("tardy", Bouncer)
    one.ball.tell(1, 1)
    assert until(lambda: again(lambda: tardy.result.remote().result())[3] == 1, "the ball")


def test_many_requests_for_checkpoints_are_joined(system: cutline.System) -> None:
    before = len(system.checkpoints()) and system.checkpoints()[-1].checkpoint
    numbers: list[int] = []
    threads = [threading.Thread(target=lambda: numbers.append(system.checkpoint())) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers) == 50 and min(numbers) > before
    # Those that waited together were answered by one.
    assert len(set(numbers)) < 25


def test_the_newest_is_by_order_and_pauses_are_kept(tmp_path: Path, mark: str) -> None:
    with cutline.start(tmp_path, interval=0.05, min_pause=0.3, quiet=True) as own:
        own.spawn("counter", Counter)
        seen = until(lambda: [n for n in list(own.notices) if n["what"] == "committed"][4:], "five cuts")
        committed = [n for n in list(own.notices) if n["what"] == "committed"]
        gaps = [b["at"] - a["at"] for a, b in zip(committed[1:], committed[2:], strict=False)]
        assert min(gaps) >= 0.29 and seen
        numbers = [row.checkpoint for row in own.checkpoints()]
        assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers)


def test_a_checkpoint_survives_a_loss_in_its_middle(system: cutline.System) -> None:
    # Whatever the moment: committed or aborted by name, and the next one commits.
    counter = system.spawn("middle", Counter)
    for round_ in range(3):
        assert again(lambda: counter.add.remote(1).result(committed=True)) == round_ + 1
        pid = pid_of(system, "middle")
        killer = threading.Timer(0.002 * round_, os.kill, (pid, signal.SIGKILL))
        began = time.monotonic()
        killer.start()
        try:
            again(system.checkpoint)
        except CheckpointAborted as error:
            assert "middle" in str(error)
        killer.join()
        assert again(lambda: counter.add.remote(0).result()) == round_ + 1
        assert again(system.checkpoint) > 0 and time.monotonic() - began < 20
