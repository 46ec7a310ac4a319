"""Random operations on Maps and, step by step, on plain dicts; captures that overlap, abort, fold; restores.

The state is a few Maps that hold each other and Logs, share values with lists and with each other, and
have keys of every kind. The dicts say what a Map must be after each operation; a picture of the whole
state taken at each capture says what its restore must be, in order and in what is shared. Whoever writes a
capture does so when it has been decided on. Chains in storage are folded all the time, and segments too.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cutline import Log, Map
from cutline.errors import CannotCapture
from cutline.participant.capture import Capturer
from tests.participant.images import Taking

__all__ = ("MapsInARow", "Open", "drive", "picture")


class Open:
    """An object whose attributes come and go, and that is equal to itself only."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Alike(Open):
    """One that is equal to any number that it was made with."""

    def __eq__(self, other: object) -> bool:
        return bool(self.number == (other.number if isinstance(other, Alike) else other))

    def __hash__(self) -> int:
        return hash(self.number)

    number = 0


@dataclass(frozen=True)
class Point:
    x: int
    name: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


_NAN = float("nan")
_THINGS = [Open(n=1), Open(n=2), Alike(number=1), Alike(number=70)]
KEYS: list[Any] = [
    *("a", "b", "c", b"a", 0, 1, 1.0, True, Decimal(1), None, (1, "a"), (1.0, "a"), Colour.RED, _NAN),
    *(frozenset((1, 2)), Point(1, "k"), Point, (_NAN,), -0.0, *range(60, 75), *_THINGS, (_THINGS[0], 1)),
]
FROZEN: list[Any] = [
    *(0, 1, True, "text", b"bytes", None, 2.5, (1, ("a", frozenset((2,)))), Point(3, (4, "x")), Colour.BLUE),
    *(Point, Decimal("1.10"), 1 << 70, 1j, ..., "text" * 9),
]


def picture(root: object) -> list[Any]:
    """Everything that can be reached, each object that may change once, with its content in order."""
    numbers, found, rows = {id(root): 0}, [root], []

    def named(value: Any) -> Any:
        if isinstance(value, (tuple, frozenset)):
            parts = sorted(map(named, value), key=repr) if type(value) is frozenset else map(named, value)
            return type(value), *parts
        if isinstance(value, Point):
            return Point, value.x, named(value.name)
        if not isinstance(value, (Open, list, dict, set, Map, Log)):
            return type(value), repr(value)
        if id(value) not in numbers:
            numbers[id(value)] = len(found)
            found.append(value)
        return numbers[id(value)]

    for here in found:
        if isinstance(here, (dict, Map)):
            content = [(named(key), named(value)) for key, value in here.items()]
        elif isinstance(here, Open):
            content = [(name, named(value)) for name, value in vars(here).items()]
        else:
            parts: Any = here
            content = [named(value) for value in (sorted(parts) if type(here) is set else parts)]
        rows.append((type(here), content))
    return rows


