"""What ``cutline demo`` must come to, computed in one process, without messages and without the agents' code.

The definitions are in the docstring of ``demo_agents``; the ways are chosen to be different ones, so that a
mistake in one is not likely to be made in the other:

=========== ======================================== ================================================
what        the agents                               here
=========== ======================================== ================================================
files       iterative walks, one parse per pass      one recursive visitor, each file parsed once
words       a regular expression                     character by character
matrix      outer products added to single rows      one exact float64 matrix product
ticks       a window of rows each                    a difference array over the rows
imports     ask whoever read the module              all tables side by side
ranks       numpy over edges                         Python's integers over rows
messages    counted when handled                     follow from what the job is
=========== ======================================== ================================================

(All values in the products are integers far below 2**53, so no order of the additions shows.)
"""

from __future__ import annotations

import ast
import binascii
import hashlib
import importlib.util
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ("compute",)

_KINDS = {"function": 1, "class": 2, "assigned": 3, "imported": 4, "star": 5}


class _File(ast.NodeVisitor):
    """Everything the job wants to know of one file, gathered in one recursive visit."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.module = path[: -len(".py")].replace("/", ".")
        self.package = self.module.rpartition(".")[0]
        if self.module.endswith(".__init__"):
            self.module = self.package
        self.definitions: dict[str, tuple[int, int]] = {}
        self.imports: list[tuple[str, list[str]]] = []
        self.identifiers: dict[str, int] = defaultdict(int)
        self.scope: list[str] = []
        self.binding = True
        self.valid = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = compile(text, path, "exec", ast.PyCF_ONLY_AST)
            except (SyntaxError, ValueError):
                self.valid = False
            else:
                self.visit(tree)

    def _define(self, name: str, kind: str, line: int) -> None:
        dotted = ".".join([*self.scope, name])
        known = self.definitions.get(dotted)
        if known is None or (line, _KINDS[kind]) < known:
            self.definitions[dotted] = (line, _KINDS[kind])

    def _scoped(self, node: Any, kind: str) -> None:
        self.identifiers[node.name] += 1
        self._define(node.name, kind, node.lineno)
        outer = self.binding
        self.scope.append(node.name)
        self.binding = kind == "class"
        self.generic_visit(node)
        self.scope.pop()
        self.binding = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._scoped(node, "function")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._scoped(node, "function")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scoped(node, "class")

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.lineno)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assigned(node.target, node.lineno)
        self.generic_visit(node)

    def _assigned(self, target: ast.expr, line: int) -> None:
        match target:
            case ast.Name(id=name):
                if self.binding:
                    self._define(name, "assigned", line)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._assigned(part, line)
            case ast.Starred(value=inner):
                self._assigned(inner, line)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.append((alias.name, []))
            if self.binding:
                self._define(alias.asname or alias.name.split(".")[0], "imported", node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            try:
                module = importlib.util.resolve_name("." * node.level + module, self.package)
            except ImportError:
                module = ""
        self.imports.append((module, [alias.name for alias in node.names]))
        if self.binding:
            for alias in node.names:
                if alias.name == "*":
                    self._define("*", "star", node.lineno)
                else:
                    self._define(alias.asname or alias.name, "imported", node.lineno)

    def visit_Name(self, node: ast.Name) -> None:
        self.identifiers[node.id] += 1

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.identifiers[node.attr] += 1
        self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        self.identifiers[node.arg] += 1
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None:
            self.identifiers[node.arg] += 1
        self.visit(node.value)


def compute(
    folder: str | Path,
    paths: Sequence[str],
    *,
    passes: int,
    readers: int,
    buckets: int,
    iterations: int,
    ticks: int,
) -> dict[str, Any]:
    """The result of the job over these files of ``folder``, in the shape of ``demo_cast.combine``."""
    files = [_File(path, _text(Path(folder, path))) for path in paths]
    tally = _Tally()
    graph = _link(files, tally)
    result: dict[str, Any] = {
        "files": len(files),
        "read": len(files),
        "characters": sum(len(file.text) for file in files),
        "lines": sum(file.text.count("\n") for file in files),
        "unparsable": sum(not file.valid for file in files),
        "farewells": readers,
        "finished": readers,
        "definitions": sum(len(file.definitions) for file in files),
        "definitions_sum": sum(
            _crc(file.path, name, line, kind)
            for file in files
            for name, (line, kind) in file.definitions.items()
        ),
        "imports": sum(max(1, len(names)) for file in files for _, names in file.imports),
        **graph.pop("counters"),
    }
    edges: dict[tuple[int, int], int] = graph["edges"]
    listing = [f"{source} {target} {weight}" for (source, target), weight in sorted(edges.items())]
    result |= {
        "edges": len(edges),
        "edge_weights": sum(edges.values()),
        "edges_digest": _digest("\n".join(listing).encode()),
        "unanswered": 0,
    }
    ranks = _rank(len(files), edges, iterations)
    result["rank_sum"] = sum(ranks)
    result["ranks_digest"] = _digest(" ".join(str(rank) for rank in ranks).encode())
    result |= _matrix(files, passes, buckets, ticks)
    _count_messages(tally, files, len(edges), passes, readers, iterations, ticks)
    result["messages"] = dict(sorted(tally.rows.items()))
    result["handlers"] = sum(row[0] for row in tally.rows.values())
    return result


class _Tally:
    """Messages by method: their number, and the sums of their weights and of the squares."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, kind: str, *about: object) -> None:
        weight = _crc(*about)
        number, weights, squares = self.rows[kind]
        self.rows[kind] = [number + 1, (weights + weight) % 2**64, (squares + weight**2) % 2**64]


