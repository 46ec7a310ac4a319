"""Objects of an older program become objects of this one: versions, new fields, names of private attributes.

Theory of operation. A class says by ``__cutline_version__`` (int, 0 when absent) how its attributes are to be
read; images and messages record it. When everything has been loaded, `settle` looks through the graph for
objects of classes that are not what they were, and through nothing if there are none:

* of another version: ``migrate(state, from_version)`` gets the attributes as a dict and returns those of the
  class as it is, or edits the dict. A version that this program does not have yet is refused.
* of a dataclass with new fields: their defaults; a field without one is refused, since every use of it would
  be an AttributeError at some later time.
* of a class that was renamed: its private attributes (``__x``, kept as ``_Old__x``) are called after it.
* with attributes for which a class with ``__slots__`` has no place: only `migrate` can tell what they become.

Where that has changed anything, dicts and sets are filled anew (`cutline.participant.rehash`).

It runs when the whole graph stands, so `migrate` may follow references. Objects are collected first: what a
migration makes anew is of the new version already.
"""

from __future__ import annotations

import dataclasses
import gc
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cutline.errors import SchemaMismatch

from .classes import attributes_of, homeless, set_attributes, slot_names, version_of
from .findings import Absent, Findings, Migration
from .handle import Handle, Ref
from .paths import path_of
from .rehash import KeysLost, rehash
from .renames import RENAMES, name_of
from .saying import said
from .unread import Layers

__all__ = ("Settling", "fields_of", "reach")

_UNOPENED = (type, types.ModuleType, types.FunctionType, Handle, Ref, Absent, Layers)


def fields_of(kind: type) -> list[str] | None:
    """The names of a dataclass's fields; None of other classes."""
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else None


def reach(root: object, wanted: Collection[type]) -> list[object]:
    """Every object of exactly these types that `root` leads to, itself included, each once.

    Classes, modules and functions lead out of the state, into the program; handles into the whole system.
    """
    return [here for here in _everything(root) if type(here) in wanted]


def _everything(root: object) -> Iterator[object]:
    seen: set[int] = {id(root)}
    work: list[object] = [root]
    # What is made only to look at it must live on: its address would be another object's.
    made: list[object] = []
    while work:
        here = work.pop()
        yield here
        children = gc.get_referents(here)
        if isinstance(here, np.ndarray) and here.dtype.hasobject:
            # Of what is in it numpy says nothing to the garbage collector.
            made.append(inside := here.ravel().tolist())
            children.append(inside)
        for child in children:
            if id(child) not in seen and not isinstance(child, _UNOPENED):
                seen.add(id(child))
                work.append(child)


