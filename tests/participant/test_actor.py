"""`cutline.actor` and `cutline.wrap`: the class stays what it was."""

from __future__ import annotations

import abc
import dataclasses
import pickle
from typing import Any

import cloudpickle
import pytest

import cutline
from cutline.errors import Misuse, OutsideHandler, RefusedOption
from cutline.participant.actor import options_of
from cutline.participant.method_table import MethodTable


@cutline.actor(num_cpus=0.5, on_error="retry")
class Editor:
    """A marked class."""

    def __init__(self, name: str = "e") -> None:
        self.name = name

    def edit(self) -> str:
        return self.name


class Chief(Editor):
    """Inherits the mark."""


@cutline.actor(retries=1)
class Intern(Editor):
    """Adds to the mark."""


@cutline.actor
@dataclasses.dataclass
class Order:
    """A dataclass with fields named as our spelling is."""

    options: dict[str, int]
    remote: bool = False


@cutline.actor
@dataclasses.dataclass
class Plain:
    """A marked dataclass, extended below."""

    amount: int


@dataclasses.dataclass
class Special(Plain):
    """A field that the marked parent has under that name for its class alone."""

    options: dict[str, int]


@cutline.actor
class Slotted:
    """Slots of those names."""

    __slots__ = ("options", "remote")


@cutline.actor
class Own:
    """Methods of those names."""

    def options(self) -> str:
        return "own"

    def remote(self) -> str:
        return "mine"


@cutline.actor
class Shape(abc.ABC):
    """An abstract class."""

    @abc.abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    """A concrete one."""

    def area(self) -> float:
        return 1.0


def test_the_class_is_the_class() -> None:
    assert isinstance(Editor, type) and type(Editor) is type
    assert Editor("a").edit() == "a"
    assert isinstance(Chief(), Editor)
    assert pickle.loads(pickle.dumps(Editor)) is Editor
    assert pickle.loads(pickle.dumps(Chief("c"))).edit() == "c"


def test_options_are_inherited_and_added_to() -> None:
    assert options_of(Chief) == {"num_cpus": 0.5, "on_error": "retry"}
    assert options_of(Intern) == {"num_cpus": 0.5, "on_error": "retry", "retries": 1}
    assert options_of(Editor) == {"num_cpus": 0.5, "on_error": "retry"}


@pytest.mark.parametrize("name", ["remote", "options"])
def test_instances_have_nothing_of_it(name: str) -> None:
    instance = Editor()
    assert not hasattr(instance, name)
    setattr(instance, name, 1)
    assert vars(instance)[name] == getattr(instance, name) == 1
    assert callable(getattr(Chief, name))


def test_a_getattr_of_the_class_is_asked() -> None:
    @cutline.actor
    class Proxy:
        def __getattr__(self, name: str) -> str:
            return f"any {name}"

    assert Proxy().remote == "any remote"


def test_dataclasses_keep_their_fields() -> None:
    assert Order({"a": 1}).options == {"a": 1}
    assert Order({}, True).remote is True
    special = Special(1, {"b": 2})
    assert special.options == {"b": 2}
    with pytest.raises(TypeError, match="options"):
        Special(1)  # type: ignore[call-arg]
    assert not hasattr(Special, "options") and callable(Special.remote)  # type: ignore[attr-defined]


def test_slots_and_methods_keep_their_names() -> None:
    slotted: Any = Slotted()
    slotted.options = 3
    assert slotted.options == 3
    assert (Own().options(), Own().remote()) == ("own", "mine")


def test_abstract_classes_stay_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Shape()  # type: ignore[abstract]
    assert Square().area() == 1.0 and callable(Square.remote)  # type: ignore[attr-defined]


def test_a_class_that_travels_by_value_keeps_its_spelling() -> None:
    @cutline.actor
    class Local:
        pass

    again: Any = pickle.loads(cloudpickle.dumps(Local))
    assert callable(again.remote) and not hasattr(again(), "remote")


def test_the_spelling_is_no_method_of_participants() -> None:
    methods = MethodTable().methods_of(f"{Editor.__module__}:Editor")
    assert methods == frozenset({"edit"})


def test_without_a_system() -> None:
    editor: Any = Editor
    with pytest.raises(OutsideHandler, match="cutline.start"):
        editor.remote()
    with pytest.raises(RefusedOption, match="num_cpu"):
        editor.options(num_cpu=1)
    assert callable(editor.options(name="e", num_cpus=1).remote)


def test_what_is_no_class() -> None:
    with pytest.raises(Misuse, match=r"cutline\.wrap"):
        cutline.actor(retries=1)(len)  # type: ignore[type-var]
    with pytest.raises(Misuse, match="takes a class"):
        cutline.wrap(len)


def test_wrapping_a_plain_class_marks_it() -> None:
    class Old:
        pass

    assert cutline.wrap(Old, retries=2) is Old
    assert options_of(Old) == {"retries": 2}
