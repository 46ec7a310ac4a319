"""`cutline.Log` is a list in all but its type, and its snapshots are exact."""

from __future__ import annotations

import bisect
import copy
import os
import pickle
import random
from collections.abc import Callable, MutableSequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cutline.participant import log as log_module
from cutline.participant.log import Log, Snapshot
from tests.participant.log_in_a_row import LogInARow

# By the make verb many more.
EXAMPLES = int(os.environ.get("CUTLINE_CONTAINERS_EXAMPLES", "0"))

TestLogInARow = LogInARow.TestCase
TestLogInARow.settings = settings(max_examples=max(30, EXAMPLES), stateful_step_count=30, deadline=None)


def test_it_is_a_mutable_sequence_and_no_list() -> None:
    log: Log[int] = Log([1, 2])
    assert isinstance(log, MutableSequence) and not isinstance(log, list)
    with pytest.raises(TypeError):
        list.append(log, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hash(log)
    assert Log[int] is not None
    match log:
        case [first, *rest]:
            assert (first, rest) == (1, [2])
        case _:
            raise AssertionError("a pattern does not take it for a sequence")


def test_constructing_it_again_is_what_it_is_for_a_list() -> None:
    log = Log("ab")
    log.__init__([1])  # type: ignore[misc]
    assert log == [1] and Log() == [] and Log(x for x in (1, 2)) == [1, 2]
    with pytest.raises(TypeError):
        Log(1)  # type: ignore[arg-type]


def test_slices_sums_and_copies_are_logs() -> None:
    log = Log([1, {}])
    for made in (log[:], log[::-1], log + [1], [1] + log, log + log, log * 2, 2 * log, log.copy()):
        assert type(made) is Log
    assert log[:].loose == [1] and ([0] + log).loose == [2]
    with pytest.raises(TypeError):
        log + (1,)
    with pytest.raises(TypeError):
        (1,) + log
    with pytest.raises(TypeError):
        log * "a"  # type: ignore[operator]
    assert log.__eq__((1,)) is NotImplemented and log != (1, {})


def test_what_extends_it_and_raises_leaves_what_it_gave() -> None:
    def failing() -> Any:
        yield 1
        yield []
        raise KeyError("no more")

    log: Log[Any] = Log()
    with pytest.raises(KeyError):
        log.extend(failing())
    assert log == [1, []] and log.loose == [1]
    log += (2, {})
    assert log == [1, [], 2, {}] and log.loose == [1, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda each: each[5],
        lambda each: each["a"],
        lambda each: each.__setitem__(5, 1),
        lambda each: each.__setitem__("a", 1),
        lambda each: each.__delitem__(5),
        lambda each: each.__setitem__(slice(None, None, 2), [1]),
        lambda each: each.__setitem__(slice(None), 1),
        lambda each: each.pop(7),
        lambda each: each.remove("not there"),
        lambda each: each.index("not there"),
        lambda each: each.extend(1),
        lambda each: each.insert("a", 1),
        lambda each: each.sort(key=lambda _: 1 / 0),
        lambda each: each < (1,),
    ],
)
def test_it_raises_what_a_list_raises(call: Callable[[Any], Any]) -> None:
    plain, log = [1, 2, 3], Log([1, 2, 3])
    with pytest.raises(Exception) as theirs:
        call(plain)
    with pytest.raises(Exception) as ours:
        call(log)
    assert ours.type is theirs.type
    assert log == plain


def test_other_people_s_tools() -> None:
    log = Log([3, 1, 2])
    random.Random(1).shuffle(log)
    log.sort()
    bisect.insort(log, 2)
    assert log == [1, 2, 2, 3] and sum(log) == 8 and max(log) == 3
    assert "".join(Log("ab")) == "ab"
    walked = []
    for value in log:
        walked.append(value)
        if len(log) < 6:
            log.append(9)
    assert walked == [1, 2, 2, 3, 9, 9]


def test_a_log_may_hold_itself() -> None:
    log: Log[Any] = Log([1])
    log.append(log)
    assert repr(log) == "Log([1, Log([...])])"
    for again in (pickle.loads(pickle.dumps(log)), copy.deepcopy(log)):
        assert again[1] is again and again.loose == [1]


class Titled(Log[Any]):
    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title


def test_a_subclass_keeps_its_attributes() -> None:
    log = Titled("minutes")
    log.append({})
    for again in (pickle.loads(pickle.dumps(log)), copy.deepcopy(log), copy.copy(log)):
        assert type(again) is Titled and again.title == "minutes" and again == [{}] and again.loose == [0]
    assert type(log[:]) is Titled


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_all_protocols(protocol: int) -> None:
    log = Log([1, {"a": 1}])
    chain = log.chain(lambda value: repr(value).encode())
    again = pickle.loads(pickle.dumps(log, protocol))
    assert again == log and again.loose == [1]
    assert again.chain(lambda _: b"it is not asked for again") == chain


def test_a_snapshot_copies_nothing_until_something_below_it_changes() -> None:
    log = Log(range(1000))
    log.snapshot(1, None).close()
    log.extend((1, 2))
    taken = log.snapshot(2, 1)
    assert (taken.start, taken.length) == (1000, 1002)
    log.append(3)
    assert taken._log is log
    log[1001] = 7
    assert taken._log is None and taken.values() == [1, 2]
    assert log.snapshot(3, 1).start == 1000 and log.snapshot(4, 2).start == 1001
    log.aborted(3)
    log.committed(4)
    assert log._lows == {4: 1003}


# -- lies: each has to show ---------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def no_copy_on_write(patch: Patch) -> None:
    patch.setattr(Snapshot, "detach", lambda self: None)


def touched_one_too_high(patch: Patch) -> None:
    true = Log._touch
    patch.setattr(Log, "_touch", lambda self, at: true(self, at + 1))


def low_of_the_last_capture_alone(patch: Patch) -> None:
    def snapshot(self: Any, number: int, against: int | None) -> Snapshot:
        start = self._lows.get(against, 0) if against is not None else 0
        taken = Snapshot(self, start)
        self._open.append(taken)
        self._low = self._floor = self._lows[number] = taken.length
        return taken

    patch.setattr(Log, "snapshot", snapshot)


def loose_ones_do_not_move(patch: Patch) -> None:
    def _replace(self: Any, start: int, stop: int, values: list[Any]) -> None:
        self._touch(start)
        self._loose = [at for at in self._loose if at < start] + log_module._loose_of(values, start)
        self._items[start:stop] = values

    patch.setattr(Log, "_replace", _replace)


def chain_of_appends_alone(patch: Patch) -> None:
    true = Log._touch

    def _touch(self: Any, at: int) -> None:
        chain = self._chain
        true(self, at)
        self._chain, self._covered = chain, min(self._covered + 1, len(self._items))

    patch.setattr(Log, "_touch", _touch)


LIES = (
    no_copy_on_write,
    touched_one_too_high,
    low_of_the_last_capture_alone,
    loose_ones_do_not_move,
    chain_of_appends_alone,
)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_caught(lie: Callable[[Patch], None], monkeypatch: Patch) -> None:
    without = settings(
        max_examples=400,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    with monkeypatch.context() as patch:
        lie(patch)
        with pytest.raises((AssertionError, IndexError)):
            run_state_machine_as_test(LogInARow, settings=without)