class Settling:
    """The last step of loading an image or a message. `name` is what its root is called in errors.

    Args:
        found: the classes that it names, by the names that it has for them.
        versions: of those classes, by the same names, when it was written.
        fields: of those that were dataclasses; None where nobody has recorded it.
        stray: attributes without a place, with their objects.
    """

    def __init__(
        self,
        root: object,
        found: Mapping[str, type],
        versions: Mapping[str, int],
        fields: Mapping[str, Sequence[str]] | None,
        stray: Mapping[int, tuple[object, dict[str, Any]]],
        *,
        name: str,
        findings: Findings,
    ) -> None:
        self._root, self._name, self._findings = root, name, findings
        self._stray = dict(stray)
        self._outdated: dict[type, int] = {}
        self._lacking: dict[type, list[dataclasses.Field[Any]]] = {}
        self._mangled: dict[type, list[tuple[str, str]]] = {}
        # With slots and a __dict__: what is a slot now may have been saved for the other.
        self._mixed: set[type] = set()
        self._faulty: set[type] = set()
        self._has_changed = False
        for saved, kind in found.items():
            self._compare(saved, kind, versions.get(saved, 0), fields)

    def _compare(
        self, saved: str, kind: type, version: int, fields: Mapping[str, Sequence[str]] | None
    ) -> None:
        known = self._outdated.get(kind, version)
        if known != version:
            self._fault(
                kind,
                "version",
                self._name,
                f"has objects of {name_of(kind)} that were several classes, one of them {saved}, in "
                f"versions {known} and {version}: nobody can tell which is which any more; give the classes "
                "one __cutline_version__, by a program that still has both, before they become one",
            )
        self._outdated[kind] = version
        new = dataclasses.fields(kind) if fields is not None and dataclasses.is_dataclass(kind) else ()
        then = fields.get(saved, ()) if fields is not None else ()
        if lacking := [field for field in new if field.name not in then]:
            self._lacking[kind] = lacking
        if RENAMES.table and (mangled := _mangled(kind)):
            self._mangled[kind] = mangled
        if kind.__dictoffset__ and slot_names(kind):
            self._mixed.add(kind)

    def run(self, marked: Sequence[tuple[object, int]] = ()) -> None:
        """Brings everything to what this program's classes are.

        `marked`: objects that say themselves by which version they were saved.

        Raises:
            SchemaMismatch: that cannot be done; names participant, class and path.
        """
        outdated = {kind: found for kind, found in self._outdated.items() if found != version_of(kind)}
        wanted = {*outdated, *self._lacking, *self._mangled, *self._mixed}
        instances = reach(self._root, wanted) if wanted else []
        for instance in instances:
            if type(instance) in self._mangled or type(instance) in self._mixed:
                self._move(instance, self._mangled.get(type(instance), ()))
        for instance in instances:
            if type(instance) in self._lacking and type(instance) not in outdated:
                self._fill(instance, self._lacking[type(instance)])
        old = [(each, outdated[type(each)]) for each in instances if type(each) in outdated]
        for instance, found in (*marked, *old):
            kind = type(instance)
            # One object stands for all: a state may hold a million.
            if kind not in self._faulty:
                self._migrate(instance, found)
                if dataclasses.is_dataclass(kind):
                    self._fill(instance, dataclasses.fields(kind))
        for instance, attributes in self._stray.values():
            self._fault(
                type(instance),
                "attribute",
                instance,
                f"was saved with {', '.join(map(repr, attributes))}, and {name_of(type(instance))} has no "
                "such slot any more; keep the slot, or count __cutline_version__ up and give the class a "
                "migrate(state, from_version) that says what becomes of it",
            )
        if self._has_changed and not self._faulty:
            self._rehash()

    def _rehash(self) -> None:
        kinds = dict, set, frozenset
        try:
            rehash([each for each in _everything(self._root) if isinstance(each, kinds)])
        except KeysLost as lost:
            text = f"{lost.why} (such as {lost.key!r:.80}), since objects were migrated: let __hash__ and "
            text += "__eq__ go by what migrate leaves as it is, or let it keep them apart"
            self._fault(type(lost.key), "migrate", lost.container, text, cause=lost.__cause__)

    def _fault(
        self,
        kind: type,
        what: str,
        where: object,
        text: str,
        *,
        cause: BaseException | None = None,
        **facts: Any,
    ) -> None:
        """`where`: the object, or its path, which `text` goes on from."""
        self._faulty.add(kind)
        path = where if isinstance(where, str) else None
        if path is None:
            path = path_of(self._root, self._name, lambda here: here is where) or self._name
        error = SchemaMismatch(f"{path} {text}", path=path, class_name=name_of(kind), what=what, **facts)
        error.__cause__ = cause
        self._findings.meet(error)

    def _move(self, instance: object, pairs: Sequence[tuple[str, str]]) -> None:
        """Attributes go to where the class looks for them, by the names by which it does."""
        held, slots = attributes_of(instance)
        _, stray = self._stray.pop(id(instance), (None, {}))
        names = set(slot_names(type(instance)))
        found = {
            _today(name, pairs): value for name, value in (*held.items(), *slots.items(), *stray.items())
        }
        if lost := homeless(instance, found):
            self._stray[id(instance)] = instance, {name: found.pop(name) for name in lost}
        if stray or not names.isdisjoint(held) or found.keys() != {*held, *slots}:
            set_attributes(instance, found)
            self._has_changed = True

    def _migrate(self, instance: object, found: int) -> None:
        kind = type(instance)
        wanted = version_of(kind)
        name = name_of(kind)
        facts: dict[str, Any] = {"found": found, "wanted": wanted}
        saved = f"was saved by version {found} of {name}, and this program has version {wanted}"
        if found > wanted:
            text = f"{saved}, which is older: take the newer program, or an earlier checkpoint"
            self._fault(kind, "version", instance, text, **facts)
            return
        migrate = getattr(kind, "migrate", None)
        if not callable(migrate):
            text = (
                f"{saved}; give the class a staticmethod migrate(state, from_version) that returns the "
                f"attributes of version {wanted}"
            )
            self._fault(kind, "version", instance, text, **facts)
            return
        held, slots = attributes_of(instance)
        _, stray = self._stray.pop(id(instance), (None, {}))
        before: dict[Any, Any] = {**held, **slots, **stray}
        state = dict(before)
        try:
            migrated = migrate(state, found)
        except Exception as error:
            text = f"does not become version {wanted}: {name}.migrate(state, {found}) failed with "
            text += said(error)
            self._fault(kind, "migrate", instance, text, cause=error, **facts)
            return
        why = _refused(instance, migrated, state, before)
        if why:
            text = f"does not become version {wanted}: {name}.migrate(state, {found}) {why}"
            self._fault(kind, "migrate", instance, text, **facts)
            return
        set_attributes(instance, state if migrated is None else migrated)
        self._has_changed = True
        self._findings.migrations[Migration(name, found, wanted)] += 1

    def _fill(self, instance: object, fields: Sequence[dataclasses.Field[Any]]) -> None:
        """Gives an object of a dataclass what it lacks of these fields."""
        held, slots = attributes_of(instance)
        for field in fields:
            if field.name in held or field.name in slots:
                continue
            self._has_changed = True
            if field.default_factory is not dataclasses.MISSING:
                object.__setattr__(instance, field.name, field.default_factory())
            elif field.default is not dataclasses.MISSING:
                object.__setattr__(instance, field.name, field.default)
            elif type(instance) not in self._faulty:
                self._fault(
                    type(instance),
                    "field",
                    instance,
                    f"has no {field.name!r}, which {name_of(type(instance))} has as a field in this program; "
                    "give the field a default, or count __cutline_version__ up and give the class a "
                    "migrate(state, from_version) that adds it",
                    field=field.name,
                )


