"""Keys of dicts and elements of sets that are migrated, and have another hash then."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from cutline import Map
from cutline.errors import SchemaMismatch
from cutline.participant.pickling import dumps, loads
from tests.participant.test_map import Taking
from tests.schema.conftest import Define
from tests.schema.saving import Holder, saved

KEY = """
class Key:
    def __init__(self, name): self.name = name
    def __eq__(self, other): return type(other) is Key and self.name == other.name
    def __hash__(self): return hash(self.name)
    def __repr__(self): return f"Key({self.name!r})"
"""


def migrating(name: str) -> str:
    """The next version, in which the names are others."""
    return f"{KEY}    __cutline_version__ = 1\n    def migrate(state, found): return {{'name': {name}}}\n"


LATER, BLIND, BROKEN = migrating("str(state['name'])"), migrating("0"), migrating("[]")


class Named(dict[Any, Any]):
    """One that must not hear of it."""

    def clear(self) -> None:
        raise AssertionError("the program has not asked for this")


Make = Callable[[list[Any]], Any]

HOLDING: dict[str, Make] = {
    "dict": lambda keys: {key: number for number, key in enumerate(keys)},
    "set": set,
    "OrderedDict": lambda keys: OrderedDict((key, number) for number, key in enumerate(keys)),
    "defaultdict": lambda keys: defaultdict(list, {key: number for number, key in enumerate(keys)}),
    "Counter": Counter,
    "a subclass": lambda keys: Named((key, number) for number, key in enumerate(keys)),
    "Map": lambda keys: Map((key, number) for number, key in enumerate(keys)),
}


@pytest.mark.parametrize("make", HOLDING.values(), ids=HOLDING)
def test_who_has_another_hash_is_found(define: Define, make: Make) -> None:
    old = define("keys", KEY)
    names = [7, 1, 300, 5]
    keys = [old.Key(name) for name in names]
    held = make(keys)
    images = saved(Holder(first=held, keys=keys, deep=[{("at", keys[1]): held}]))
    message = dumps(make(keys), participant="p", where="argument")
    new = define("keys", LATER)
    got = images.restore(1)
    for each in (got.first, loads(message, participant="p")):
        assert len(each) == 4 and all(new.Key(str(name)) in each for name in names)
        if not isinstance(each, set):
            assert [key.name for key in each] == [str(name) for name in names]
            assert list(each.values()) == list(held.values())
    assert got.deep[0]["at", new.Key("1")] is got.first
    assert {id(key) for key in got.first} == {id(key) for key in got.keys}


def test_a_map_goes_on_from_there(define: Define) -> None:
    old = define("keys", KEY)
    images = saved(Holder(seen=Map({old.Key(number): number for number in range(5)})))
    new = define("keys", LATER)
    taking = Taking(images.restore(1))
    taking.take()
    taking.agent.seen[new.Key("3")] = "three"
    del taking.agent.seen[new.Key("0")]
    taking.take()
    assert taking.restore().seen == {new.Key(str(n)): n if n != 3 else "three" for n in range(1, 5)}


@pytest.mark.parametrize(
    ("now", "make", "why"),
    [
        (LATER, frozenset, r"self\.first is a frozenset, whose elements have other hashes now"),
        (LATER, lambda keys: {frozenset(keys): 1}, r"is a frozenset, whose elements have other hashes now"),
        (BLIND, set, r"self\.first has 2 keys, of which 1 are equal to another one now \(such as Key\(0\)\)"),
        (BROKEN, set, r"self\.first has keys that cannot be hashed any more: TypeError: unhashable"),
    ],
    ids=["frozenset", "a key in a key", "equal", "unhashable"],
)
def test_what_cannot_be_put_right_is_refused(define: Define, now: str, make: Make, why: str) -> None:
    old = define("keys", KEY)
    images = saved(Holder(first=make([old.Key(1), old.Key(2)])))
    define("keys", now)
    with pytest.raises(SchemaMismatch, match=why) as caught:
        images.restore(1)
    assert caught.value.facts["class_name"] == "keys:Key" and caught.value.facts["what"] == "migrate"


def test_a_frozenset_of_what_keeps_its_hash_is_left_alone(define: Define) -> None:
    old = define("keys", KEY)
    images = saved(Holder(first=frozenset([old.Key("a"), old.Key("b")])))
    new = define("keys", LATER)
    assert images.restore(1).first == {new.Key("a"), new.Key("b")}
