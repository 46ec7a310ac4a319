"""What was renamed or moved is found if the program says so, and nothing else is taken for it."""

from __future__ import annotations

import enum
from typing import Any

import pytest

import cutline
from cutline.errors import CannotCapture, ClassMissing, Misuse, SchemaMismatch
from cutline.participant.capture import check_capturable
from cutline.participant.renames import RENAMES
from tests.participant.images import through_message
from tests.schema.conftest import Define
from tests.schema.saving import Holder, saved

OLD = "class Order:\n  class Line: pass\n  def __init__(self): self.n = 1\ndef price(): pass"


def test_a_class_that_moved_with_all_that_is_inside(define: Define) -> None:
    old = define("shop_old", OLD)
    images = saved(Holder(order=old.Order(), line=old.Order.Line(), kind=old.Order, price=old.price))
    define("shop_old", "")
    new = define("shop_new", OLD.replace("Order", "Purchase").replace("price", "cost"))
    with pytest.raises(ClassMissing, match=r"'p': self\.order: .*shop_old:Order.*renamed\('shop_old:Order'"):
        images.restore(1)
    cutline.renamed("shop_old:Order", new.Purchase)
    with pytest.raises(ClassMissing, match=r"self\.price: .*shop_old:price"):
        images.restore(1)
    cutline.renamed("shop_old:price", new.cost)
    held = images.restore(1)
    assert type(held.order) is new.Purchase and held.order.n == 1
    assert type(held.line) is new.Purchase.Line and held.kind is new.Purchase and held.price is new.cost
    # What is saved from now on names the new ones alone.
    again = saved(held)
    RENAMES.table.clear()
    assert type(again.restore(1).order) is new.Purchase


def test_the_participants_class(define: Define) -> None:
    images = saved(define("shop_old", OLD).Order())
    new = define("shop_old", OLD.replace("Order", "Purchase"))
    with pytest.raises(ClassMissing, match=r"'p': self: .*shop_old:Order"):
        images.restore(1)
    cutline.renamed("shop_old:Order", new.Purchase)
    assert type(images.restore(1)) is new.Purchase


def test_chains_and_two_names_onto_one(define: Define) -> None:
    first = define("shop_1", OLD)
    second = define("shop_2", OLD)
    images = saved(Holder(orders=[first.Order(), second.Order()]))
    define("shop_1", "")
    define("shop_2", "")
    new = define("shop_3", OLD)
    cutline.renamed("shop_1:Order", "shop_2:Order")
    cutline.renamed("shop_2:Order", new.Order)
    cutline.renamed("shop_1:Order", "shop_2:Order")
    assert [type(order) for order in images.restore(1).orders] == [new.Order] * 2


@pytest.mark.parametrize("target", ["shop_new:Order", "shop_new:Alias"])
def test_an_alias_is_not_taken_for_what_had_its_name(define: Define, target: str) -> None:
    """Its name still exists and means another class now, whether found directly or by a rename to it."""
    images = saved(define("shop_old", OLD).Order())
    define("shop_old", "")
    define("shop_new", "class Other: pass\nAlias = Order = Other")
    if target.endswith("Alias"):
        cutline.renamed("shop_old:Order", target)
    else:
        define("shop_old", "from shop_new import Order")
    with pytest.raises(ClassMissing, match=r"what is called so is shop_new:Other.*renamed\('shop_old:Order'"):
        images.restore(1)


def test_an_alias_is_another_name_of_what_renamed_says(define: Define) -> None:
    images = saved(define("shop_old", OLD).Order())
    new = define("shop_new", OLD.replace("Order", "Purchase") + "\nAlias = Purchase")
    define("shop_old", "from shop_new import Purchase as Order")
    cutline.renamed("shop_old:Order", new.Alias)
    assert type(images.restore(1)) is new.Purchase


def test_a_function_that_became_another(define: Define) -> None:
    images = saved(Holder(rule=define("rules", "def greedy(): pass").greedy))
    define("rules", "def eager(): pass\ngreedy = eager")
    with pytest.raises(ClassMissing, match=r"self\.rule: .*what is called so is rules:eager"):
        images.restore(1)


def test_python_and_installed_packages_may_move_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import decimal
    import pathlib

    import numpy

    value = [pathlib.PurePosixPath("a"), decimal.Decimal(1), numpy.dtype("i4"), numpy.float64(1)]
    images = saved(Holder(value=value))
    # As Python 3.13 has it.
    monkeypatch.setattr(pathlib.PurePosixPath, "__module__", "pathlib._local")
    assert images.restore(1).value == value


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("shop:A", 5, "the new one is a class"),
        ("shop.A", "shop:B", "is no name"),
        ("shop:A", "B", "is no name"),
        ("shop:A", "shop:A", "in a circle"),
        ("shop:known", "shop:A", "it is shop:B already"),
        ("shop:B", "shop:known", "in a circle"),
        ("tests.schema.saving:Holder", "shop:A", "is still there"),
        ("shop:A", lambda: None, "is local"),
        (Holder, Holder, "is a text"),
    ],
)
def test_what_cannot_be_meant(old: Any, new: Any, why: str) -> None:
    cutline.renamed("shop:known", "shop:B")
    with pytest.raises(Misuse, match=why):
        cutline.renamed(old, new)
    assert RENAMES.table == {"shop:known": "shop:B"}


