"""What a person's answer must be like: types, dataclasses and a part of JSON Schema, as one plain document.

A *form* is a JSON Schema of these keywords alone: ``type``, ``enum``, ``const``, ``anyOf``, ``properties``,
``required``, ``additionalProperties`` (true or false), ``items``, ``minimum``, ``maximum``, ``minLength``,
``maxLength``, ``minItems``, ``maxItems``; ``title``, ``description``, ``default``, ``examples`` and
``$schema`` say nothing. Any other one is refused, because it would be taken for a check that nobody makes.

Answers are what JSON can say. A dataclass is an object with its fields; ``x-class`` names it, so that the
participant gets an instance and whoever answers needs no class.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cutline.errors import Misuse

from .classes import Classes, name_of

__all__ = ("CLASS", "DEPTH", "built", "classes_in", "fault_of", "form_of", "plain", "read_text", "shown")

CLASS = "x-class"
_SIMPLE = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_KINDS = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_WORDS = {
    "null": "null",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a text",
    "array": "a list",
    "object": "an object",
}
_SILENT = frozenset(("title", "description", "default", "examples", "$schema"))
# Keyword: what it counts or compares, what its value is, whether it is a least one.
_BOUNDS: Mapping[str, tuple[str, bool]] = {
    "minimum": ("number", True),
    "maximum": ("number", False),
    "minLength": ("string", True),
    "maxLength": ("string", False),
    "minItems": ("array", True),
    "maxItems": ("array", False),
}
DEPTH = 20
_SUPPORTED = (
    "bool, int, float, str, list, dict, None, list[T], dict[str, T], T | U, Literal, a dataclass of such "
    "fields, or a JSON Schema as a dict"
)


def form_of(schema: Any) -> dict[str, Any]:
    """The form that a schema of the user's means; None: anything.

    Raises:
        Misuse: it is none of what is supported; the message says what is.
    """
    if schema is None:
        return {}
    if isinstance(schema, dict):
        form: dict[str, Any] = plain(schema, "schema")
        _check(form, "schema", DEPTH)
        return form
    return _of_type(schema, DEPTH)


def _of_type(kind: Any, depth: int) -> dict[str, Any]:
    if depth == 0:
        raise Misuse(f"a schema of more than {DEPTH} levels, or one that contains itself")
    if kind is Any:
        return {}
    kind = type(None) if kind is None else kind
    if isinstance(kind, type) and kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _of_dataclass(kind, depth)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, dict) and not args:
        # typing.List and typing.Dict, of anything.
        return {"type": _SIMPLE[origin]}
    if origin is typing.Literal:
        return {"enum": [plain(value, "schema") for value in args]}
    if origin is typing.Union or origin is types.UnionType:
        return {"anyOf": [_of_type(each, depth - 1) for each in args]}
    if origin is list:
        return {"type": "array", "items": _of_type(args[0], depth - 1)}
    if origin is dict and args[0] is str:
        return {"type": "object", "additionalProperties": _of_type(args[1], depth - 1)}
    raise Misuse(f"an answer's schema is {_SUPPORTED}; not {kind!r}")


def _of_dataclass(kind: type, depth: int) -> dict[str, Any]:
    name = name_of(kind)
    if Classes().find_named(name) is not kind:
        raise Misuse(
            f"a dataclass that answers are made of has a name of its own in a module; {kind!r} has none"
        )
    try:
        hints = typing.get_type_hints(kind)
    except Exception as error:
        # Of an expression in the user's own text.
        raise Misuse(f"the types of the fields of {name} cannot be told: {error}") from error
    fields = [field for field in dataclasses.fields(kind) if field.init]
    needed = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return {
        "type": "object",
        "properties": {field.name: _of_type(hints[field.name], depth - 1) for field in fields},
        "required": needed,
        "additionalProperties": False,
        CLASS: name,
    }


def _check(form: Any, path: str, depth: int) -> None:
    """Raises Misuse for what is no form."""
    if depth == 0:
        raise Misuse(f"{path}: a schema of more than {DEPTH} levels")
    if not isinstance(form, dict):
        raise Misuse(f"{path} is a JSON Schema (a dict), not {form!r:.80}")
    for word, said in form.items():
        if word in _SILENT:
            continue
        if word == "type":
            kinds = said if isinstance(said, list) else [said]
            good = bool(kinds) and all(isinstance(kind, str) and kind in _KINDS for kind in kinds)
        elif word in _BOUNDS:
            good = type(said) in (int, float)
        elif word in ("enum", "anyOf"):
            good = isinstance(said, list) and bool(said)
        elif word == "required":
            good = isinstance(said, list) and all(isinstance(name, str) for name in said)
        elif word == "properties":
            good = isinstance(said, dict)
        elif word in ("items", "additionalProperties"):
            good = isinstance(said, dict) or (word != "items" and isinstance(said, bool))
        elif word == "const":
            good = True
        else:
            raise Misuse(
                f"{path}: keyword {word!r} is not supported, and is not taken for a check that nobody makes; "
                f"supported are {_SUPPORTED}, of these keywords: type, enum, const, anyOf, properties, "
                f"required, additionalProperties, items, {', '.join(_BOUNDS)}"
            )
        if not good:
            raise Misuse(f"{path}: {word!r} cannot be {said!r:.80}")
    for name, part in _parts(form):
        _check(part, f"{path}.{name}", depth - 1)


def _parts(form: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The forms inside a form."""
    yield from form.get("properties", {}).items()
    yield from ((f"anyOf[{at}]", part) for at, part in enumerate(form.get("anyOf", ())))
    for word in ("items", "additionalProperties"):
        if word in form and not isinstance(form[word], bool):
            yield word, form[word]


