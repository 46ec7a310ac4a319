"""What ``cutline demo`` reads: the standard library's own source, and what its readers find in a file.

Pure functions of paths and texts, but for the three that touch the disk: `find_sources`, `copy_sources` and
`read_text`. The definitions of "import", "definition" and "word" are in the docstring of ``demo_agents``.
"""

from __future__ import annotations

import ast
import re
import shutil
import sysconfig
import tokenize
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

__all__ = (
    "Imports",
    "copy_sources",
    "find_definitions",
    "find_imports",
    "find_sources",
    "find_words",
    "into_buckets",
    "module_name",
    "parse",
    "read_text",
)

Imports: TypeAlias = list[tuple[str, tuple[str, ...]]]

ABSENT, FUNCTION, CLASS, ASSIGNED, IMPORTED, STAR, MODULE = range(7)
MASK32 = 2**32 - 1

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SKIPPED = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload")
)


def find_sources(limit: int = 0) -> tuple[Path, list[str]]:
    """The standard library's folder and its ``.py`` files, sorted relative paths; the first ``limit`` if any.

    Installed packages and test suites (with their deliberately broken files) are left out.
    Raises FileNotFoundError where the library is not there as source, say in a zip file.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    inside = (path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file())
    paths = sorted(path.as_posix() for path in inside if not _SKIPPED.intersection(path.parts))
    if not paths:
        raise FileNotFoundError(f"no Python source in {folder}; the demo reads the standard library's files")
    return folder, paths[: limit or None]


def copy_sources(folder: Path, paths: Sequence[str], target: Path) -> None:
    """Copies the files, so that those already read may be overwritten without harm to the interpreter."""
    for path in paths:
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / path, place)


def read_text(path: Path) -> str:
    """The text in the encoding the file declares, newlines as ``\\n``; as latin-1 where that fails."""
    try:
        with tokenize.open(path) as source:
            return source.read()
    except (SyntaxError, UnicodeDecodeError):
        return path.read_text(encoding="latin-1")


def parse(text: str) -> tuple[ast.Module, bool]:
    """(tree, whether the text is Python). Text that is not Python counts as an empty file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text), True
        except (SyntaxError, ValueError):
            return ast.Module([], []), False


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def find_imports(tree: ast.Module, path: str) -> Imports:
    """(absolute module, names) of each import. No names: a plain ``import``; module "": outside."""
    package = path.split("/")[:-1]
    found: Imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            inside = not node.level or start
            parts = [*start, node.module or ""] if inside else []
            names = tuple(alias.name for alias in node.names)
            found.append((".".join(part for part in parts if part), names))
    return found


def find_definitions(tree: ast.Module) -> dict[str, tuple[int, int]]:
    """{dotted name: (line, kind)}, sorted by name."""
    table: dict[str, tuple[int, int]] = {}
    stack: list[tuple[ast.AST, str, bool]] = [(tree, "", True)]
    while stack:
        parent, prefix, binds = stack.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.expr):
                continue
            defined = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            for name, kind in _bound(node) if binds or defined else ():
                place = (getattr(node, "lineno", 0), kind)
                table[prefix + name] = min(table.get(prefix + name, place), place)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                stack.append((node, f"{prefix}{node.name}.", isinstance(node, ast.ClassDef)))
            else:
                stack.append((node, prefix, binds))
    return dict(sorted(table.items()))


def _bound(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name, FUNCTION
    elif isinstance(node, ast.ClassDef):
        yield node.name, CLASS
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = list(node.targets if isinstance(node, ast.Assign) else [node.target])
        while targets:
            target = targets.pop()
            if isinstance(target, ast.Name):
                yield target.id, ASSIGNED
            elif isinstance(target, (ast.Tuple, ast.List)):
                targets += target.elts
            elif isinstance(target, ast.Starred):
                targets.append(target.value)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            if alias.name == "*":
                yield "*", STAR
            else:
                yield alias.asname or alias.name.partition(".")[0], IMPORTED


def find_words(tree: ast.Module) -> Counter[str]:
    words: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            identifier: str | None = node.id
        elif isinstance(node, ast.Attribute):
            identifier = node.attr
        elif isinstance(node, (ast.arg, ast.keyword)):
            identifier = node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            identifier = node.name
        else:
            continue
        for word in _WORD.findall(identifier or ""):
            if len(word) > 1:
                words[word.lower()] += 1
    return words


def into_buckets(words: Counter[str], turn: int, buckets: int) -> Counter[int]:
    # An odd factor per pass: other words meet in one bucket than in the pass before.
    salt = (2 * turn + 1) * 0x85EBCA6B & MASK32
    counts: Counter[int] = Counter()
    for word, times in words.items():
        counts[(zlib.crc32(word.encode()) * salt & MASK32) * buckets >> 32] += times
    return counts