def _crc(*about: object) -> int:
    return binascii.crc32("|".join(str(part) for part in about).encode("utf-8"))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return importlib.util.decode_source(content)
    except (SyntaxError, UnicodeDecodeError):
        return content.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n")


def _link(files: list[_File], tally: _Tally) -> dict[str, Any]:
    """Resolves every import against all tables at once; tells the tally what the agents will have asked."""
    number_of = {file.module: number for number, file in enumerate(files)}
    counters = dict.fromkeys(("external", "plain", "defined", "submodules", "dynamic", "missing", "stars"), 0)
    counters = {f"link_{key}": 0 for key in counters}
    edges: dict[tuple[int, int], int] = defaultdict(int)
    lines = found = 0

    def look(number: int, name: str) -> tuple[int, int]:
        nonlocal lines, found
        tally.add("look_again", number, name)
        table = files[number].definitions
        line, kind = table.get(name, (0, 0)) if name else (len(table), 6)
        lines += line
        found += bool(name) and kind > 0
        return kind, line

    for importer, file in enumerate(files):
        for module, names in file.imports:
            known = next((part for part in _shortened(module) if part in number_of), None)
            if known is None:
                counters["link_external"] += max(1, len(names))
                continue
            target = number_of[known]
            if not names or known != module:
                counters["link_plain"] += 1
                edges[importer, target] += 1
                continue
            tally.add("resolve", importer, target, *names)
            unknown = 0
            for name in names:
                kind, _ = look(target, name)
                inner = number_of.get(f"{known}.{name}")
                if inner is not None:
                    look(inner, "")
                if name == "*":
                    outcome = "stars"
                elif kind:
                    outcome = "defined"
                else:
                    outcome = "unknown" if inner is None else "submodules"
                unknown += outcome == "unknown"
                if outcome != "unknown":
                    counters[f"link_{outcome}"] += 1
                edges[importer, inner if not kind and inner is not None else target] += 1
            if unknown:
                starry, lazy = look(target, "*"), look(target, "__getattr__")
                counters["link_dynamic" if starry[0] or lazy[0] else "link_missing"] += unknown
    return {"edges": dict(edges), "counters": {**counters, "link_lines": lines, "found": found}}


def _shortened(module: str) -> Iterable[str]:
    parts = module.split(".")
    return (".".join(parts[:length]) for length in range(len(parts), 0, -1))


