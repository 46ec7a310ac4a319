"""What a Map holds in segments of long ago goes through changes of its classes, once and not twice."""

from __future__ import annotations

import pytest

import cutline
from cutline.errors import ClassMissing
from tests.participant.test_map import Agent, Taking, written
from tests.schema.conftest import Define

ONE = "@dataclasses.dataclass(frozen=True)\nclass Note:\n    text: str\n    __cutline_version__ = 1"
TWO = ONE.replace("version__ = 1", "version__ = 2") + (
    "\n    size: int = 0"
    "\n    @staticmethod"
    "\n    def migrate(state, version):"
    "\n        return {'text': state['text'] + '!', 'size': version}"
)


def test_old_segments_are_migrated_once(define: Define) -> None:
    old = define("notes", ONE)
    taking = Taking(Agent(seen=cutline.Map({n: old.Note(f"n{n}") for n in range(50)})))
    taking.take()
    assert taking.agent.seen._checked_count() == 0
    taking.restart()
    # Nothing of the class was pickled in this process, and its version is known all the same.
    taking.agent.seen["more"] = 1
    assert written(taking.take())["entries:0:2"] < 100
    new = define("notes", TWO)
    assert taking.restart().seen[7] == new.Note("n7!", 1)
    assert taking.take().pieces[1].content is not None
    taking.agent.seen["more"] = 2
    assert written(taking.take())["entries:0:4"] < 100
    assert taking.restart().seen[7] == new.Note("n7!", 1) == taking.agent.seen[7]
    assert len(taking.agent.seen) == 51


def test_a_class_that_is_gone_is_named(define: Define) -> None:
    old = define("notes", ONE)
    taking = Taking(Agent(seen=cutline.Map(a=old.Note("a"))))
    taking.take()
    define("notes", "")
    with pytest.raises(ClassMissing, match="in a Map or a Log: this program has no notes:Note"):
        taking.restart()
    new = define("notes", ONE.replace("class Note", "class Remark"))
    cutline.renamed("notes:Note", new.Remark)
    assert taking.restart().seen["a"] == new.Remark("a")
    # What is written from now on has the new name, so that the word of the old one is not needed for ever.
    assert taking.take().pieces[1].content is not None


def test_members_and_classes_go_by_name(define: Define) -> None:
    kinds = define("kinds", "class Kind(enum.Enum):\n    A = enum.auto()\n    B = enum.auto()")
    taking = Taking(Agent(seen=cutline.Map({"a": kinds.Kind.B, kinds.Kind: kinds.Kind})))
    taking.take()
    kinds = define("kinds", "class Kind(enum.Enum):\n    Z = enum.auto()\n    A = 5\n    B = enum.auto()")
    again = taking.restart().seen
    assert again == {"a": kinds.Kind.B, kinds.Kind: kinds.Kind}
