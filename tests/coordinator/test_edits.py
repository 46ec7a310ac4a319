"""``--set PATH=JSON``: what it does to a state, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cutline.coordinator.edits import assign, named_function
from cutline.errors import Misuse


class Slotted:
    """No dict."""

    __slots__ = ("cash", "unset")

    def __init__(self) -> None:
        self.cash = 1


def state() -> SimpleNamespace:
    book = SimpleNamespace(orders={"o1": 1, "a=b]": 2, 7: "seven"}, rows=[[1, 2], [3, 4]])
    return SimpleNamespace(
        cash=1, rate=0.5, name="ann", book=book, pair=(1, 2), seen={"a"}, none=None, on=True
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cash=5", lambda s: s.cash == 5),
        ("rate=2", lambda s: s.rate == 2.0 and type(s.rate) is float),
        ('name="bob=x"', lambda s: s.name == "bob=x"),
        ('book.orders["o1"]=9', lambda s: s.book.orders["o1"] == 9),
        ('book.orders["a=b]"]=9', lambda s: s.book.orders["a=b]"] == 9),
        ('book.orders["new"]=9', lambda s: s.book.orders["new"] == 9),
        ('book.orders[7]="VII"', lambda s: s.book.orders[7] == "VII"),
        ("book.rows[1][-1]=9", lambda s: s.book.rows == [[1, 2], [3, 9]]),
        ("pair=[3]", lambda s: s.pair == (3,)),
        ('seen=["b", "c"]', lambda s: s.seen == {"b", "c"}),
        ('none={"x": [1]}', lambda s: s.none == {"x": [1]}),
        ("cash=null", lambda s: s.cash is None),
        ("on=false", lambda s: s.on is False),
    ],
)
def test_assign(text: str, found: Any) -> None:
    made = state()
    assign(made, text)
    assert found(made)


def test_assign_to_a_slot() -> None:
    made = Slotted()
    assign(made, "cash=5")
    assert made.cash == 5
    with pytest.raises(Misuse, match="no attribute 'unset'"):
        assign(made, "unset=5")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("csh=5", "no attribute 'csh'; did you mean 'cash'"),
        ('book.ordrs["o1"]=5', "self.book .*did you mean 'orders'"),
        ('book.orders["ol"]["x"]=5', r"self.book.orders .*nothing at \['ol'\].*did you mean 'o1'"),
        ("book.rows[5]=[1]", r"self.book.rows .*\[5\]: IndexError"),
        ("cash.deep=5", "self.cash .*no attribute 'deep'"),
        ("cash=five", "'five' is no JSON"),
        ("log[007]=1", r"\[007\] is no place and no key in JSON"),
        (r'book["\x"]=1', "is no place and no key in JSON"),
        ("cash", "write PATH=JSON"),
        ("=5", "write PATH=JSON"),
        ("cash-1=5", "write PATH=JSON"),
        ('cash="5"', 'self.cash is a int, and "5" a str: .*--function'),
        ("on=1", "self.on is a bool"),
        ("book=1", "self.book is a types:SimpleNamespace"),
        ("pair[0]=5", "self.pair .*cannot be changed in places"),
    ],
)
def test_assign_refuses(text: str, said: str) -> None:
    made = state()
    with pytest.raises(Misuse, match=said):
        assign(made, text)
    assert made == state()


def test_named_function() -> None:
    assert named_function("tests.coordinator.test_edits:Slotted") is Slotted
    for name in ("json", "no_such_module:f", "json:no_such", "json:__doc__", ":f"):
        with pytest.raises(Misuse, match="--function"):
            named_function(name)
