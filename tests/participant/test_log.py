"""`cutline.Log` is a list in all but its type, and its snapshots are exact."""

from __future__ import annotations

import bisect
import copy
import os
import pickle
import random
import threading
from collections.abc import Callable, MutableSequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cutline.errors import CannotCapture, CannotRestore
from cutline.participant import container
from cutline.participant import log as log_module
from cutline.participant import log_change as log_change_module
from cutline.participant.immutable import is_immutable
from cutline.participant.log import Log
from tests.participant.images import through_message
from tests.participant.log_in_a_row import LogInARow
from tests.participant.maps_in_a_row import Open
from tests.participant.test_map import Taking, written

# By the make verb many more.
EXAMPLES = int(os.environ.get("CUTLINE_TEST_CONTAINERS", "0"))

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
    log: Log[Any] = Log("ab")
    log.__init__([1])
    assert log == [1] and Log() == [] and Log(x for x in (1, 2)) == [1, 2]
    with pytest.raises(TypeError):
        Log(1)  # type: ignore[arg-type]


def test_slices_sums_and_copies_are_logs() -> None:
    log = Log([1, {}])
    for made in (log[:], log[::-1], log + [1], [1] + log, log + log, log * 2, 2 * log, log.copy()):
        assert type(made) is Log
    assert log[:]._loose == [1] and ([0] + log)._loose == [2]
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
    assert log == [1, []] and log._loose == [1]
    log += (2, {})
    assert log == [1, [], 2, {}] and log._loose == [1, 3]


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
        assert again[1] is again and again._loose == [1]


def test_it_has_no_subclasses() -> None:
    with pytest.raises(TypeError, match="hold one in a class"):
        type("Titled", (Log,), {})


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_all_protocols(protocol: int) -> None:
    log = Log([1, {"a": 1}])
    again = pickle.loads(pickle.dumps(log, protocol))
    assert type(again) is Log and again == log and again._loose == [1]


def test_a_long_change_is_copied_when_somebody_needs_that() -> None:
    log = Log(range(5000))
    log._turn()
    log.extend(range(5000))
    change, later = log._change(), log._everything()
    log._turn()
    assert (change.kept, change.count, change.cut) == (5000, 5000, False)
    log.append(3)
    assert change._values is None
    log[9000] = 7
    assert change._values is not None and change.values == list(range(5000)) == later.values[5000:]
    assert not log._open
    short = log._change()
    assert (short.kept, short.values[:2], short.cut) == (9000, [7, 4001], True)


def test_interrupted_half_way_it_knows_what_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    false = is_immutable
    changes: list[Callable[[Any], Any]] = [
        lambda each: each.extend([[1], ["last"]]),
        lambda each: each.__setitem__(slice(0, 1), [[1], ["last"], [2]]),
        lambda each: each.insert(1, ["last"]),
    ]
    for change in changes:
        log = Log([[0], 1, [2]])
        log._turn()
        interruptions = iter([True])

        def once(value: Any, interruptions: Any = interruptions) -> bool:
            if value == ["last"] and next(interruptions, False):
                raise KeyboardInterrupt
            return false(value)

        with monkeypatch.context() as patch:
            patch.setattr(log_module, "is_immutable", once)
            with pytest.raises(KeyboardInterrupt):
                change(log)
        assert log._loose == [at for at, value in enumerate(log) if not false(value)]


# -- lies: each has to show ---------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def no_copy_on_write(patch: Patch) -> None:
    patch.setattr(log_change_module.LogChange, "detach", lambda self: None)
    patch.setattr(log_module, "CHUNK", 0)


def touched_one_too_high(patch: Patch) -> None:
    true = Log._touch
    patch.setattr(Log, "_touch", lambda self, at: true(self, at + 1))


def a_change_of_the_last_capture_alone(patch: Patch) -> None:
    patch.setattr(container.Journal, "since", lambda self, capture, now: now)


def the_newer_under_the_older(patch: Patch) -> None:
    true = log_change_module.LogChange.over
    patch.setattr(log_change_module.LogChange, "over", lambda self, older: true(older, self))


def loose_ones_do_not_move(patch: Patch) -> None:
    def _replace(self: Any, start: int, stop: int, values: list[Any]) -> None:
        self._touch(start)
        self._loose = [at for at in self._loose if at < start]
        self._judge(values, start)
        self._items[start:stop] = values

    patch.setattr(Log, "_replace", _replace)


