"""Attributes that come and go, versions, and migrations that do not do what they say."""

from __future__ import annotations

import copy
import types
from typing import Any

import numpy as np
import pytest

import cutline
from cutline.errors import CannotRestore, SchemaMismatch
from cutline.participant.capture import Capturer
from cutline.participant.pickling import dumps, loads
from tests.schema.conftest import Define
from tests.schema.saving import Holder, saved


def filled(kind: Any, **attributes: Any) -> Any:
    made = kind.__new__(kind)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


PLAIN = "class Note: pass"
SLOTS = "class Note: __slots__ = ('a', 'b')"
BOTH = "class Note: __slots__ = ('a', '__dict__')"


@pytest.mark.parametrize("after", [PLAIN, SLOTS, BOTH], ids=["plain", "slots", "both"])
@pytest.mark.parametrize("before", [PLAIN, SLOTS, BOTH], ids=["plain", "slots", "both"])
def test_attributes_come_back_wherever_the_class_keeps_them(define: Define, before: str, after: str) -> None:
    """As a participant, inside of one, in a message, with large arrays; `__slots__` may have come or gone."""
    old = define("notes", before)
    array = np.arange(1000.0)
    note = filled(old.Note, a=array, b=[array[1:], bytearray(5000)])
    inside, alone = saved(Holder(big=array, note=note)), saved(note)
    message = dumps([note], participant="p", where="argument")
    new = define("notes", after)
    held = inside.restore(1)
    for got in (held.note, alone.restore(1), loads(message, participant="p")[0]):
        assert type(got) is new.Note and got.a.tolist() == array.tolist()
        assert np.shares_memory(got.a, got.b[0]) and got.b[1] == bytearray(5000)
    assert held.note.a is held.big


def test_a_slot_that_is_gone(define: Define) -> None:
    old = define("notes", SLOTS)
    images = saved(Holder(notes=[filled(old.Note, a=1, b=2)]))
    define("notes", "class Note: __slots__ = ('a',)")
    with pytest.raises(
        SchemaMismatch, match=r"'p': self\.notes\[0\] was saved with 'b', and notes:Note has no"
    ):
        images.restore(1)
    new = define(
        "notes",
        "class Note:\n  __slots__ = ('c',)\n  __cutline_version__ = 1\n"
        "  def migrate(state, found): return {'c': state['a'] + state['b']}",
    )
    note = images.restore(1).notes[0]
    assert type(note) is new.Note and note.c == 3


def test_a_class_that_got_its_own_way_of_saving(define: Define) -> None:
    old = define("notes", PLAIN)
    images = [saved(Holder(note=filled(old.Note, a=1))), saved(filled(old.Note, a=1))]
    define("notes", "class Note:\n  def __setstate__(self, state): self.a = state['a'] + 1")
    assert images[0].restore(1).note.a == images[1].restore(1).a == 2


def test_a_class_that_lost_its_own_way_of_saving(define: Define) -> None:
    text = "class Note:\n  def __getstate__(self): return {}\n  def __setstate__(self, state): self.a = state"
    old = define("notes", text.replace("{}", "{'a': self.a}"))
    kept = saved(Holder(note=filled(old.Note, a=1)))
    define("notes", PLAIN)
    assert kept.restore(1).note.a == 1
    old = define("notes", text.replace("{}", "[self.a]"))
    lost = saved(Holder(note=filled(old.Note, a=1)))
    define("notes", PLAIN)
    with pytest.raises(
        SchemaMismatch, match=r"'p': self\.note: notes:Note was saved with a state of its own \(list"
    ):
        lost.restore(1)


def test_private_attributes_go_with_their_class(define: Define) -> None:
    text = "class _Base:\n  def __init__(self): self.__x = 1\n  def x(self): return self.__x\n"
    old = define("notes", text + "class Note(_Base): pass\nclass Slim:\n  __slots__ = ('__y',)\n"
                 "  def __init__(self): self.__y = 2\n  def y(self): return self.__y")  # fmt: skip
    images = [saved(Holder(all=[old.Note(), old.Slim()])), saved(old.Note())]
    new = define(
        "notes",
        text.replace("Base", "Root") + "class Note(_Root): pass\nclass Thin:\n  __slots__ = ('__y',)\n"
        "  def y(self): return self.__y",
    )
    cutline.renamed("notes:_Base", new._Root)
    cutline.renamed("notes:Slim", new.Thin)
    note, slim = images[0].restore(1).all
    assert note.x() == images[1].restore(1).x() == 1 and slim.y() == 2