def plain(value: Any, what: str = "answer") -> Any:
    """A value as JSON says it: dataclasses become objects, tuples lists.

    Raises:
        Misuse: JSON cannot say it.
    """
    try:
        return _plain(value, what)
    except RecursionError as error:
        raise Misuse(f"{what}: it has too many levels, or contains itself") from error


def _plain(value: Any, what: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(each, what) for each in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise Misuse(f"{what}: names in an object are texts: {value!r:.80}")
        return {name: _plain(each, what) for name, each in value.items()}
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Misuse(f"{what}: JSON cannot say {value!r:.80}: {error}") from error


def fault_of(value: Any, form: Mapping[str, Any], path: str = "answer") -> str:
    """Why a plain value does not fit a form; empty if it does."""
    wanted = form.get("type")
    if wanted is not None:
        kinds = wanted if isinstance(wanted, list) else [wanted]
        if type(value) not in {kind for name in kinds for kind in _KINDS[name]}:
            return f"{path} is {_said(value)} where {' or '.join(_WORDS[name] for name in kinds)} is wanted"
    if "const" in form and not _same(value, form["const"]):
        return f"{path} is {_said(value)} where {_said(form['const'])} is wanted"
    if "enum" in form and not any(_same(value, each) for each in form["enum"]):
        return f"{path} is {_said(value)}, and none of {', '.join(map(_said, form['enum']))}"
    fault = _beyond(value, form, path)
    if not fault and isinstance(value, list) and "items" in form:
        fault = _first(fault_of(each, form["items"], f"{path}[{at}]") for at, each in enumerate(value))
    if not fault and isinstance(value, dict):
        fault = _first(_object_faults(value, form, path))
    if fault or "anyOf" not in form:
        return fault
    faults = [fault_of(value, each, path) for each in form["anyOf"]]
    return "" if "" in faults else "; or: ".join(faults)


def _first(faults: Iterator[str]) -> str:
    return next((fault for fault in faults if fault), "")


def _beyond(value: Any, form: Mapping[str, Any], path: str) -> str:
    for word, (kind, is_least) in _BOUNDS.items():
        if word not in form or type(value) not in _KINDS[kind]:
            continue
        size = value if kind == "number" else len(value)
        if size < form[word] if is_least else size > form[word]:
            return f"{path} is {_said(value)}, against {word} {form[word]}"
    return ""


def _object_faults(value: dict[str, Any], form: Mapping[str, Any], path: str) -> Iterator[str]:
    known, others = form.get("properties", {}), form.get("additionalProperties", True)
    lacking = [name for name in form.get("required", ()) if name not in value]
    if lacking:
        yield f"{path} lacks {', '.join(map(repr, lacking))}"
    for name, each in value.items():
        if name in known:
            yield fault_of(each, known[name], f"{path}.{name}")
        elif others is False:
            yield f"{path} has {name!r}, and may have {', '.join(map(repr, known)) or 'nothing'} alone"
        elif others is not True:
            yield fault_of(each, others, f"{path}.{name}")


def _said(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _same(value: Any, other: Any) -> bool:
    """JSON's equality: 1 is 1.0, and true is neither."""
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_same(value[name], other[name]) for name in value)
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


def read_text(text: str, form: Mapping[str, Any]) -> tuple[Any, str]:
    """What a text on a command line says, and why that does not fit.

    It is JSON where that fits, else the text itself where that fits.
    """
    try:
        value = plain(json.loads(text))
    except (ValueError, RecursionError, Misuse):
        return text, fault_of(text, form)
    fault = fault_of(value, form)
    return (text, "") if fault and not fault_of(text, form) else (value, fault)


def built(value: Any, form: Mapping[str, Any], find: Callable[[str], Any]) -> Any:
    """What the participant gets: instances where the form names dataclasses. The value fits the form.

    Raises:
        ClassMissing, ClassNotAllowed: from `find`.
    """
    if "anyOf" in form:
        form = next(each for each in form["anyOf"] if not fault_of(value, each))
    if isinstance(value, list) and "items" in form:
        return [built(each, form["items"], find) for each in value]
    if not isinstance(value, dict):
        return value
    known, others = form.get("properties", {}), form.get("additionalProperties", True)
    made = {
        name: built(each, known[name] if name in known else others, find)
        if name in known or isinstance(others, dict)
        else each
        for name, each in value.items()
    }
    return find(form[CLASS])(**made) if CLASS in form else made


def classes_in(form: Mapping[str, Any]) -> Iterator[str]:
    """The dataclasses that a form names."""
    if CLASS in form:
        yield form[CLASS]
    for _, part in _parts(form):
        yield from classes_in(part)


def shown(form: Mapping[str, Any]) -> dict[str, Any]:
    """The form as a JSON Schema, without what names classes."""
    bare = {word: said for word, said in form.items() if word != CLASS}
    for word in ("items", "additionalProperties"):
        if isinstance(bare.get(word), dict):
            bare[word] = shown(bare[word])
    if "properties" in bare:
        bare["properties"] = {name: shown(part) for name, part in bare["properties"].items()}
    if "anyOf" in bare:
        bare["anyOf"] = [shown(part) for part in bare["anyOf"]]
    return bare
