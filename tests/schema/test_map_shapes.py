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