# -- dataclasses -------------------------------------------------------------------------------------------


FIELDS = "@dataclasses.dataclass{}\nclass Note:\n  a: int\n"


@pytest.mark.parametrize("how", ["", "(slots=True)", "(frozen=True)"])
def test_new_fields_of_a_dataclass_get_their_defaults(define: Define, how: str) -> None:
    old = define("notes", FIELDS.format(how))
    images = saved(Holder(notes=[old.Note(1), np.array([old.Note(2)], object)]))
    define(
        "notes",
        FIELDS.format(how) + "  b: int = 5\n  c: list = dataclasses.field(default_factory=list)",
    )
    first, others = images.restore(1).notes
    assert (first.a, first.b, first.c, others[0].b, others[0].c) == (1, 5, [], 5, [])
    assert first.c is not others[0].c


@pytest.mark.parametrize("how", ["", "(slots=True)"])
def test_a_new_field_without_a_default(define: Define, how: str) -> None:
    old = define("notes", FIELDS.format(how))
    images = [saved(Holder(notes={"x": old.Note(1)})), saved(old.Note(1))]
    define("notes", FIELDS.format(how) + "  b: int")
    for image, path in zip(images, [r"self\.notes\['x'\]", "self"], strict=True):
        with pytest.raises(SchemaMismatch, match=f"'p': {path} has no 'b', which notes:Note has as a field"):
            image.restore(1)
    extra = "  b: int\n  def migrate(state, found): return {'a': state['a'], 'b': found}"
    new = define("notes", FIELDS.format(how) + extra)
    new.Note.__cutline_version__ = 1
    assert images[0].restore(1).notes["x"] == new.Note(1, 0) and images[1].restore(1) == new.Note(1, 0)


def test_an_attribute_that_was_never_there_is_no_new_field(define: Define) -> None:
    text = FIELDS.format("") + "  b: int = dataclasses.field(init=False)"
    images = saved(Holder(note=define("notes", text).Note(1)))
    define("notes", text)
    assert not hasattr(images.restore(1).note, "b")


# -- versions ------------------------------------------------------------------------------------------------


def versioned(define: Define, version: int, body: str = "pass") -> types.ModuleType:
    return define("notes", f"class Note:\n  __cutline_version__ = {version}\n  {body}")


def test_a_newer_version_than_the_program_has(define: Define) -> None:
    note = versioned(define, 3).Note()
    image, message = saved(Holder(note=note)), dumps(note, participant="p", where="argument")
    for version in (2, None):
        if version is None:
            define("notes", PLAIN)
        else:
            versioned(define, version, "def migrate(state, found): raise AssertionError")
        text = (
            f"saved by version 3 of notes:Note, and this program has version {version or 0}, which is older"
        )
        with pytest.raises(SchemaMismatch, match=rf"'p': self\.note was {text}") as failed:
            image.restore(1)
        assert (failed.value.facts["found"], failed.value.facts["wanted"]) == (3, version or 0)
        with pytest.raises(SchemaMismatch, match=text):
            loads(message, participant="p")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return 5", "returned 5, and not a dict of attributes"),
        ("return [('a', 1)]", "and not a dict of attributes"),
        ("return {1: 2}", "and not a dict of attributes"),
        ("state = {'b': 1}", "returned nothing and changed no attribute"),
        ("raise KeyError('no')", "failed with KeyError: 'no'"),
    ],
)
def test_a_migration_that_goes_wrong(define: Define, body: str, why: str) -> None:
    note = versioned(define, 1).Note()
    note.a = 1
    images = saved(Holder(notes=[note]))
    before = copy.deepcopy(images.images)
    versioned(define, 2, f"def migrate(state, found): {body}")
    with pytest.raises(
        SchemaMismatch, match=rf"'p': self\.notes\[0\] does not become version 2.*{why}"
    ) as failed:
        images.restore(1)
    assert failed.value.facts["class_name"] == "notes:Note" and failed.value.facts["what"] == "migrate"
    # The image stays as it was, and another program takes it.
    assert images.images == before
    versioned(define, 2, "def migrate(state, found): state['b'] = state.pop('a')")
    assert images.restore(1).notes[0].b == 1


def test_a_migration_that_loses_a_field(define: Define) -> None:
    images = saved(Holder(note=define("notes", FIELDS.format("")).Note(1)))
    new = define("notes", FIELDS.format("") + "  def migrate(state, found): return {}")
    new.Note.__cutline_version__ = 1
    with pytest.raises(SchemaMismatch, match=r"self\.note has no 'a', which notes:Note has as a field"):
        images.restore(1)


