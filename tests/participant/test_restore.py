"""Classes of the resuming program: by name, by version, missing; and errors that say where."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from cutline.errors import CannotRestore, ClassMissing
from cutline.participant.capture import Captured, Capturer
from cutline.participant.classes import Classes
from cutline.participant.restore import restore
from tests.participant.images import Images

HERE = sys.modules[__name__]


class Agent:
    """A participant."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@dataclasses.dataclass
class Note:
    """Part of a state."""

    text: str


@dataclasses.dataclass
class Slot:
    """Part of a state, in slots."""

    __slots__ = ("at", "parent")
    at: int
    parent: Any


class Loose(list[int]):
    """A participant that is saved whole."""


def image(agent: object) -> Images:
    images = Images()
    images.put(Capturer("p").capture(agent, number=1, against=None), None)
    return images


def versioned(monkeypatch: pytest.MonkeyPatch, kind: type, version: int, migrate: Any = None) -> None:
    monkeypatch.setattr(kind, "__cutline_version__", version, raising=False)
    if migrate is not None:
        monkeypatch.setattr(kind, "migrate", staticmethod(migrate), raising=False)


def test_version_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Capturer("p").capture(Agent(), number=1, against=None)
    assert captured.class_version == 0
    versioned(monkeypatch, Agent, 3)
    assert Capturer("p").capture(Agent(), number=1, against=None).class_version == 3


