"""Changes to a loaded state that are asked for in words: ``book.orders["o1"]=5``.

A path is attributes with dots, keys of mappings and places in lists in brackets. A new value is JSON and must
be of the type of the old one: whatever else is wanted takes a function.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, MutableMapping, MutableSequence
from importlib import import_module
from typing import Any

from cutline.errors import Misuse
from cutline.participant.classes import attributes_of, name_of

__all__ = ("assign", "named_function")

_STEP = re.compile(r"""\.?([^\W\d]\w*)|\[(-?\d+|"(?:[^"\\]|\\.)*")\]""")
_MISSING = object()


def assign(instance: object, text: str) -> None:
    """Does one assignment. Raises Misuse for one that makes no sense, naming what there is instead."""
    path, equals, value = _divided(text)
    steps = _steps(path, text)
    try:
        wanted = json.loads(value) if equals else _MISSING
    except ValueError as error:
        raise Misuse(f'--set {text!r}: {value!r} is no JSON ({error}); a text is written "..."') from error
    if wanted is _MISSING or not steps:
        raise Misuse(f'--set {text!r}: write PATH=JSON, such as cash=5, book.orders["o1"]=2 or log[0]="x"')
    here, said = instance, "self"
    for step in steps[:-1]:
        here = _found(here, step, said)
        said = _longer(said, step)
    _put(here, steps[-1], wanted, said)


def _divided(text: str) -> tuple[str, str, str]:
    """At the first equals sign outside a text in brackets."""
    at = 0
    while (step := _STEP.match(text, at)) is not None:
        at = step.end()
    return text[:at], text[at : at + 1] if text[at : at + 1] == "=" else "", text[at + 1 :]


def _steps(path: str, text: str) -> list[str | int | tuple[str]]:
    """Attributes as texts, places as numbers, keys as a tuple of one."""
    steps: list[str | int | tuple[str]] = []
    for step in _STEP.finditer(path):
        if step[1] is not None:
            steps.append(step[1])
        else:
            inside = _inside(step[2], text)
            steps.append(inside if isinstance(inside, int) else (inside,))
    return steps


def _inside(written: str, text: str) -> Any:
    """A place, or a key. Raises Misuse."""
    try:
        return json.loads(written)
    except ValueError as error:
        raise Misuse(f"--set {text!r}: [{written}] is no place and no key in JSON ({error})") from error


def _longer(said: str, step: str | int | tuple[str]) -> str:
    return f"{said}.{step}" if isinstance(step, str) else f"{said}[{_key(step)!r}]"


def _key(step: int | tuple[str] | str) -> Any:
    return step[0] if isinstance(step, tuple) else step


def _found(here: Any, step: str | int | tuple[str], said: str) -> Any:
    """What a step leads to. Raises Misuse."""
    if isinstance(step, str):
        held, slots = attributes_of(here)
        if step in held or step in slots:
            return held.get(step, slots.get(step))
        known = [str(name) for name in (*held, *slots)]
        raise Misuse(f"{said} ({name_of(type(here))}) has no attribute {step!r}{_instead(step, known)}")
    key = _key(step)
    try:
        return here[key]
    except (LookupError, TypeError) as error:
        known = [str(name) for name in here] if isinstance(here, Mapping) else []
        raise Misuse(
            f"{said} ({name_of(type(here))}) has nothing at [{key!r}]: {type(error).__name__}"
            f"{_instead(str(key), known)}"
        ) from error


def _instead(step: str, known: list[str]) -> str:
    near = difflib.get_close_matches(step, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known[:20]) or 'none'}"


def _put(here: Any, step: str | int | tuple[str], wanted: Any, said: str) -> None:
    place = _longer(said, step)
    if isinstance(step, tuple) and isinstance(here, MutableMapping) and step[0] not in here:
        # A mapping takes new keys; an attribute that is not there is a typo.
        here[step[0]] = wanted
        return
    value = _alike(_found(here, step, said), wanted, place)
    if isinstance(step, str):
        setattr(here, step, value)
    elif isinstance(here, (MutableMapping, MutableSequence)):
        here[_key(step)] = value
    else:
        raise Misuse(f"{said} ({name_of(type(here))}) cannot be changed in places: use --function")


def _alike(old: Any, wanted: Any, place: str) -> Any:
    """The new value, of the old one's type. Raises Misuse."""
    kind = type(old)
    if kind is type(wanted) or old is None or wanted is None:
        return wanted
    if kind is float and type(wanted) is int:
        return float(wanted)
    if kind in (tuple, set, frozenset) and type(wanted) is list:
        return kind(wanted)
    raise Misuse(
        f"{place} is a {name_of(kind).removeprefix('builtins:')}, and {json.dumps(wanted):.80} a "
        f"{type(wanted).__name__}: what JSON cannot say takes --function MODULE:FUNCTION"
    )


def named_function(name: str) -> Any:
    """The function ``module:function``. Raises Misuse."""
    module, colon, qualname = name.partition(":")
    try:
        found: Any = import_module(module) if colon else None
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise Misuse(
            f"--function {name!r}: write MODULE:FUNCTION; {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise Misuse(f"--function {name!r} is no function but {found!r:.80}")
    return found
