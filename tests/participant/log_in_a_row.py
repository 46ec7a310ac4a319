"""A Log and a list under the same random calls; snapshots are read late, folded, aborted, restored.

After each rule the two are alike, and so is a twin that went through a pickle at other times: their chains
are the same whenever both are asked. What a snapshot holds is compared with what the list was when it was
taken.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cutline.participant.immutable import is_immutable
from cutline.participant.log import Log, Snapshot

__all__ = ("LogInARow",)

_plain = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b", None, (1, 2)]))
_values = st.one_of(
    _plain,
    st.dictionaries(st.sampled_from(["role", "content"]), _plain, max_size=2),
    st.lists(_plain, max_size=2),
    st.lists(_plain, max_size=2).map(lambda inner: (inner,)),
    st.lists(_plain, max_size=2).map(Log),
)
_many = st.lists(_values, max_size=4)
_at = st.integers(-8, 8)
_bound = st.one_of(st.none(), _at)
_slices = st.builds(slice, _bound, _bound, st.sampled_from([None, 1, 2, -1, -2, 3]))


def _digest(value: Any) -> bytes:
    return repr(value).encode()


def _shown(value: Any) -> Any:
    """A value as something that does not change."""
    return copy.deepcopy(value)


class LogInARow(RuleBasedStateMachine):
    """See the module's head."""

    def __init__(self) -> None:
        super().__init__()
        self.log: Log[Any] = Log()
        self.twin: Log[Any] = Log()
        self.list: list[Any] = []
        self.number = 0
        # By number: what the list was, what the snapshot is relative to, the snapshot.
        self.taken: dict[int, tuple[list[Any], int | None, Snapshot]] = {}
        self.stored: dict[int, list[Any]] = {}
        self.base: int | None = None

    def both(self, call: Callable[[Any], Any]) -> None:
        """The same call to all three: the same answer, or the same kind of error."""
        answers: list[Any] = []
        for each in (self.list, self.log, self.twin):
            try:
                answers.append(call(each))
            except (IndexError, ValueError, TypeError) as error:
                answers.append(type(error))
        assert answers[0] == answers[1] == answers[2]

    @rule(value=_values)
    def append(self, value: Any) -> None:
        self.both(lambda each: each.append(value))

    @rule(values=_many)
    def extend(self, values: list[Any]) -> None:
        self.both(lambda each: each.extend(iter(values)))

    @rule()
    def extend_by_itself(self) -> None:
        if len(self.list) < 20:
            self.both(lambda each: each.extend(each))

    @rule(at=_at, value=_values)
    def insert(self, at: int, value: Any) -> None:
        self.both(lambda each: each.insert(at, value))

    @rule(at=_at)
    def pop(self, at: int) -> None:
        self.both(lambda each: each.pop(at))

    @rule()
    def pop_last(self) -> None:
        self.both(lambda each: each.pop())

    @rule(value=_values)
    def remove(self, value: Any) -> None:
        self.both(lambda each: each.remove(value))

    @rule(at=_at, value=_values)
    def set(self, at: int, value: Any) -> None:
        self.both(lambda each: each.__setitem__(at, value))

    @rule(at=_at)
    def delete(self, at: int) -> None:
        self.both(lambda each: each.__delitem__(at))

    @rule(at=_slices, values=_many)
    def set_slice(self, at: slice, values: list[Any]) -> None:
        self.both(lambda each: each.__setitem__(at, values))

    @rule(at=_slices)
    def delete_slice(self, at: slice) -> None:
        self.both(lambda each: each.__delitem__(at))

    @rule()
    def reverse(self) -> None:
        self.both(lambda each: each.reverse())

    @rule(backwards=st.booleans())
    def sort(self, backwards: bool) -> None:
        self.both(lambda each: each.sort(key=repr, reverse=backwards))

    @rule()
    def sort_what_may_not_compare(self) -> None:
        before = list(self.list)
        self.both(lambda each: each.sort())
        # Where it raises, what has been sorted is nobody's promise.
        order = list(self.list)
        if any(a is not b for a, b in zip(before, order, strict=True)):
            assert sorted(map(repr, before)) == sorted(map(repr, order))

    @rule(times=st.integers(-1, 2))
    def multiply(self, times: int) -> None:
        if len(self.list) < 20:
            self.log *= times
            self.twin *= times
            self.list *= times

    @rule()
    def clear(self) -> None:
        self.both(lambda each: each.clear())

    @rule(at=_at, bound=_slices, value=_values)
    def read(self, at: int, bound: slice, value: Any) -> None:
        for call in (
            lambda each: each[at],
            lambda each: each[bound],
            lambda each: each.index(value),
            lambda each: each.index(value, at),
            lambda each: each.count(value),
            lambda each: value in each,
            lambda each: list(reversed(each)),
            lambda each: each + [value],
            lambda each: [value] + each,
            lambda each: 2 * each,
            lambda each: each < [value],
            lambda each: each >= [value],
            lambda each: [value] < each,
            lambda each: [value] != each,
        ):
            self.both(call)

    # -- captures ------------------------------------------------------------------------------------

    @rule()
    def snapshot(self) -> None:
        self.number += 1
        shown = _shown(self.list)
        self.taken[self.number] = shown, self.base, self.log.snapshot(self.number, self.base)

    def _read(self, number: int) -> None:
        """Folds a snapshot into what is stored of what it is relative to."""
        if number in self.stored:
            return
        shown, base, taken = self.taken[number]
        before = self.stored[base][: taken.start] if base is not None else []
        # What is not tracked is stored by every capture as it is then.
        found = before + _shown(taken.values())
        assert len(found) == taken.length == len(shown)
        for value, due in zip(found, shown, strict=True):
            if is_immutable(due):
                assert value == due
        self.stored[number] = shown
        taken.close()

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), commits=st.booleans())
    def decide(self, data: Any, commits: bool) -> None:
        undecided = [number for number in self.taken if self.base is None or number > self.base]
        if not undecided:
            return
        number = data.draw(st.sampled_from(undecided))
        if not commits:
            self.log.aborted(number)
            self.taken.pop(number)[2].close()
            return
        self._read(number)
        self.base = number
        self.log.committed(number)

    @precondition(lambda self: self.base is not None)
    @rule()
    def restore(self) -> None:
        assert self.base is not None
        for _, _, taken in self.taken.values():
            taken.close()
        self.list = copy.deepcopy(self.stored[self.base])
        self.log, self.twin = Log(copy.deepcopy(self.list)), Log(copy.deepcopy(self.list))
        self.log.snapshot(self.base, None).close()
        self.taken = {}

    # -- the chain -----------------------------------------------------------------------------------

    @rule()
    def chain(self) -> None:
        assert self.log.chain(_digest) == self.twin.chain(_digest)

    @rule()
    def pickle_twin(self) -> None:
        self.twin = pickle.loads(pickle.dumps(self.twin))

    @rule()
    def deepcopy_twin(self) -> None:
        self.twin = copy.deepcopy(self.twin)

    @rule(value=_values)
    def chains_of_other_contents_differ(self, value: Any) -> None:
        if self.list:
            other = pickle.loads(pickle.dumps(self.log))
            other[len(other) // 2] = value
            assert other.chain(_digest) != copy.deepcopy(self.log).chain(_digest)

    @invariant()
    def alike(self) -> None:
        for log in (self.log, self.twin):
            assert log == self.list
            assert self.list == log
            assert list(log) == self.list
            assert len(log) == len(self.list)
            assert log.loose == [at for at, value in enumerate(self.list) if not is_immutable(value)]
            assert bool(log) is bool(self.list)
            assert repr(log) == f"Log({self.list!r})"

    @invariant()
    def snapshots_are_what_they_were(self) -> None:
        for shown, _, taken in self.taken.values():
            if taken.length == len(shown):
                for value, due in zip(taken.values(), shown[taken.start :], strict=False):
                    assert not is_immutable(due) or value == due