@pytest.mark.parametrize("before", (0, 1))
def test_migrate_gets_the_attributes(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    if before:
        versioned(monkeypatch, Agent, before)
    agent: Any = Agent(cash=5, stock=1)
    agent.me = agent
    images = image(agent)
    seen = []

    def migrate(state: dict[str, Any], found: int) -> dict[str, Any]:
        seen.append(found)
        return {"money": state["cash"], "me": state["me"]}

    versioned(monkeypatch, Agent, 2, migrate)
    restored = images.restore(1)
    assert seen == [before]
    assert restored.money == 5 and restored.me is restored and not hasattr(restored, "cash")


def test_migrate_may_be_a_classmethod_that_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    images = image(Agent(cash=5))
    monkeypatch.setattr(
        Agent, "migrate", classmethod(lambda kind, state, found: state.update(kind=kind)), raising=False
    )
    versioned(monkeypatch, Agent, 1)
    assert vars(images.restore(1)) == {"cash": 5, "kind": Agent}


@pytest.mark.parametrize("before", (0, 1))
def test_every_object_of_the_graph_is_migrated(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    if before:
        versioned(monkeypatch, Note, before)
        versioned(monkeypatch, Slot, before)
    agent: Any = Agent(notes=[Note("a"), {"deep": (Note("b"),)}], slots={})
    agent.slots["s"] = Slot(1, agent.notes[0])
    images = image(agent)
    versioned(monkeypatch, Note, 2, lambda state, found: {**state, "body": state["text"], "from": found})
    versioned(monkeypatch, Slot, 2, lambda state, found: {"at": state["at"] + 1, "parent": state["parent"]})
    restored = images.restore(1)
    first, second = restored.notes[0], restored.notes[1]["deep"][0]
    assert vars(first) == {"text": "a", "body": "a", "from": before}
    assert vars(second) == {"text": "b", "body": "b", "from": before}
    assert restored.slots["s"].at == 2 and restored.slots["s"].parent is first


def test_same_version_is_not_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    versioned(monkeypatch, Note, 2, lambda state, found: pytest.fail("called"))
    assert image(Agent(note=Note("a"))).restore(1).note == Note("a")


def test_without_migrate_the_error_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    images = image(Agent(note=Note("a")))
    versioned(monkeypatch, Note, 4)
    with pytest.raises(CannotRestore, match=r"'p'.*version 0 of .*Note.*version 4.*migrate\(state") as failed:
        images.restore(1)
    assert (failed.value.facts["found"], failed.value.facts["wanted"]) == (0, 4)


def test_a_migration_that_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    images = image(Agent(cash=1))
    versioned(monkeypatch, Agent, 1, lambda state, found: state["missing"])
    with pytest.raises(CannotRestore, match=r"Agent.migrate\(state, 0\) failed.*KeyError"):
        images.restore(1)


@pytest.mark.parametrize(("name", "path"), [("Note", r"self\.notes"), ("Agent", "self")])
def test_a_missing_class_is_named(monkeypatch: pytest.MonkeyPatch, name: str, path: str) -> None:
    images = image(Agent(other=1, notes=[Note("a")]))
    monkeypatch.delattr(HERE, name)
    with pytest.raises(ClassMissing, match=rf"'p': {path}: .*{__name__}:{name}.*cutline.renamed") as missing:
        images.restore(1)
    facts = missing.value.facts
    assert facts["class_name"] == f"{__name__}:{name}"
    assert (facts["participant"], facts["path"]) == ("p", path.replace("\\", ""))


def test_what_another_class_stands_under_the_name_now_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    images = image(Agent(note=Note("a")))
    monkeypatch.setattr(HERE, "Note", Slot)
    with pytest.raises(ClassMissing, match=rf"self\.note: .*what is called so is {__name__}:Slot.*renamed"):
        images.restore(1)


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = types.ModuleType("a_module_that_goes")
    exec("class Draft: pass", vars(gone))
    monkeypatch.setitem(sys.modules, gone.__name__, gone)
    images = image(Agent(draft=gone.Draft()))
    monkeypatch.delitem(sys.modules, gone.__name__)
    with pytest.raises(ClassMissing, match="a_module_that_goes:Draft"):
        images.restore(1)


def test_what_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    images = image(Agent(note=Note("a")))
    monkeypatch.setattr(Note, "__setstate__", lambda self, state: 1 / 0, raising=False)
    with pytest.raises(CannotRestore, match=r"self\.note does not load.*ZeroDivisionError"):
        images.restore(1)


def test_a_newer_format_is_refused() -> None:
    import msgpack

    with pytest.raises(CannotRestore, match="format 4"):
        restore([("header", msgpack.packb({"format": 4}))], {}, participant="p")


def test_saved_whole() -> None:
    loose = Loose([1, 2])
    loose.append(3)
    assert image(loose).restore(1) == [1, 2, 3]


SCRIPT = """
import enum, pickle, sys
from pathlib import Path
from cutline.participant.capture import Capturer
from cutline.participant.restore import restore

class Mood(enum.Enum):
    GOOD = 1

class Draft:
    def words(self):
        return METHOD

METHOD = sys.argv[2]
file = Path(sys.argv[1])
if not file.exists():
    draft = Draft()
    draft.mood, draft.inner, draft.kind = Mood.GOOD, [Draft()], Draft
    captured = Capturer("p").capture(draft, number=1, against=None)
    assert captured.class_name == "__main__:Draft"
    file.write_bytes(pickle.dumps([(p.name, p.content) for p in captured.pieces]))
    assert b"METHOD" not in file.read_bytes()
else:
    draft = restore(pickle.loads(file.read_bytes()), {}, participant="p")
    assert isinstance(draft, Draft) and draft.mood is Mood.GOOD and draft.kind is Draft
    assert isinstance(draft.inner[0], Draft)
    print(draft.words(), draft.inner[0].words())
"""


def test_classes_of_the_script_run_again(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(SCRIPT)
    for method in ("old", "new"):
        ran = subprocess.run(
            [sys.executable, str(script), str(tmp_path / "image"), method], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["new", "new"]


def test_the_script_may_have_another_name_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A participant's own __main__ is not the user's script."""
    script = types.ModuleType("__mp_main__")
    exec("class Draft: pass", vars(script))
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    draft = script.Draft()
    draft.inner = script.Draft()
    captured = Capturer("p").capture(draft, number=1, against=None)
    assert captured.class_name == "__main__:Draft"
    pieces = pieces_of(captured)
    assert type(restore(list(pieces), {}, participant="p").inner) is script.Draft  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "__mp_main__")
    again: Any = restore(list(pieces), {}, participant="p", classes=Classes(script))
    assert type(again) is script.Draft and type(again.inner) is script.Draft


def pieces_of(captured: Captured) -> list[tuple[str, bytes]]:
    return [(piece.name, bytes(piece.content or b"")) for piece in captured.pieces]


def test_live_objects_are_bound_by_this_process() -> None:
    from cutline.participant.handle import Handle

    agent: Any = Agent(peer=Handle("critic", f"{__name__}:Agent"))
    captured = Capturer("p").capture(agent, number=1, against=None)
    bound = {"cutline.participant.handle:_load_handle": lambda *names: ("bound", *names)}
    restored: Any = restore(pieces_of(captured), {}, participant="p", live=bound)
    assert restored.peer == ("bound", "critic", f"{__name__}:Agent")


def test_images_hold_names_and_no_more() -> None:
    captured = Capturer("p").capture(Agent(note=Note("a")), number=1, against=None)
    for name, content in pieces_of(captured):
        if name != "header":
            assert len(pickle.dumps(Note("a"), 5)) >= len(content) - 20
