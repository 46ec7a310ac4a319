"""What a Map holds in segments of long ago goes through changes of the program."""

from __future__ import annotations

import pytest

import cutline
from cutline.errors import ClassMissing
from tests.participant.test_map import Agent, Taking, written
from tests.schema.conftest import Define

ONE = "class Note(typing.NamedTuple):\n    text: str"


def test_a_class_that_is_gone_is_named(define: Define) -> None:
    old = define("notes", ONE)
    taking = Taking(Agent(seen=cutline.Map(a=old.Note("a"))))
    taking.take()
    assert taking.agent.seen._checked_count() == 0
    define("notes", "")
    with pytest.raises(ClassMissing, match="in a Map or a Log: this program has no notes:Note"):
        taking.restart()
    new = define("notes", ONE.replace("class Note", "class Remark"))
    cutline.renamed("notes:Note", new.Remark)
    assert taking.restart().seen["a"] == new.Remark("a")
    # What is written from now on has the new name, so that the word of the old one is not needed for ever.
    assert "entries:0:2" in written(taking.take())


def test_members_and_classes_go_by_name(define: Define) -> None:
    kinds = define("kinds", "class Kind(enum.Enum):\n    A = enum.auto()\n    B = enum.auto()")
    taking = Taking(Agent(seen=cutline.Map({"a": kinds.Kind.B, kinds.Kind: kinds.Kind})))
    taking.take()
    kinds = define("kinds", "class Kind(enum.Enum):\n    Z = enum.auto()\n    A = 5\n    B = enum.auto()")
    again = taking.restart().seen
    assert again == {"a": kinds.Kind.B, kinds.Kind: kinds.Kind}


THAWED = "class Base(typing.NamedTuple):\n    text: str\nclass Note(Base): pass"


@pytest.mark.parametrize("before, after", [(ONE, THAWED), (THAWED, ONE)], ids=["thawed", "frozen"])
def test_a_class_whose_objects_may_change_now(define: Define, before: str, after: str) -> None:
    """What was judged by the older program is judged again: no change of an attribute may be missed."""
    old = define("notes", before)
    taking = Taking(Agent(seen=cutline.Map(a=old.Note("a"), b=[1]), log=cutline.Log([old.Note("c"), [2]])))
    taking.take()
    new = define("notes", after)
    for _ in range(2):
        again = taking.restart()
        taking.take()
    notes = [again.seen["a"], again.log[0]]
    assert again.seen == {"a": new.Note("a"), "b": [1]} and again.log == [new.Note("c"), [2]]
    for note in notes if after is THAWED else ():
        note.mark = [1]
    taking.take()
    for note in notes if after is THAWED else ():
        note.mark.append(2)
    taking.take()
    found = taking.restart()
    for note in (found.seen["a"], found.log[0]) if after is THAWED else ():
        assert note.mark == [1, 2]
    assert found.seen == again.seen and found.log == again.log
