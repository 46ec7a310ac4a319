"""Large arguments through Ray's object store: there and back, in cuts, over losses."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cutline
from cutline.errors import RolledBack

ray = pytest.importorskip("ray")
from tests.ray.cast import Store  # noqa: E402

pytestmark = pytest.mark.usefixtures("local_ray")
LARGE = 300_000


@pytest.fixture(scope="module")
def system(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cutline.System]:
    folder = tmp_path_factory.mktemp("parcels") / "checkpoints"
    with cutline.start(str(folder), name="parcels", interval=None, quiet=True) as started:
        yield started


def store(name: str) -> Any:
    return Store.options(name=name).remote()  # type: ignore[attr-defined]


def read(method: Any, *args: Any) -> Any:
    """An answer that is not logged, over rollbacks."""
    while True:
        try:
            return method.options(durable=False).remote(*args).result(60)
        except RolledBack:
            continue


def settles(made: Any) -> bool:
    """Whether nothing of a participant's is under way any more, soon."""
    deadline = time.monotonic() + 20
    while read(made.under_way) != [0, 0]:
        if time.monotonic() > deadline:
            return False
    return True


def grows_to(made: Any, expected: list[float]) -> bool:
    """Whether a participant comes to have taken exactly this, in order and nothing twice."""
    deadline = time.monotonic() + 60
    while (found := read(made.look)[1]) != expected:
        if time.monotonic() > deadline or found != expected[: len(found)]:
            return False
    return True


def test_large_arguments_arrive_by_reference_and_read_only(system: cutline.System) -> None:
    made = store("plain")
    assert read(made.take, np.full(LARGE, 2.0)) == (4.0, False)
    assert read(made.take, np.full(10, 2.0)) == (4.0, True)
    # Logged ones are bytes in the log and on the way.
    assert ray.get(made.take.remote(np.full(LARGE, 3.0))) == (6.0, True)
    assert settles(made)


def test_in_a_loop_between_participants_and_in_async_handlers(system: cutline.System) -> None:
    first, second = store("first"), store("second")

    def body(step: int) -> None:
        first.take.remote(np.full(LARGE, float(step))).result(60)

    system.loop("push", 3, body)
    first.send.remote(second, 4, 0.0).result(60)
    assert read(first.take_slowly, np.full(LARGE, 5.0), second) == 15.0
    assert read(first.look)[1] == [0.0, 2.0, 4.0]
    assert read(second.look)[1] == [0.0, 2.0, 4.0, 6.0, 10.0]
    assert settles(first) and settles(second)


def test_a_borrowed_array_in_the_state_is_captured_and_restored(system: cutline.System) -> None:
    made = store("holder")
    read(made.hold, np.arange(float(LARGE)))
    before = read(made.look)[0]
    system.checkpoint()
    os.kill(read(made.pid), signal.SIGKILL)
    assert read(made.look)[0] == before == float(np.arange(LARGE).sum())


@pytest.mark.parametrize("victim", ["sender", "receiver", "both"])
def test_parcels_under_way_are_in_the_cut(system: cutline.System, victim: str) -> None:
    sender, receiver = store(f"sender-{victim}"), store(f"receiver-{victim}")
    system.ready([sender, receiver])
    pids = {"sender": read(sender.pid), "receiver": read(receiver.pid)}
    sender.send.remote(receiver, 8, 0.4).result(60)
    # Most of them wait at the receiver, whose handler is slow.
    system.checkpoint()
    for role, pid in pids.items():
        if victim in (role, "both"):
            os.kill(pid, signal.SIGKILL)
    assert grows_to(receiver, [2.0 * number for number in range(8)])
    assert settles(sender) and settles(receiver)


@pytest.mark.parametrize("runtime", ["ray", "process"])
def test_parcels_in_a_checkpoint_are_handled_by_the_next_run(
    local_ray: None, folder: str, runtime: str
) -> None:
    with cutline.start(folder, name="later", interval=None, quiet=True):
        first, second = store("first"), store("second")
        first.send.remote(second, 6, 0.3).result(60)
    with cutline.start(folder, name="later", interval=None, quiet=True, runtime=runtime):
        second = store("second")
        assert grows_to(second, [2.0 * number for number in range(6)])
        assert settles(second)


def test_by_reference_can_be_turned_off(local_ray: None, folder: str) -> None:
    with cutline.start(folder, name="off", interval=None, quiet=True, by_reference=0):
        assert read(store("plain").take, np.full(LARGE, 2.0)) == (4.0, True)
