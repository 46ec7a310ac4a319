"""Input of running systems: acknowledged is done once, however often it is sent, whatever is lost."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import Corrupt, InputRefused, Misuse, StoreFull, SystemHalted
from cutline.participant.ingress import IngressLog
from cutline.storage import CheckpointRow, open_store
from tests.system.actors import Counter
from tests.system.living import Program, again, comes_to, kill, left_over, until

TEXT = "x" * 2000


def files(folder: Path) -> list[Path]:
    """The files of the store's only log."""
    return sorted((folder / "ingress").glob("*.log"))


def is_cut(folder: Path) -> bool:
    """Whether its first file has gone."""
    names = [each.name for each in files(folder)]
    return bool(names) and all(name.count(".") > 1 for name in names)


def fed(system: cutline.System, counter: Any, first: int, count: int) -> None:
    """So many inputs with keys, in the log and done."""
    for number in range(first, first + count):
        counter.note.options(key=f"number {number}").tell([number, TEXT])
    comes_to(lambda: len(again(lambda: counter.notes.remote().result())), first + count, "all of it")


def numbers(counter: Any) -> list[int]:
    """What the counter was told, in order."""
    return [number for number, _ in again(lambda: counter.notes.remote().result())]


def cut(system: cutline.System, folder: Path, counter: Any, first: int) -> int:
    """Feeds and takes checkpoints until files of the log have gone; how much has been fed by then."""
    while not is_cut(folder):
        fed(system, counter, first, 20)
        first += 20
        again(system.checkpoint)
        # The coordinator looks once a second.
        time.sleep(0.2)
    return first


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store with a savepoint from before all input, whose log was cut; and how much input there was."""
    folder = tmp_path_factory.mktemp("made") / "store"
    with cutline.start(folder, interval=None, keep=2, quiet=True) as system:
        counter = system.spawn("counter", Counter)
        system.savepoint("at first")
        told = cut(system, folder, counter, 0)
    return folder, told


@pytest.fixture
def store(made: tuple[Path, int], tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made[0], tmp_path / "store")
    return tmp_path / "store"


def test_keys_outlive_the_log_a_loss_and_a_restart(made: tuple[Path, int], store: Path) -> None:
    told = made[1]
    with cutline.start(store, interval=None, keep=2, quiet=True) as system:
        counter = system.spawn("counter", Counter)
        # Keys of inputs that the log does not have any more, and of those behind the newest checkpoint.
        fed(system, counter, told, 5)
        for number in (0, 1, told // 2, told - 1, told + 4):
            counter.note.options(key=f"number {number}").tell([number, TEXT])
        kill(system, "counter")
        again(lambda: counter.note.options(key="number 3").tell([3, TEXT]))
        assert numbers(counter) == list(range(told + 5))
    # A fork of a savepoint whose input was removed needs none of it, and knows the keys that it knew.
    with cutline.start(store, interval=None, restore="at first", quiet=True) as system:
        counter = system.spawn("counter", Counter)
        fed(system, counter, 0, 3)
        counter.note.options(key="number 1").tell([1, TEXT])
        assert numbers(counter) == [0, 1, 2]


def rows(folder: Path) -> list[CheckpointRow]:
    with open_store(folder, create=False) as store:
        return store.catalog.checkpoints("default")


def damage(folder: Path, row: CheckpointRow) -> None:
    """So that it is no cut any more."""
    with open_store(folder, create=False) as store:
        pack = store.read_manifest(row).images["counter"].ref.key
    (folder / "blobs" / pack).write_bytes(b"damaged")


def test_a_recovery_to_before_what_was_removed_says_so(store: Path) -> None:
    for row in rows(store):
        if row.label is None:
            damage(store, row)
    with pytest.raises(
        (Corrupt, SystemHalted), match=r"begins with record \d+: records \d+ to \d+.*restore="
    ):
        with cutline.start(store, interval=None, quiet=True) as system:
            system.handle("counter").notes.remote().result()


def test_damage_in_the_middle_of_the_log_names_the_place_and_the_way_on(
    made: tuple[Path, int], store: Path
) -> None:
    path = files(store)[0]
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=r"record \d+, at byte \d+, is damaged.*restore='newest'") as caught:
        cutline.start(store, interval=None, quiet=True)
    assert caught.value.facts["path"] == str(path) and 0 < caught.value.facts["offset"] <= at
    assert path.read_bytes() == content
    with cutline.start(store, interval=None, quiet=True, restore="newest") as system:
        assert numbers(system.spawn("counter", Counter)) == list(range(made[1]))


def test_a_program_that_is_killed_and_sends_again(tmp_path: Path) -> None:
    reached = 1
    with left_over():
        for turn in range(2):
            # It does not know which of those before were taken.
            with Program("dictating.py", tmp_path, max(1, reached - 20)) as program:
                coordinator = int(program.read_until("coordinator "))
                goal = reached + 300
                while reached < goal or (turn == 1 and not is_cut(tmp_path)):
                    reached = int(program.read_until("acked "))
                    if reached == goal - 150 and turn == 1:
                        os.kill(coordinator, signal.SIGKILL)
                program.send(signal.SIGKILL)
                reached = int(program.last("acked "))
                program.end()
        with cutline.start(tmp_path, interval=None, quiet=True) as system:
            found = numbers(system.spawn("counter", Counter))
    # One more may be in the log, whose acknowledgement nobody has heard.
    assert found in (list(range(1, reached + 1)), list(range(1, reached + 2)))


# -- back-pressure -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cutline.System]:
    with cutline.start(
        tmp_path_factory.mktemp("store"), interval=None, quiet=True, waiting_inputs=3
    ) as system:
        yield system


def test_a_call_waits_for_room_or_is_refused_and_was_never_there(system: cutline.System) -> None:
    counter = system.spawn("waiting", Counter)
    system.checkpoint()
    held = threading.Event()
    system._runner.post(lambda: held.wait(60))
    try:
        for number in range(3):
            counter.note.tell(number)
        with pytest.raises(InputRefused, match=r"waiting\.note: 3 inputs .* was not taken"):
            counter.note.options(wait=0.05).tell("refused")
        with pytest.raises(InputRefused):
            counter.note.options(wait=0.0).remote("refused too")
        late = threading.Thread(target=lambda: counter.note.options(acked=True).tell(3))
        late.start()
        late.join(0.1)
        assert late.is_alive()
    finally:
        held.set()
    late.join(30)
    assert not late.is_alive()
    assert counter.notes.remote().result() == [0, 1, 2, 3]


def failing(times: int) -> Callable[..., int]:
    """An append whose disk is full so often."""
    real, left = IngressLog.append, [times]

    def append(self: IngressLog, records: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise StoreFull("the log is full")
        return real(self, records)

    return append


def test_what_a_full_disk_did_not_take_is_told(
    system: cutline.System, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = system.spawn("on a full disk", Counter)
    monkeypatch.setattr(IngressLog, "append", failing(1))
    counter.note.tell("lost")
    until(lambda: system._runner.refused, "the refusal")
    with pytest.raises(StoreFull):
        counter.note.tell("not even tried")
    counter.note.tell("taken")
    assert counter.notes.remote().result() == ["taken"]
    monkeypatch.setattr(IngressLog, "append", failing(2))
    with pytest.raises(StoreFull):
        counter.note.options(acked=True).tell("lost too")
    with pytest.raises(StoreFull):
        counter.note.remote("and this").result()
    assert counter.notes.remote().result() == ["taken"]


def test_a_key_is_of_one_method(system: cutline.System, tmp_path: Path) -> None:
    counter = system.spawn("with a key", Counter)
    assert counter.add.options(key="k").remote(1).result() == 1
    with pytest.raises(Misuse, match=r"'k' was used for with a key\.add, and is now for with a key\.note"):
        counter.note.options(key="k", acked=True).tell("x")
    assert counter.add.options(key="k").remote(1).result() == 1
    for wrong in ({"remember_keys": 0.0}, {"waiting_inputs": 0}):
        with pytest.raises(cutline.errors.RefusedOption, match=next(iter(wrong))):
            cutline.start(tmp_path, quiet=True, **wrong)


def test_a_system_that_ends_makes_no_call_wait(system: cutline.System) -> None:
    counter = system.spawn("at the end", Counter)
    held = threading.Event()
    system._runner.post(lambda: held.wait(60))
    ended: list[BaseException] = []

    def note(number: int) -> None:
        try:
            counter.note.options(acked=True).tell(number)
        except cutline.errors.CutlineError as error:
            ended.append(error)

    threads = [threading.Thread(target=note, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: system._runner.room.inputs == 3, "three to be in")
    system._runner.fault = SystemHalted("the end")
    held.set()
    for thread in threads:
        thread.join(30)
    assert len(ended) == 6 and all(isinstance(error, SystemHalted) for error in ended)