def chain_of_appends_alone(patch: Patch) -> None:
    true = Log._touch

    def _touch(self: Any, at: int) -> None:
        chain = self._chain
        true(self, at)
        self._chain, self._covered = chain, min(self._covered + 1, len(self._items))

    patch.setattr(Log, "_touch", _touch)


def a_chain_that_is_not_noted(patch: Patch) -> None:
    true = Log._replay

    def _replay(self: Any, documents: Any) -> None:
        true(self, documents)
        self._covered = 0

    patch.setattr(Log, "_replay", _replay)


LIES = (
    no_copy_on_write,
    touched_one_too_high,
    a_change_of_the_last_capture_alone,
    the_newer_under_the_older,
    loose_ones_do_not_move,
    chain_of_appends_alone,
    a_chain_that_is_not_noted,
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
        with pytest.raises((AssertionError, IndexError, CannotRestore)):
            run_state_machine_as_test(LogInARow, settings=without)


# -- captures -----------------------------------------------------------------------------------------------


class Agent(Open):
    """Has Logs."""

    history: Any
    one: Any


def chat(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{number} " + "some words of a message " * 8}


def test_a_delta_has_what_was_appended() -> None:
    taking = Taking(Agent(history=Log(f"{number} some words" for number in range(20_000))))
    taking.take()
    taking.agent.history.append("one more")
    first = written(taking.take())
    assert [name for name in first if name != "header"] == ["entries:0:2"] and first["entries:0:2"] < 200
    del taking.agent.history[19_000:]
    second = written(taking.take())
    assert second["entries:0:3"] < 200
    assert taking.restore().history == taking.agent.history
    # Nothing new is nothing to write.
    assert not [name for name in written(taking.take()) if name.startswith("entries")]


def test_messages_that_may_change_are_looked_at_and_written_where_they_changed() -> None:
    taking = Taking(Agent(history=Log(chat(number) for number in range(2_000))))
    whole = sum(written(taking.take()).values())
    taking.agent.history.append(chat(2_000))
    appended = taking.take()
    assert sum(written(appended).values()) < whole / 4
    assert appended.containers == {"entries": 2_001, "checked": 2_001}
    taking.agent.history[7]["content"] = "changed unseen"
    taking.take()
    assert taking.restore().history == taking.agent.history
    assert taking.restore().history[7]["content"] == "changed unseen"


def test_what_is_shared_stays_shared() -> None:
    message, inner = chat(1), Log[Any]([1])
    taking = Taking(Agent(history=Log([0, message, inner, inner]), one=message))
    taking.agent.history.append(taking.agent.history)
    taking.take()
    inner.append(message)
    taking.take()
    again = taking.restore()
    assert again.history[1] is again.one and again.history[2] is again.history[3]
    assert again.history[2][1] is again.one and again.history[4] is again.history
    assert type(again.history[2]) is Log
    again.one["role"] = "assistant"
    assert again.history[1]["role"] == "assistant"


def test_a_restored_log_goes_on_with_its_chain() -> None:
    def digest(value: Any) -> bytes:
        return repr(value).encode()

    taking = Taking(Agent(history=Log([1, 2, chat(3)])))
    chain = taking.agent.history.chain(digest)
    taking.agent.history[0] = 5
    taking.agent.history.chain(digest)
    taking.take()
    again = taking.restore().history
    again.append(4)
    taking.agent.history.append(4)
    assert again.chain(digest) == taking.agent.history.chain(digest) != chain
    # Brought up to date, and nothing else: that is a change too.
    taking.take()
    taking.agent.history.append(5)
    taking.take()
    taking.agent.history.chain(digest)
    taking.take()
    again = taking.restore().history
    again[3] = taking.agent.history[3] = 0
    assert again.chain(digest) == taking.agent.history.chain(digest)


def test_what_cannot_be_saved_is_named_by_its_place() -> None:
    with pytest.raises(CannotCapture) as caught:
        Taking(Agent(history=Log([0, {"inside": threading.Lock()}]))).take()
    assert caught.value.facts["path"] == "self.history[1]['inside']"


def test_in_messages_it_is_a_plain_value() -> None:
    log = Log([1, chat(2)])
    again = through_message({"log": log})["log"]
    assert type(again) is Log and again == log and again is not log