class Run(Taking):
    """See the module's head; `step` does something that a random source chooses."""

    def __init__(self) -> None:
        Taking.__init__(self)
        self.agent = Open(first=Map(), second=Map(), shared=[1], things=list(_THINGS), history=Log())
        self.capturer = self.new_capturer()
        self.mirror()

    def new_capturer(self) -> Capturer:
        return Capturer("p", part=64)

    def mirror(self) -> None:
        """The dicts that are to be like the Maps."""
        maps: list[Any] = []
        work = [self.agent.first, self.agent.second]
        while work:
            here = work.pop(0)
            if any(here is known for known in maps):
                continue
            maps.append(here)
            for value in here.values():
                several = type(value) in (list, Log)
                work += [each for each in (value if several else [value]) if type(each) is Map]
        before = getattr(self, "mirrors", [])
        known = {id(each): shadow for each, shadow in before}
        self.mirrors: list[tuple[Any, dict[Any, Any]]] = [
            (each, known.get(id(each)) or dict(each.items())) for each in maps
        ]

    # -- operations ----------------------------------------------------------------------------------

    def operate(self, seed: int) -> None:
        chance = random.Random(seed)
        real, shadow = chance.choice(self.mirrors)
        name = chance.choice(sorted(OPERATIONS))
        self.log.append(f"{name} of {len(real)} entries, by {seed}")
        outcomes = []
        values = self.value(chance), self.value(chance)
        for each in (real, shadow):
            try:
                outcomes.append(OPERATIONS[name](each, random.Random(seed), values, self.keys(each, seed)))
            except (KeyError, TypeError, ValueError) as error:
                outcomes.append(type(error))
        assert self.alike(*outcomes), (outcomes, self.log)
        assert list(map(id, real.values())) == list(map(id, shadow.values())), self.log
        assert list(map(repr, real)) == list(map(repr, shadow)), self.log
        assert real == shadow and shadow == real and len(real) == len(shadow)
        self.mirror()

    @staticmethod
    def alike(one: Any, other: Any) -> bool:
        return one is other or (type(one) is type(other) and one == other) or type(one) is Map

    def keys(self, each: Any, seed: int) -> list[Any]:
        """Keys that are there, and others."""
        chance = random.Random(seed + 1)
        here = list(each)
        return [chance.choice(here if here and chance.random() < 0.5 else self.pool()) for _ in range(4)]

    def pool(self) -> list[Any]:
        return [*KEYS[: -len(_THINGS) - 1], *self.agent.things, (self.agent.things[0], 1)]

    def value(self, chance: random.Random) -> Any:
        what = chance.random()
        if what < 0.5:
            return chance.choice(FROZEN)
        if what < 0.6:
            return self.agent.shared
        if what < 0.75:
            return [chance.randrange(9), {"deep": self.agent.shared}, (self.agent.shared, 1)]
        if what < 0.85:
            return chance.choice(self.mirrors)[0]
        if what < 0.89:
            return Map({"n": chance.randrange(9), "l": [1]})
        if what < 0.94:
            return Log([chance.choice(FROZEN), self.agent.shared, chance.choice(self.mirrors)[0]])
        return chance.choice([self.agent.things[0], {1: [2]}, [self.agent.second], ([],), {3}])

    def churn(self, seed: int) -> None:
        """The entries of one Map come, go and come again, and it stays as large as it is."""
        chance = random.Random(seed)
        self.log.append(f"churn {seed}")
        seen = self.agent.first
        for _ in range(chance.randrange(1, 9)):
            key = f"k{chance.randrange(30)}"
            if chance.random() < 0.3:
                seen.pop(key, None)
            seen[key] = self.value(chance) if chance.random() < 0.1 else chance.randrange(99)
        self.mirrors = []
        self.mirror()

    def change_inside(self, seed: int) -> None:
        """Values change that no Map hears of."""
        chance = random.Random(seed)
        found = [
            self.agent.shared,
            self.agent.history,
            *(thing for thing in self.agent.things if type(thing) is Open),
        ]
        for real, _ in self.mirrors:
            found += [value for value in real.values() if isinstance(value, (list, dict, set, Open, Log))]
        for here in chance.choices(found, k=2):
            self.log.append(f"inside a {type(here).__name__}")
            if isinstance(here, Log):
                change_log(here, chance, self.agent.shared, chance.choice(self.mirrors)[0])
            elif isinstance(here, list):
                here.append(seed)
            elif isinstance(here, dict):
                here[seed] = [seed]
            elif isinstance(here, set):
                here.add(seed)
            else:
                here.n = [seed]

    def detach(self, seed: int) -> None:
        """A Map leaves the state, or is reached another way."""
        chance = random.Random(seed)
        self.log.append("detach")
        real = chance.choice(self.mirrors)[0]
        name = chance.choice(("first", "second", "third", "shared"))
        if name == "shared":
            self.agent.shared = [1, real] if chance.random() < 0.5 else [1]
        elif name == "third":
            self.agent.third = {"k": real} if chance.random() < 0.5 else None
        else:
            setattr(self.agent, name, real if chance.random() < 0.5 else Map({"a": [1]}))
        self.mirror()

    # -- captures ------------------------------------------------------------------------------------

    def picture_now(self) -> Any:
        return picture(self.agent)

    def fail(self) -> None:
        """A capture that is refused, in the midst of everything."""
        self.log.append("a capture that fails")
        half_run = (part for part in [1])
        self.agent.bad = self.agent.first["bad"] = half_run
        with pytest.raises(CannotCapture, match="bad"):
            self.capturer.capture(self.agent, number=self.number + 1, against=self.base)
        del self.agent.bad, self.agent.first["bad"]
        self.mirrors = []
        self.mirror()

    def start_again(self, known: bool, later: bool) -> None:
        assert self.base is not None
        self.log.append(f"restore {self.base}{', entries later' * later}")
        self.capturer = self.new_capturer()
        restored = self.capturer.expecting() if known else None
        self.agent = self.images.restore(self.base, restored, later=later)
        self.capturer.adopt(self.base, self.agent, restored)
        self.mirrors = []
        self.mirror()

    def same(self, got: Any, number: int) -> None:
        found, wanted = picture(got), self.pictures[number]
        said = [*self.log, f"{number}:", *map(str, wanted), "but", *map(str, found)]
        assert found == wanted, "\n".join(said)


