"""Every error survives a trip between processes, and the tree drawn in cutline/errors.py is the real one."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from cutline import errors
from cutline.errors import CutlineError

CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
]
FACTS = {"participant": "t3", "checkpoint": 41, "path": ".stock[2]", "name": "t3", "kind": "delta"}


def _drawn(text: str) -> list[tuple[str, ...]]:
    """(class, its bases in order) for each line of a drawn tree; a second base stands in brackets."""
    path: list[str] = []
    found: list[tuple[str, ...]] = []
    for line in text.splitlines():
        match = re.match(r"^ {4}((?:[│ ]   )*(?:[├└]── )?)(\w+)(?: +\((\w+)\))?(?= |$)", line)
        if match:
            branch, name, second = match.groups()
            depth = len(branch) // 4
            path[depth:] = [name]
            parent = path[depth - 1] if depth else "Exception"
            found.append((name, parent, second) if second else (name, parent))
    return found


def _real() -> list[tuple[str, ...]]:
    return [(name, *(base.__name__ for base in getattr(errors, name).__bases__)) for name in errors.__all__]


def test_the_drawn_tree_is_the_real_one() -> None:
    assert _drawn(errors.__doc__ or "") == _real()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(KeyError) nobody", "nobody"),
        ("├── Misuse ", "├── Abuse "),
        ("│   ├── Corrupt ", "├── Corrupt "),
        ("    │       └── SchemaMismatch", "    │   └── SchemaMismatch"),
    ],
)
def test_a_wrong_drawing_is_seen(right: str, wrong: str) -> None:
    text = errors.__doc__ or ""
    assert right in text
    assert _drawn(text.replace(right, wrong)) != _real()


def test_every_error_is_public() -> None:
    assert {kind.__name__ for kind in CLASSES} == set(errors.__all__)
    assert len(set(errors.__all__)) == len(errors.__all__)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_trip(kind: type[CutlineError]) -> None:
    error = kind("t3: no such thing; look at `cutline list`", **FACTS)
    protocols = range(2, pickle.HIGHEST_PROTOCOL + 1)
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in protocols]
    for twin in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert (str(twin), twin.message, twin.facts) == (str(error), error.message, FACTS)
        assert twin.args == error.args


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_is(kind: type[CutlineError]) -> None:
    assert issubclass(kind, CutlineError)
    assert kind.__doc__
    assert str(kind("a sentence")) == "a sentence"  # KeyError and OSError would print something else
    assert str(kind()) == ""