def test_a_class_that_is_there_cannot_be_captured_as_what_it_was(define: Define) -> None:
    shop = define("shop", "cutline.renamed('shop:Old', 'shop:New')\nclass New: pass\nclass Old: pass")
    with pytest.raises(CannotCapture, match="shop:Old is still there"):
        check_capturable(Holder(order=shop.Old()), "p")


# -- enums ---------------------------------------------------------------------------------------------


COLORS = "class Color(enum.Enum):\n  RED = enum.auto()\n  BLUE = enum.auto()\n"


def test_members_go_by_their_names(define: Define) -> None:
    images = saved(Holder(paint=[define("colors", COLORS).Color.RED]))
    new = define("colors", COLORS.replace("  RED", "  GREEN = enum.auto()\n  RED"))
    assert images.restore(1).paint == [new.Color.RED]


def test_a_member_that_is_gone_is_named_or_mapped(define: Define) -> None:
    images = saved(Holder(paint=[define("colors", COLORS).Color.RED]))
    new = define("colors", COLORS.replace("RED", "CRIMSON"))
    with pytest.raises(
        SchemaMismatch, match=r"'p': self\.paint: .*colors:Color has no member 'RED' any more.*CRIMSON, BLUE"
    ) as failed:
        images.restore(1)
    assert failed.value.facts["member"] == "RED" and failed.value.facts["path"] == "self.paint"
    cutline.renamed("colors:Color.RED", new.Color.CRIMSON)
    assert images.restore(1).paint == [new.Color.CRIMSON]


def test_a_member_of_an_enum_that_was_renamed_too(define: Define) -> None:
    old = define("colors", COLORS)
    images = saved(Holder(paint=old.Color.RED, kind=old.Color))
    new = define("paints", COLORS.replace("Color", "Paint").replace("RED", "CRIMSON"))
    define("colors", "")
    cutline.renamed("colors:Color", new.Paint)
    cutline.renamed("colors:Color.RED", new.Paint.CRIMSON)
    held = images.restore(1)
    assert held.paint is new.Paint.CRIMSON and held.kind is new.Paint


def test_an_enum_that_is_none_any_more(define: Define) -> None:
    images = saved(Holder(paint=define("colors", COLORS).Color.RED))
    define("colors", "class Color: pass")
    with pytest.raises(SchemaMismatch, match=r"self\.paint: .*no enum any more, and had the member 'RED'"):
        images.restore(1)


class Word(str, enum.Enum):
    """A string as well."""

    YES = "yes"


class Rights(enum.Flag):
    """Bits."""

    READ, WRITE, RUN = 1, 2, 4


class Loose(enum.IntFlag):
    """Bits with others beside them."""

    A = 1


class Op(enum.Enum):
    """Values that do not pickle."""

    ADD = (lambda: None,)


FLAGS = [Rights(0), Rights.READ, Rights.READ | Rights.RUN, ~Rights.READ, Loose(9), Loose.A, Loose(0)]


@pytest.mark.parametrize("value", [Word.YES, Op.ADD, *FLAGS], ids=str)
def test_every_member_comes_back(value: Any) -> None:
    def through_image(held: Any) -> Any:
        return saved(Holder(value=held)).restore(1).value

    for way in (through_image, through_message):
        got = way(value)
        assert got == value and type(got) is type(value)
        # Canonical ones are one object; composites are made anew where Python makes them so.
        assert got is value or isinstance(value, enum.Flag)


def test_a_flag_whose_bit_moved(define: Define) -> None:
    old = define("bits", "class B(enum.Flag):\n  X, Y, Z = 1, 2, 4")
    images = saved(Holder(value=old.B.X | old.B.Z))
    new = define("bits", "class B(enum.Flag):\n  Z, X, W = 1, 2, 4")
    assert images.restore(1).value == new.B.X | new.B.Z


# -- methods as values -----------------------------------------------------------------------------------


def test_a_bound_method_in_the_state(define: Define) -> None:
    old = define("agents", "class A:\n  def go(self): return 1")
    agent = old.A()
    agent.next = agent.go
    images = saved(agent)
    new = define("agents", "class A:\n  def run(self): return 2")
    with pytest.raises(SchemaMismatch, match=r"'p': self\.next: agents:A has no 'go' any more"):
        images.restore(1)
    cutline.renamed("agents:A.go", new.A.run)
    assert images.restore(1).next() == 2