def change_log(log: Log[Any], chance: random.Random, shared: Any, other: Any) -> None:
    """Something that is done to a Log; its captures are compared with what it was."""
    value = chance.choice([*FROZEN[:4], shared, [1], {"role": "user"}, other, log, Log([shared])])
    at = chance.randrange(len(log) + 1)
    what = chance.random()
    if what < 0.5:
        log.append(value)
    elif what < 0.6:
        log.extend([*FROZEN, value] * chance.randrange(6))
    elif what < 0.7:
        log.insert(at, value)
    elif what < 0.8:
        log[at : at + 1] = [value]
    elif what < 0.95:
        del log[at:]
    else:
        log.reverse()


def _update(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    given = dict(zip(keys, [*values, 5, "x"], strict=True))
    forms = [given, list(given.items()), Map(given), given.items()]
    return each.update(chance.choice(forms), named=values[1])


def _fast_update(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    return each.update({f"k{chance.randrange(40)}": number for number in range(chance.randrange(20))})


def _or(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    each |= {keys[0]: values[0], "a": 3}
    return sorted(map(repr, ((each | {1: 2}).keys())))


def _set(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    each[keys[0]] = values[0]


def _set_again(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    del each[keys[0]]
    each[keys[0]] = values[0]


def _delete(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    del each[keys[0]]


def _odd(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    each[chance.choice(([1], {}, ([],)))] = 1


def _clear(each: Any, chance: random.Random, values: Any, keys: list[Any]) -> Any:
    if chance.random() < 0.3:
        each.clear()


OPERATIONS: dict[str, Callable[[Any, random.Random, Any, list[Any]], Any]] = {
    "set": _set,
    "set twice": lambda each, chance, values, keys: (
        _set(each, chance, values, keys),
        _set(each, chance, values[::-1], keys[1:]),
    )[0],
    "set again": _set_again,
    "delete": _delete,
    "pop": lambda each, chance, values, keys: each.pop(keys[0]),
    "pop or": lambda each, chance, values, keys: each.pop(keys[0], 7),
    "popitem": lambda each, chance, values, keys: each.popitem(),
    "setdefault": lambda each, chance, values, keys: each.setdefault(keys[0], values[0]),
    "update": _update,
    "update at once": _fast_update,
    "or": _or,
    "unhashable": _odd,
    "clear": _clear,
    "get": lambda each, chance, values, keys: each.get(keys[0], 3),
    "views": lambda each, chance, values, keys: (
        list(reversed(each)) == list(each)[::-1],
        len(each.keys() & {"a", 1}),
        keys[0] in each,
    ),
}


class MapsInARow(Run, RuleBasedStateMachine):
    """The same, driven by hypothesis."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        Run.__init__(self)

    @rule(seeds=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4))
    def some_operations(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.operate(seed)

    @rule(seed=st.integers(0, 1 << 20), how=st.sampled_from(("inside", "inside", "detach")))
    def go_round(self, seed: int, how: str) -> None:
        (self.detach if how == "detach" else self.change_inside)(seed)

    @precondition(lambda self: len(self.undecided) < 3)
    @rule(full=st.integers(0, 7))
    def take(self, full: int) -> None:
        self.capture(not full)

    @rule()
    def refuse(self) -> None:
        self.fail()

    @precondition(lambda self: self.undecided)
    @rule(which=st.integers(0, 2), commit=st.sampled_from((True, True, False)))
    def settle(self, which: int, commit: bool) -> None:
        self.decide(which, commit)

    @precondition(lambda self: self.base is not None and not self.undecided)
    @rule(known=st.sampled_from((True, True, False)), later=st.booleans())
    def restart(self, known: bool, later: bool) -> None:
        self.start_again(known, later)


def drive(seed: int, steps: int = 40, *, churn: bool = False) -> None:
    """One run by a seed: hypothesis takes its time to get to what matters."""
    chance = random.Random(seed)
    run = Run()
    for _ in range(steps):
        chosen = chance.random()
        if churn and chosen < 0.63:
            run.churn(chance.randrange(1 << 20))
        elif chosen < 0.5:
            run.operate(chance.randrange(1 << 20))
        elif chosen < 0.6:
            run.change_inside(chance.randrange(1 << 20))
        elif chosen < 0.63:
            run.detach(chance.randrange(1 << 20))
        elif chosen < 0.65:
            run.fail()
        elif chosen < 0.8 and len(run.undecided) < 3:
            run.capture(chance.random() < 0.1)
        elif run.undecided:
            run.decide(chance.randrange(3), chance.random() < 0.7)
        elif run.base is not None and not (churn and chosen < 0.97):
            run.start_again(chance.random() < 0.7, chance.random() < 0.5)
