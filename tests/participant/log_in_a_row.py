"""A Log and a list under the same random calls; snapshots are read late, folded, aborted, restored.

After each rule the two are alike, and so is a twin that went through a pickle at other times: their chains
are the same whenever both are asked. What a snapshot holds is compared with what the list was when it was
taken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cutline.participant.container import Change, Journal
from cutline.participant.immutable import is_immutable
from cutline.participant.log import Log

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


def _stored(log: Log[Any]) -> Log[Any]:
    """The log as an image would bring it back."""
    made: Log[Any] = Log()
    made._replay(log._everything().documents())
    if log._checked_count():
        made._fill(_shown(log._checked_state()))
    return made


class LogInARow(RuleBasedStateMachine):
    """See the module's head."""

    def __init__(self) -> None:
        super().__init__()
        self.log: Log[Any] = Log()
        self.twin: Log[Any] = Log()
        self.list: list[Any] = []
        self.number = 0
        self.journal = Journal(self, 0)
        # By number: what the list was, what its change is relative to, the change, what had to be checked.
        self.taken: dict[int, tuple[list[Any], int | None, Change, Any]] = {}
        self.stored: dict[int, Log[Any]] = {}
        self.documents: dict[int, list[Any]] = {}
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
    def capture(self) -> None:
        self._capture()

    @rule(values=_many, at=_at, commits=st.booleans())
    def captures_that_overlap(self, values: list[Any], at: int, commits: bool) -> None:
        for _ in range(2):
            self._capture()
            self.both(lambda each: each.extend(values))
            self.both(lambda each: each.__delitem__(at))
        self._capture()
        if commits:
            self._commit(self.number)

    def _capture(self) -> None:
        self.number += 1
        change: Change = self.log._everything()
        if self.base is not None:
            change = self.journal.since(self.base, self.log._change())
        shown, state = _shown(self.list), _shown(self.log._checked_state())
        self.taken[self.number] = shown, self.base, change, state
        known = [*self.taken, *([] if self.base is None else [self.base])]
        self.journal.add(self.number, self.log._change(), known)
        self.log._turn()

    def _restored(self, number: int) -> Log[Any]:
        """A capture, read as an image is; its change is read now that it has been decided on."""
        shown, base, change, state = self.taken[number]
        made: Log[Any] = Log()
        if base is not None:
            made._replay(iter(self.documents[base]))
        made._replay(change.documents())
        self.documents[number] = list(made._everything().documents())
        if state is not None:
            made._fill(_shown(state))
        assert made == shown and made._loose == Log(shown)._loose
        assert made._change().size == 0
        return made

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), commits=st.booleans())
    def decide(self, data: Any, commits: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.taken)))
        if not commits:
            del self.taken[number]
            return
        self._commit(number)

    def _commit(self, number: int) -> None:
        self.stored[number] = self._restored(number)
        self.base = number
        self.taken = {known: each for known, each in self.taken.items() if known > number}

    @precondition(lambda self: self.base is not None)
    @rule()
    def restore(self) -> None:
        assert self.base is not None
        self.log, self.twin = _stored(self.stored[self.base]), _stored(self.stored[self.base])
        self.list = list(self.log)
        self.journal, self.taken = Journal(self, 0), {}

    # -- the chain -----------------------------------------------------------------------------------

    @rule()
    def chain(self) -> None:
        assert self.log.chain(_digest) == self.twin.chain(_digest)
        self.twin = _stored(self.twin)
        self.both(lambda each: each.append("one more"))
        assert self.log.chain(_digest) == self.twin.chain(_digest)

    @rule()
    def store_twin(self) -> None:
        self.twin = _stored(self.twin)

    @rule(value=_values)
    def chains_of_other_contents_differ(self, value: Any) -> None:
        if self.list and repr(self.list[len(self.list) // 2]) != repr(value):
            other = _stored(self.log)
            other[len(other) // 2] = value
            assert other.chain(_digest) != _stored(self.log).chain(_digest)

    @invariant()
    def alike(self) -> None:
        for log in (self.log, self.twin):
            assert log == self.list
            assert self.list == log
            assert list(log) == self.list
            assert len(log) == len(self.list)
            assert log._loose == [at for at, value in enumerate(self.list) if not is_immutable(value)]
            assert bool(log) is bool(self.list)
            assert repr(log) == f"Log({self.list!r})"