@pytest.mark.parametrize("before", [0, 1])
def test_objects_in_messages_are_migrated(define: Define, before: int) -> None:
    """Each message says by which version it was written; if its class had none, by version 0."""
    old = versioned(define, before) if before else define("notes", PLAIN)
    note = old.Note()
    note.a = 1
    payload = dumps({"n": [note], "same": note}, participant="p", where="argument")
    new = versioned(define, 2, "def migrate(state, found): return {'b': state['a'], 'from': found}")
    got = loads(payload, participant="p")
    assert vars(got["n"][0]) == {"b": 1, "from": before} and got["same"] is got["n"][0]
    # What is sent from now on is not.
    fresh = new.Note()
    assert vars(loads(dumps(fresh, participant="p", where="argument"), participant="p")) == {}


def test_two_versions_in_one_checkpoint(define: Define) -> None:
    """A participant of version 2, and in another one's state an object of version 1: each by its own."""
    note = versioned(define, 1).Note()
    note.a = 1
    other = saved(Holder(note=note))
    agent = versioned(define, 2).Note()
    agent.b = 5
    first = saved(agent)
    versioned(define, 2, "def migrate(state, found): return {'b': state['a'], 'from': found}")
    assert vars(first.restore(1)) == {"b": 5} and vars(other.restore(1).note) == {"b": 1, "from": 1}


def test_two_classes_of_different_versions_cannot_become_one(define: Define) -> None:
    old = define("notes", "class A: __cutline_version__ = 1\nclass B: __cutline_version__ = 2")
    images = saved(Holder(all=[old.A(), old.B()]))
    new = define("notes", "class C:\n  __cutline_version__ = 2\n  def migrate(state, found): return state")
    cutline.renamed("notes:A", new.C)
    cutline.renamed("notes:B", new.C)
    with pytest.raises(SchemaMismatch, match=r"'p': self has objects of notes:C that were several classes"):
        images.restore(1)


def test_a_class_that_was_split(define: Define) -> None:
    old = versioned(define, 1)
    note = old.Note()
    note.text, note.author = "hello", "ada"
    images = saved(Holder(note=note, again=note))
    new = define(
        "notes",
        "class Author:\n  def __init__(self, name): self.name = name\n"
        "class Note:\n  __cutline_version__ = 2\n"
        "  def migrate(state, found): return {**state, 'author': Author(state['author'])}",
    )
    held = images.restore(1)
    assert held.note is held.again and type(held.note.author) is new.Author and held.note.author.name == "ada"


def test_a_large_state_whose_classes_stay_is_not_walked(
    define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = versioned(define, 1)
    images = saved(Holder(notes=[old.Note() for _ in range(3)]))
    monkeypatch.setattr("cutline.participant.migrating.reach", lambda *_: pytest.fail("walked"))
    assert len(images.restore(1).notes) == 3


def test_what_has_nothing_to_do_with_classes_is_told_as_before(define: Define) -> None:
    images = saved(Holder(note=filled(define("notes", PLAIN).Note, a=1)))
    define("notes", "class Note:\n  def __setstate__(self, state): 1 / 0")
    with pytest.raises(CannotRestore, match=r"'p': self\.note does not load.*ZeroDivisionError") as failed:
        images.restore(1)
    assert type(failed.value) is CannotRestore


def test_what_map_and_log_hold_is_migrated_and_written_again(define: Define) -> None:
    fields = "class Note:\n  __cutline_version__ = {}\n  a: int\n"
    old = define("notes", "@dataclasses.dataclass(frozen=True)\n" + fields.format(1))
    images = saved(Holder(map=cutline.Map({"x": old.Note(1)}), log=cutline.Log([old.Note(2)])))
    define(
        "notes",
        "@dataclasses.dataclass(frozen=True)\n" + fields.format(2) + "  b: int\n"
        "  def migrate(state, found): return {**state, 'b': found}",
    )
    capturer = Capturer("p")
    restored = capturer.expecting()
    held = images.restore(1, restored)
    capturer.adopt(1, held, restored)
    images.put(capturer.capture(held, number=2, against=1), 1)
    for got in (held, images.restore(2)):
        assert [(note.a, note.b) for note in (got.map["x"], got.log[0])] == [(1, 1), (2, 1)]