def _refused(instance: object, migrated: Any, state: dict[Any, Any], before: dict[Any, Any]) -> str:
    """Why what `migrate` returned is not taken; empty if it is."""
    if migrated is None:
        same = state.keys() == before.keys() and all(state[key] is before[key] for key in before)
        migrated = state
        if same:
            return (
                "returned nothing and changed no attribute of what it was given: return the attributes of "
                "the new version (`return state` if they are the same)"
            )
    if not isinstance(migrated, Mapping) or not all(type(key) is str or key in before for key in migrated):
        return f"returned {migrated!r:.80}, and not a dict of attributes"
    if lost := homeless(instance, migrated):
        return f"returned {', '.join(map(repr, lost))}, for which the class has no slot"
    return ""


def _mangled(kind: type) -> list[tuple[str, str]]:
    """How the names of private attributes begin that the class's objects were saved with, and begin now."""
    pairs = []
    for each in kind.__mro__:
        for former in RENAMES.former(name_of(each))[1:]:
            old = former.partition(":")[2].rpartition(".")[2].lstrip("_")
            if old and old != (new := each.__name__.lstrip("_")):
                pairs.append((f"_{old}__", f"_{new}__"))
    return pairs


def _today(name: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    for old, new in pairs:
        if type(name) is str and name.startswith(old) and not name.endswith("__"):
            return new + name[len(old) :]
    return name
