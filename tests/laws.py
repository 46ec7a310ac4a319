"""The laws of the code that no linter knows, each a function from a source text to the faults in it.

A fault is a sentence that begins with the line number. test_tidy.py runs every law over the tree, and over a
bad text to show that it can fail. What a law cannot see (an import by a computed name, say) it leaves alone:
a law that cries wolf is soon switched off.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

__all__ = (
    "MAY_IMPORT",
    "ROOMS",
    "bare_rooms",
    "impure_calls",
    "impure_imports",
    "last_name",
    "long_functions",
    "long_module",
    "machine_paths",
    "no_all",
    "no_docstring",
    "parent_imports",
    "swallowed_errors",
    "unfinished",
    "upward_imports",
    "vague_names",
)

# Who may import whom; the face (cutline/__init__.py) stands above all and may import everything.
MAY_IMPORT = {
    "errors": (),
    "barrier": ("errors",),
    "storage": ("errors",),
    "participant": ("errors", "barrier", "storage"),
    "coordinator": ("errors", "barrier", "storage", "participant"),
}
ROOMS = ("barrier", "storage", "participant", "coordinator")

BODY_LINES = 70
MODULE_LINES = 500

_PURE_MODULES = frozenset(
    "__future__ bisect collections cutline dataclasses enum functools heapq itertools msgpack struct typing"
    " xxhash".split()
)
# hash() of a text differs per interpreter, id() per run: both would make an order that no seed reproduces.
_IMPURE_CALLS = frozenset("open print input eval exec compile breakpoint __import__ id hash".split())
_VAGUE = frozenset("Manager Context Util Utils Helper Helpers Base Common".split())


def _imports(tree: ast.AST, room: str) -> Iterator[tuple[int, str]]:
    """Every import as (line, absolute dotted name); ``from cutline import X`` counts as ``cutline.X``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                source = f"cutline.{room}.{source}".rstrip(".")
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}" if source == "cutline" else source
        elif isinstance(node, ast.Call) and last_name(node.func) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def last_name(node: ast.AST | None) -> str:
    """The last part of ``a.b.c``, or of ``a``; "" for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def upward_imports(text: str, room: str) -> list[str]:
    """Rooms import only downwards; inside a room relative, across rooms absolute."""
    tree = ast.parse(text)
    faults = []
    for line, name in _imports(tree, room):
        if name != "cutline" and not name.startswith("cutline."):
            continue
        target = name.split(".")[1] if "." in name else "the face"
        if target != room and target not in MAY_IMPORT[room]:
            faults.append(f"{line}: {room} must not import {name}: it may see {MAY_IMPORT[room]}")
    scripts = (node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.dump(node.test))
    as_a_script = {node for script in scripts for node in ast.walk(script)}  # where relative imports fail
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node not in as_a_script:
            if f"{node.module}.".startswith(f"cutline.{room}."):
                faults.append(f"{node.lineno}: {room} imports itself by its full name: write `from .`")
    return faults


def parent_imports(text: str) -> list[str]:
    """No ``from ..x import``: it breaks for files named by their path at the root."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    return [f"{node.lineno}: import of a parent: write cutline.<room>" for node in nodes if node.level > 1]


def bare_rooms(text: str) -> list[str]:
    """No ``import storage``: with the root on the path it would load a second copy of every class."""
    found = _imports(ast.parse(text), "")
    return [
        f"{line}: import {name} makes a second copy of its classes: write cutline.{name}"
        for line, name in found
        if name.split(".")[0] in ROOMS
    ]


def impure_imports(text: str) -> list[str]:
    """barrier/ imports nothing that knows of time, chance, threads or the outside."""
    found = _imports(ast.parse(text), "barrier")
    return [f"{line}: barrier must not import {name}" for line, name in found if not _is_pure(name)]


def _is_pure(name: str) -> bool:
    return name.split(".")[0] in _PURE_MODULES


def impure_calls(text: str) -> list[str]:
    """barrier/ calls no builtin that does I/O, runs text, or differs between two runs of one seed."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [
        f"{node.lineno}: barrier must not call {node.func.id}()"
        for node in calls
        if isinstance(node.func, ast.Name) and node.func.id in _IMPURE_CALLS
    ]


def long_functions(text: str) -> list[str]:
    """A function's body, its docstring apart, fits on a page."""
    faults = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if body:
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
            if lines > BODY_LINES:
                faults.append(f"{node.lineno}: {node.name} has {lines} lines, the limit is {BODY_LINES}")
    return faults


def long_module(text: str) -> list[str]:
    """A module holds one idea."""
    lines = len(text.splitlines())
    return [f"1: {lines} lines, the limit is {MODULE_LINES}"] if lines > MODULE_LINES else []


def no_docstring(text: str) -> list[str]:
    """A module says what it is about before it begins."""
    return [] if ast.get_docstring(ast.parse(text)) else ["1: the module has no docstring"]


def _top_level_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements at the top of a module bind; those inside if, try and with too."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0]
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            for block in ("body", "orelse", "finalbody"):
                yield from _top_level_names(getattr(node, block, []))
            for handler in getattr(node, "handlers", []):
                yield from _top_level_names(handler.body)
        else:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id


def no_all(text: str) -> list[str]:
    """A module names its public face in ``__all__``, a tuple, and binds each name of it."""
    tree = ast.parse(text)
    value: ast.expr | None = None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(last_name(target) == "__all__" for target in targets):
            value = getattr(node, "value", None)
    if value is None:
        return ["1: the module has no __all__"]
    if isinstance(value, ast.List):
        return [f"{value.lineno}: __all__ is a list that anybody may change: make it a tuple"]
    bound = set(_top_level_names(tree.body))
    if not isinstance(value, ast.Tuple) or "__getattr__" in bound:
        return []
    names = [part.value for part in value.elts if isinstance(part, ast.Constant)]
    return [f"{value.lineno}: no {name!r}, which __all__ names" for name in names if name not in bound]


def swallowed_errors(text: str) -> list[str]:
    """No error is dropped in silence; where that is meant, ``contextlib.suppress`` says so."""
    handlers = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler))
    silent = (node for node in handlers if all(map(_does_nothing, node.body)))
    return [f"{node.lineno}: an error is dropped in silence" for node in silent]


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def unfinished(text: str) -> list[str]:
    """What is not done is an issue, not a note in the code."""
    return _lines_with(re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b"), text, "unfinished")


def machine_paths(text: str) -> list[str]:
    """No path of the machine that somebody worked on."""
    return _lines_with(re.compile(r"(?<![\w.~-])/(?:work|root|home|farm|Users)/"), text, "one machine's path")


def _lines_with(pattern: re.Pattern[str], text: str, fault: str) -> list[str]:
    found = ((n, line) for n, line in enumerate(text.splitlines(), 1) if pattern.search(line))
    return [f"{n}: {fault}: {line.strip()[:80]}" for n, line in found]


def vague_names(text: str) -> list[str]:
    """No class is named by a word that fits every class."""
    classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    return [
        f"{node.lineno}: {node.name} says nothing about what it is"
        for node in classes
        if _VAGUE & set(re.findall(r"[A-Z][a-z]*", node.name))
    ]