def _rank(size: int, edges: dict[tuple[int, int], int], iterations: int) -> list[int]:
    incoming: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    out = [0] * size
    for (source, target), weight in sorted(edges.items(), reverse=True):
        incoming[target].append((source, weight))
        out[source] += weight
    ranks = [2**40 // size] * size
    for _ in range(iterations):
        dangling = sum(rank for rank, degree in zip(ranks, out, strict=True) if degree == 0)
        share = (15 * 2**40 + 85 * dangling) // (100 * size)
        ranks = [
            share + sum(85 * weight * ranks[source] // (100 * out[source]) for source, weight in entries)
            for entries in incoming
        ]
    return ranks


def _words(identifier: str) -> list[str]:
    """Cuts by hand, character by character: the class of a character and of the next decide."""
    words: list[str] = []
    current = ""
    for place, letter in enumerate(identifier):
        following = identifier[place + 1 : place + 2]
        kind, last = _character(letter), _character(current[-1:])
        starts_over = (
            kind != last
            and not (kind == "lower" and last == "upper")
            or (kind == last == "upper" and _character(following) == "lower")
        )
        if starts_over or kind == "other":
            words.append(current)
            current = ""
        if kind != "other":
            current += letter
    words.append(current)
    return [word.lower() for word in words if len(word) > 1]


def _character(letter: str) -> str:
    if "a" <= letter <= "z":
        return "lower"
    if "A" <= letter <= "Z":
        return "upper"
    return "digit" if "0" <= letter <= "9" else "other"


def _matrix(files: list[_File], passes: int, buckets: int, ticks: int) -> dict[str, Any]:
    vocabulary: dict[str, int] = {}
    split: dict[str, list[str]] = {}
    rows, columns, values = [], [], []
    for number, file in enumerate(files):
        for identifier, times in file.identifiers.items():
            if identifier not in split:
                split[identifier] = _words(identifier)
            for word in split[identifier]:
                rows.append(number)
                columns.append(vocabulary.setdefault(word, len(vocabulary)))
                values.append(times)
    hashes = np.array([binascii.crc32(word.encode()) for word in vocabulary], dtype=np.uint64)
    where = np.array(rows, dtype=np.int64)
    word_of = np.array(columns, dtype=np.int64)
    weights = np.array(values, dtype=np.float64)
    kept = np.zeros((len(files), buckets), dtype=np.float64)
    all_passes = np.zeros_like(kept)
    for turn in range(passes):
        salt = np.uint64((turn * 2 + 1) * 0x85EBCA6B % 2**32)
        salted = hashes * salt % np.uint64(2**32)
        bucket_of = (salted * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)
        flat = np.bincount(where * buckets + bucket_of[word_of], weights, minlength=len(files) * buckets)
        counts = flat.reshape(len(files), buckets)
        if turn == 0:
            # Heaviest first, the lower bucket first among equals; buckets without words weigh nothing.
            order = np.argsort(-counts, axis=1, kind="stable")[:, :8]
            np.put_along_axis(kept, order, np.take_along_axis(counts, order, axis=1), axis=1)
        all_passes += counts
    totals = all_passes.sum(axis=0)
    matrix = _seeded(buckets) + (kept.T @ all_passes).astype(np.uint64)
    ramp = 2 * np.arange(buckets, dtype=np.uint64) + np.uint64(1)
    matrix += np.outer(_stamps(len(files) * passes * ticks, buckets), ramp)
    matrix %= np.uint64(2**32)
    factors = np.arange(1, buckets + 1, dtype=np.uint64)
    return {
        "words": int(totals.sum()),
        "bucket_words": int(totals.sum()),
        "buckets_digest": _digest(totals.astype("<u8").tobytes()),
        "matrix_sum": int(matrix.sum()),
        "matrix_weighted": int((factors * (matrix @ ramp)).sum()),
        "matrix_digest": _digest(matrix.astype("<u4").tobytes()),
    }


def _seeded(buckets: int) -> NDArray[np.uint64]:
    modulus = np.uint64(2**32)
    cell = np.arange(buckets * buckets, dtype=np.uint64) * np.uint64(0x9E3779B1) % modulus
    cell = (cell ^ cell // np.uint64(2**15)) * np.uint64(0x85EBCA77) % modulus
    return (cell ^ cell // np.uint64(2**13)).reshape(buckets, buckets)


def _stamps(ticks: int, buckets: int) -> NDArray[np.uint64]:
    """For each row the sum of the stamps of all windows that lie over it, modulo 2**32."""
    width = max(1, buckets // 100)
    change = [0] * (2 * buckets + 1)
    for number in range(ticks):
        start = number * buckets // ticks
        stamp = (number + 1) * 0x9E3779B1 % 2**32
        change[start] += stamp
        change[start + width] -= stamp
    running, sums = 0, [0] * buckets
    for row in range(2 * buckets):
        running += change[row]
        sums[row % buckets] += running
    return np.array([total % 2**32 for total in sums], dtype=np.uint64)


def _count_messages(
    tally: _Tally, files: list[_File], edges: int, passes: int, readers: int, iterations: int, ticks: int
) -> None:
    for _ in range(readers + 2):
        tally.add("connect")
    for _ in range(readers + len(files)):
        tally.add("step")
    for _ in range(readers):
        tally.add("next")
    for number, file in enumerate(files):
        tally.add("next", file.path)
        tally.add("file_read", number, len(file.imports))
        for turn in range(passes):
            tally.add("study", number, turn)
            tally.add("words", number, turn)
    for number in range(len(files) * passes * ticks):
        tally.add("tick", number)
    batches = -(-edges // 256)
    for batch in range(batches):
        tally.add("edges", batch, min(256, edges - batch * 256))
    tally.add("graph_done", batches, len(files))
    tally.add("total")
    tally.add("on_total", len(files), batches)
    for turn in range(iterations):
        tally.add("iterate", turn)
    # Kinds that may be absent in a small job are counted as zero by the agents.
    for kind in ("look_again", "resolve", "edges"):
        tally.rows[kind] = tally.rows[kind]
