"""Random reading and changing of a Map whose entries are read when they are asked for, against a dict.

After each operation only its outcome and the length are compared: whoever looks at the whole Map reads it.
The whole is compared when a capture is decided on, from restores of both kinds, and at the end. Now and then
the system starts again from a capture that committed, with entries that are read later. Chains in storage are
folded all the time, and so are segments; what they stand on is deleted as soon as no cut that is kept needs
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cutline import Map
from cutline.participant.capture import Capturer
from cutline.participant.unread import Unread
from tests.participant.images import Taking
from tests.participant.maps_in_a_row import Open

__all__ = ("ReadingInARow", "drive")

KEYS: list[Any] = [*(f"k{number}" for number in range(40)), *range(9), -1, b"a", b"k", None, True, "", "\xe9"]
STRANGE: list[Any] = [1.0, (1, 2), "\ud800", 1 << 64, frozenset()]
VALUES: list[Any] = [None, 1, 2.5, "text", b"b", (1, ("a", None)), True, 1j, 1 << 70]


class Reading(Taking):
    """See the module's head."""

    def __init__(self) -> None:
        Taking.__init__(self)
        self.shadow: dict[Any, Any] = {f"k{number}": number for number in range(30)}
        self.agent = Open(seen=Map(self.shadow), shared=[1])
        self.capturer = Capturer("p")
        # How often an operation met entries that were unread, and left them so.
        self.met = 0

    @property
    def is_unread(self) -> bool:
        return isinstance(self.agent.seen._items, Unread)

    def operate(self, seed: int, *, strange: bool = False) -> None:
        chance = random.Random(seed)
        name = chance.choice(sorted(WHOLE if strange else OPERATIONS))
        key = chance.choice([*self.shadow, *KEYS] if self.shadow else KEYS)
        if strange and chance.random() < 0.5:
            key = chance.choice(STRANGE)
        value = self.agent.shared if chance.random() < 0.1 else chance.choice(VALUES)
        was = self.is_unread
        self.log.append(f"{name} {key!r} {value!r}{', unread' * was}")
        outcomes = []
        for each in (self.agent.seen, self.shadow):
            try:
                outcomes.append((WHOLE if strange else OPERATIONS)[name](each, key, value))
            except KeyError as error:
                outcomes.append(("KeyError", error.args))
        assert outcomes[0] == outcomes[1] and repr(outcomes[0]) == repr(outcomes[1]), (outcomes, self.log)
        assert len(self.agent.seen) == len(self.shadow), self.log
        self.met += was and self.is_unread

    def change_inside(self) -> None:
        self.log.append("inside")
        self.agent.shared.append(len(self.agent.shared))

    def capture(self, full: bool = False) -> None:
        was = self.is_unread
        super().capture(full)
        # What is unread goes on as it is.
        assert self.is_unread == was, self.log

    def picture_now(self) -> list[tuple[Any, Any]]:
        return self.picture(self.shadow)

    @staticmethod
    def picture(seen: Any) -> list[tuple[Any, Any]]:
        return [(key, list(value) if type(value) is list else value) for key, value in seen.items()]

    def committed(self) -> None:
        """Removes what neither the newest cut nor one that may be built on it needs."""
        assert self.base is not None
        living = {*self.images.refs[self.base].chain}
        for _, against in self.taken.values():
            living.update(() if against is None else self.images.refs[against].chain)
        for key in list(self.images.blobs.list()):
            if key not in living:
                self.images.blobs.delete(key)

    def start_again(self, later: bool = True) -> None:
        assert self.base is not None
        self.log.append(f"restore {self.base}{', entries later' * later}")
        self.capturer = Capturer("p")
        restored = self.capturer.expecting()
        self.agent = self.images.restore(self.base, restored, later=later)
        self.capturer.adopt(self.base, self.agent, restored)
        self.shadow = {
            key: self.agent.shared if type(value) is list else value
            for key, value in self.pictures[self.base]
        }

    def same(self, got: Any, number: int) -> None:
        found, wanted = self.picture(got.seen), self.pictures[number]
        assert list(map(repr, found)) == list(map(repr, wanted)), (found, wanted, self.log)
        assert all(value is got.shared for value in got.seen.values() if type(value) is list), self.log

    def end(self) -> None:
        """The whole, at last."""
        assert list(map(repr, self.agent.seen.items())) == list(map(repr, self.shadow.items())), self.log
        assert self.agent.seen == self.shadow


def _set(each: Any, key: Any, value: Any) -> None:
    each[key] = value


def _delete(each: Any, key: Any, value: Any) -> None:
    del each[key]


def _set_again(each: Any, key: Any, value: Any) -> None:
    each.pop(key, None)
    each[key] = value


OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "set": _set,
    "delete": _delete,
    "set again": _set_again,
    "pop": lambda each, key, value: each.pop(key, value),
    "get": lambda each, key, value: each.get(key, 7),
    "item": lambda each, key, value: each[key],
    "in": lambda each, key, value: key in each,
    "setdefault": lambda each, key, value: each.setdefault(key, value),
    "update": lambda each, key, value: each.update({key: value, "k3": 3}),
}
# These need all entries, or their order.
WHOLE: dict[str, Callable[[Any, Any, Any], Any]] = {
    **OPERATIONS,
    "popitem": lambda each, key, value: each.popitem() if each else None,
    "clear": lambda each, key, value: each.clear(),
    "views": lambda each, key, value: (list(each), list(each.values()), list(reversed(each))),
    "copy": lambda each, key, value: list(each.copy().items()),
    "or": lambda each, key, value: sorted(map(repr, (each | {key: value}))),
}


class ReadingInARow(Reading, RuleBasedStateMachine):
    """The same, driven by hypothesis."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        Reading.__init__(self)

    @rule(seeds=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4), strange=st.integers(0, 9))
    def some_operations(self, seeds: list[int], strange: int) -> None:
        for seed in seeds:
            self.operate(seed, strange=strange == 1)

    @rule()
    def go_round(self) -> None:
        self.change_inside()

    @precondition(lambda self: len(self.undecided) < 3)
    @rule(full=st.integers(0, 7))
    def take(self, full: int) -> None:
        self.capture(full == 1)

    @precondition(lambda self: self.undecided)
    @rule(which=st.integers(0, 2), commit=st.sampled_from((True, True, False)))
    def settle(self, which: int, commit: bool) -> None:
        self.decide(which, commit)

    @precondition(lambda self: self.base is not None and not self.undecided)
    @rule(later=st.sampled_from((True, True, True, False)))
    def restart(self, later: bool) -> None:
        self.start_again(later)

    def teardown(self) -> None:
        self.end()


def drive(seed: int, steps: int = 60) -> int:
    """One run by a seed; how many operations met unread entries and left them unread."""
    chance = random.Random(seed)
    run = Reading()
    for _ in range(steps):
        chosen = chance.random()
        if chosen < 0.55:
            run.operate(chance.randrange(1 << 20), strange=chance.random() < 0.02)
        elif chosen < 0.6:
            run.change_inside()
        elif chosen < 0.75 and len(run.undecided) < 3:
            run.capture(chance.random() < 0.1)
        elif run.undecided:
            run.decide(chance.randrange(3), chance.random() < 0.7)
        elif run.base is not None:
            run.start_again(chance.random() < 0.9)
    run.end()
    return run.met
