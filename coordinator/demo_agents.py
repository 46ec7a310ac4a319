"""The participants of ``cutline demo``: a librarian, readers, a linker and a ranker over Python source.

Who tells whom (``?`` waits for an answer)::

    reader --next?--> librarian            hands out (number, path, text), each file once; then None
    reader --file_read--> linker           the file's imports
    reader --study--> itself               the text rides in the message: in flight, never in the state
    reader --words--> ranker               word counts of one pass over one file
    reader --step--> itself                after the last pass: the next file
    linker --resolve--> itself             one (importer, module, names) once every file it needs was read
    linker --look_again?--> reader         is this name defined there, and where? (the cycle of channels)
    linker --edges, graph_done--> ranker   when all files were reported and all questions answered, by counts
    ranker --total?--> librarian           answered to ``on_total``
    ranker --tick, iterate--> itself

What is computed, exactly (``demo_reference`` computes the same from the same folder and shares no code):

- *definitions*: functions and classes anywhere, with dotted names; at module and class level also assigned
  and imported names and star imports (named ``*``). The smallest (line, kind) of a name counts.
- *words*: identifiers (names, attributes, parameters, keywords, functions, classes) cut at everything that is
  not an ASCII letter or digit, at changes of case and between letters and digits; lower case, two characters
  or more. In pass ``k`` a word falls into bucket ``(crc32(word) * salt_k mod 2**32) * buckets >> 32``.
- *matrix*: buckets x buckets of uint32. It starts with pseudo-random words: a matrix of zeros would compress
  to nothing and flatter every figure about images. ``words`` of pass k adds to cell (i, j) the product of the
  file's counts of bucket i in pass 0 and of bucket j in pass k, for the file's 8 heaviest i: 0.2 % of 4096
  rows, and the same ones in each pass. ``tick`` number n adds a stamp to a window of 1 % of the rows which
  moves over the whole matrix once per run. All of it is addition modulo 2**32.
- *graph*: edge weights count imports. A name is looked for in the module, then among its submodules.
- *ranks*: PageRank with integer arithmetic, damping 85/100, floor division per edge.
- *messages*: per method the number of messages handled, and the sums of their weights and squared weights
  (weight: crc32 of what the message is about). A lost and a doubled message cannot cancel each other out.

Every effect commutes with every other, so the result does not depend on the schedule; it consists of counts,
sums and hashes of sorted structures. Async handlers change the state only after their last await and ask only
for what depends on their arguments and on facts that never change again.

State is cut into attributes for small deltas: an image writes a changed attribute whole, so definitions sit
in shelves of 8 files (``shelf_000``, ...) that are never touched again when full, and big tables are numpy
arrays. Attributes that gain objects come last: they shift the numbering of shared objects in those behind.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .demo_source import (
    ABSENT,
    MASK32,
    MODULE,
    Imports,
    find_definitions,
    find_imports,
    find_words,
    into_buckets,
    module_name,
    parse,
    read_text,
)

__all__ = ("Librarian", "Linker", "Ranker", "Reader", "Scale")

# A participant's handle. The agents know no runtime, so that any scheduler can run them.
Peer: TypeAlias = Any

NOT_HELD = -1
SHELF = 8
HEAVIEST = 8
EDGES_PER_BATCH = 256
MASK64 = 2**64 - 1
RANK_MASS = 2**40


@dataclass(frozen=True)
class Scale:
    """How big the job is. ``passes``: word counts per file, each parsed anew; ``ticks``: per word count."""

    passes: int = 12
    readers: int = 4
    buckets: int = 4096
    iterations: int = 64
    ticks: int = 1


class Ledger:
    """Messages handled, per kind: number, sum of weights, sum of squared weights (modulo 2**64)."""

    def __init__(self, *kinds: str) -> None:
        self.rows = {kind: [0, 0, 0] for kind in kinds}

    def note(self, kind: str, *about: object) -> None:
        weight = zlib.crc32("|".join(map(str, about)).encode())
        row = self.rows[kind]
        row[0] += 1
        row[1] = (row[1] + weight) & MASK64
        row[2] = (row[2] + weight * weight) & MASK64

    def handled(self) -> int:
        return sum(row[0] for row in self.rows.values())


class Librarian:
    """Hands out each file once, in order. Only it reads the corpus, and what is out it never reads again."""

    def __init__(self, corpus: str, paths: Sequence[str]) -> None:
        self.corpus = corpus
        self.paths = tuple(paths)
        self.ledger = Ledger("next", "total")
        self.cursor = 0
        self.characters = 0
        self.farewells = 0

    def next(self) -> tuple[int, str, str] | None:
        if self.cursor >= len(self.paths):
            self.ledger.note("next")
            self.farewells += 1
            return None
        number, path = self.cursor, self.paths[self.cursor]
        text = read_text(Path(self.corpus, path))
        self.ledger.note("next", path)
        self.cursor += 1
        self.characters += len(text)
        return number, path, text

    def total(self) -> int:
        self.ledger.note("total")
        return len(self.paths)

    def progress(self) -> dict[str, Any]:
        """``cursor``: so many files, in the order of the paths, were handed out and are needed no more."""
        done = self.cursor == len(self.paths) and self.farewells > 0
        return {
            "done": done,
            "handled": self.ledger.handled(),
            "cursor": self.cursor,
            "files": len(self.paths),
        }

    def result(self) -> dict[str, Any]:
        return {
            "messages": self.ledger.rows,
            "files": self.cursor,
            "characters": self.characters,
            "farewells": self.farewells,
        }


class Reader:
    """Takes files from the librarian, reports what is in them, keeps the definitions for later questions."""

    def __init__(self, number: int, scale: Scale) -> None:
        self.number = number
        self.scale = scale
        self.me: Peer = None
        self.librarian: Peer = None
        self.linker: Peer = None
        self.ranker: Peer = None
        self.ledger = Ledger("connect", "step", "study", "look_again")
        self.sums = dict.fromkeys(
            ("lines", "unparsable", "definitions", "definitions_sum", "imports", "words", "found"), 0
        )
        self.files = 0
        self.finished = 0

    def connect(self, me: Peer, librarian: Peer, linker: Peer, ranker: Peer) -> None:
        self.ledger.note("connect")
        self.me, self.librarian, self.linker, self.ranker = me, librarian, linker, ranker

    async def step(self) -> None:
        handed = await self.librarian.next.remote()
        self.ledger.note("step")
        if handed is None:
            self.finished += 1
            return
        number, path, text = handed
        tree, is_python = parse(text)
        table = find_definitions(tree)
        imports = find_imports(tree, path)
        self.sums["unparsable"] += not is_python
        self.sums["lines"] += text.count("\n")
        self.sums["definitions"] += len(table)
        self.sums["imports"] += sum(len(names) or 1 for _, names in imports)
        for name, (line, kind) in table.items():
            self.sums["definitions_sum"] += zlib.crc32(f"{path}|{name}|{line}|{kind}".encode())
        shelf: dict[int, dict[str, tuple[int, int]]]
        shelf = vars(self).setdefault(f"shelf_{self.files // SHELF:03d}", {})
        shelf[number] = table
        self.files += 1
        self.linker.file_read.tell(number, self.number, imports)
        self.me.study.tell(number, text, 0)

    def study(self, number: int, text: str, turn: int) -> None:
        self.ledger.note("study", number, turn)
        words = find_words(parse(text)[0])
        self.sums["words"] += words.total()
        first = into_buckets(words, 0, self.scale.buckets).items()
        heaviest = sorted(first, key=lambda entry: (-entry[1], entry[0]))[:HEAVIEST]
        buckets = sorted(into_buckets(words, turn, self.scale.buckets).items())
        self.ranker.words.tell(number, turn, _pairs(heaviest), _pairs(buckets))
        if turn + 1 < self.scale.passes:
            self.me.study.tell(number, text, turn + 1)
        else:
            self.me.step.tell()

    def look_again(self, number: int, name: str) -> tuple[int, int]:
        """(kind, line) of a name in a file this reader has read; an empty name asks for the module itself."""
        self.ledger.note("look_again", number, name)
        table = self._table(number)
        if table is None:
            return NOT_HELD, 0
        if not name:
            return MODULE, len(table)
        line, kind = table.get(name, (0, ABSENT))
        self.sums["found"] += kind != ABSENT
        return kind, line

    def _table(self, number: int) -> dict[str, tuple[int, int]] | None:
        for shelf in range(-(-self.files // SHELF)):
            tables: dict[int, dict[str, tuple[int, int]]] = vars(self)[f"shelf_{shelf:03d}"]
            if number in tables:
                return tables[number]
        return None

    def progress(self) -> dict[str, Any]:
        done = self.finished > 0
        return {"done": done, "handled": self.ledger.handled(), "studied": self.ledger.rows["study"][0]}

    def result(self) -> dict[str, Any]:
        return {"messages": self.ledger.rows, **self.sums, "read": self.files, "finished": self.finished}


class Linker:
    """Builds the import graph. A question goes out as soon as every file it concerns was reported."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.names = tuple(module_name(path) for path in paths)
        self.modules = {name: number for number, name in enumerate(self.names)}
        self.me: Peer = None
        self.ranker: Peer = None
        self.readers: Sequence[Peer] = ()
        self.edges = np.zeros((len(paths), len(paths)), dtype=np.uint32)
        self.reader_of = np.full(len(paths), -1, dtype=np.int16)
        self.ledger = Ledger("connect", "file_read", "resolve")
        self.sums = dict.fromkeys(
            ("external", "plain", "defined", "submodules", "dynamic", "missing", "stars", "lines"), 0
        )
        self.reported = 0
        self.asked = 0
        self.answered = 0
        self.batches = -1
        self.waiting: dict[int, list[tuple[int, int, tuple[str, ...]]]] = {}

    def connect(self, me: Peer, ranker: Peer, readers: Sequence[Peer]) -> None:
        self.ledger.note("connect")
        self.me, self.ranker, self.readers = me, ranker, tuple(readers)

    def file_read(self, number: int, reader: int, imports: Imports) -> None:
        self.ledger.note("file_read", number, len(imports))
        self.reported += int(self.reader_of[number] < 0)
        self.reader_of[number] = reader
        for entry in self.waiting.pop(number, ()):
            self._ask_or_wait(*entry)
        for full, names in imports:
            target = self._known(full)
            if target < 0:
                self.sums["external"] += len(names) or 1
            elif not names or self.names[target] != full:
                self.sums["plain"] += 1
                self.edges[number, target] += 1
            else:
                self._ask_or_wait(number, target, names)
        self._finish_when_complete()

    async def resolve(self, importer: int, target: int, names: tuple[str, ...]) -> None:
        """Looks again in the module and the names' submodules, then asks whether what is missing is dynamic.

        ``reader_of`` of these files was set before this message was sent and stays: a re-run asks the same.
        """
        insides = [self._submodule(target, name) for name in names]
        answers = await asyncio.gather(
            *[self._look(target, name) for name in names],
            *[self._look(inside, "") for inside in insides if inside >= 0],
        )
        kinds = answers[: len(names)]
        missing = [
            name
            for name, inside, (kind, _) in zip(names, insides, kinds, strict=True)
            if kind <= ABSENT and inside < 0 and name != "*"
        ]
        hints: list[tuple[int, int]] = []
        if missing:
            hints = await asyncio.gather(self._look(target, "*"), self._look(target, "__getattr__"))
        dynamic = any(kind > ABSENT for kind, _ in hints)
        self.ledger.note("resolve", importer, target, *names)
        self.answered += 1
        self.sums["dynamic" if dynamic else "missing"] += len(missing)
        self.sums["lines"] += sum(line for _, line in (*answers, *hints))
        for name, inside, (kind, _) in zip(names, insides, kinds, strict=True):
            if name == "*":
                self.sums["stars"] += 1
            elif kind > ABSENT:
                self.sums["defined"] += 1
            elif inside >= 0:
                self.sums["submodules"] += 1
            self.edges[importer, inside if kind <= ABSENT and inside >= 0 else target] += 1
        self._finish_when_complete()

    def _look(self, number: int, name: str) -> Any:
        return self.readers[self.reader_of[number]].look_again.remote(number, name)

    def _known(self, full: str) -> int:
        while full:
            if full in self.modules:
                return self.modules[full]
            full = full.rpartition(".")[0]
        return -1

    def _submodule(self, target: int, name: str) -> int:
        return self.modules.get(f"{self.names[target]}.{name}", -1)

    def _ask_or_wait(self, importer: int, target: int, names: tuple[str, ...]) -> None:
        for candidate in (target, *(self._submodule(target, name) for name in names)):
            if candidate >= 0 and self.reader_of[candidate] < 0:
                self.waiting.setdefault(candidate, []).append((importer, target, names))
                return
        self.asked += 1
        self.me.resolve.tell(importer, target, names)

    def _finish_when_complete(self) -> None:
        # Once every file is reported nothing waits, so equal counts mean that every question was answered.
        if self.batches >= 0 or self.reported < len(self.names) or self.answered < self.asked:
            return
        rows, columns = np.nonzero(self.edges)
        triples = np.stack([rows, columns, self.edges[rows, columns]]).astype(np.int64)
        starts = range(0, triples.shape[1], EDGES_PER_BATCH)
        self.batches = len(starts)
        for batch, start in enumerate(starts):
            self.ranker.edges.tell(batch, triples[:, start : start + EDGES_PER_BATCH].copy())
        self.ranker.graph_done.tell(self.batches, len(self.names))

    def progress(self) -> dict[str, Any]:
        done = self.batches >= 0
        return {
            "done": done,
            "handled": self.ledger.handled(),
            "asked": self.asked,
            "answered": self.answered,
        }

    def result(self) -> dict[str, Any]:
        rows, columns = np.nonzero(self.edges)
        cells = zip(rows, columns, self.edges[rows, columns], strict=True)
        lines = [f"{row} {column} {weight}" for row, column, weight in cells]
        return {
            "messages": self.ledger.rows,
            **{f"link_{key}": total for key, total in self.sums.items()},
            "edges": len(lines),
            "edge_weights": int(self.edges.sum(dtype=np.uint64)),
            "edges_digest": _digest("\n".join(lines).encode()),
            "unanswered": self.asked - self.answered,
        }


class Ranker:
    """Owns the big matrix (64 MiB with 4096 buckets) and ranks the modules when the graph is final."""

    def __init__(self, scale: Scale, files: int) -> None:
        self.scale = scale
        self.expected_words = files * scale.passes
        self.expected_ticks = files * scale.passes * scale.ticks
        self.me: Peer = None
        self.librarian: Peer = None
        self.matrix = _first_matrix(scale.buckets)
        self.totals = np.zeros(scale.buckets, dtype=np.uint64)
        self.ledger = Ledger("connect", "words", "tick", "edges", "graph_done", "on_total", "iterate")
        self.words_seen = 0
        self.ticked = 0
        self.announced = -1
        self.files = -1
        self.began = False
        self.ranked = False
        self.ranks = np.zeros(0, dtype=np.int64)
        self.batches: dict[int, NDArray[np.int64]] = {}

    def connect(self, me: Peer, librarian: Peer) -> None:
        self.ledger.note("connect")
        self.me, self.librarian = me, librarian

    def words(
        self, number: int, turn: int, heaviest: NDArray[np.uint32], buckets: NDArray[np.uint32]
    ) -> None:
        """``heaviest``, ``buckets``: bucket numbers and, in a second row, their counts."""
        self.ledger.note("words", number, turn)
        self.words_seen += 1
        rows, weights = heaviest
        columns, counts = buckets
        self.matrix[np.ix_(rows, columns)] += np.outer(weights, counts)
        self.totals[columns] += counts
        first = (number * self.scale.passes + turn) * self.scale.ticks
        for tick in range(first, first + self.scale.ticks):
            self.me.tick.tell(tick)

    def tick(self, number: int) -> None:
        self.ledger.note("tick", number)
        self.ticked += 1
        buckets = self.scale.buckets
        start = number * buckets // self.expected_ticks
        rows = (start + np.arange(max(1, buckets // 100))) % buckets
        stamp = np.uint32((number + 1) * 0x9E3779B1 & MASK32)
        self.matrix[rows] += stamp * np.arange(1, 2 * buckets, 2, dtype=np.uint32)

    def edges(self, batch: int, triples: NDArray[np.int64]) -> None:
        self.ledger.note("edges", batch, triples.shape[1])
        self.batches[batch] = triples
        self._begin_when_complete()

    def graph_done(self, batches: int, modules: int) -> None:
        self.ledger.note("graph_done", batches, modules)
        self.announced = batches
        self.librarian.total.remote().then(self.on_total, batches)

    def on_total(self, total: int, batches: int) -> None:
        self.ledger.note("on_total", total, batches)
        self.files = total
        self._begin_when_complete()

    def _begin_when_complete(self) -> None:
        if self.began or self.files < 0 or len(self.batches) < self.announced:
            return
        self.began = True
        self.ranks = np.full(self.files, RANK_MASS // max(1, self.files), dtype=np.int64)
        self.me.iterate.tell(0)

    def iterate(self, turn: int) -> None:
        """One step of PageRank: floor division per edge and integer sums, so that no order of edges shows."""
        self.ledger.note("iterate", turn)
        triples = [self.batches[batch] for batch in sorted(self.batches)]
        sources, targets, weights = np.concatenate([np.zeros((3, 0), dtype=np.int64), *triples], axis=1)
        out = np.zeros(self.files, dtype=np.int64)
        np.add.at(out, sources, weights)
        dangling = int(self.ranks[out == 0].sum())
        share = (15 * RANK_MASS + 85 * dangling) // (100 * self.files)
        ranks = np.full(self.files, share, dtype=np.int64)
        np.add.at(ranks, targets, 85 * weights * self.ranks[sources] // (100 * out[sources]))
        self.ranks = ranks
        if turn + 1 < self.scale.iterations:
            self.me.iterate.tell(turn + 1)
        else:
            self.ranked = True

    def progress(self) -> dict[str, Any]:
        done = self.ranked and self.words_seen >= self.expected_words and self.ticked >= self.expected_ticks
        return {
            "done": done,
            "handled": self.ledger.handled(),
            "ticked": self.ticked,
            "ticks": self.expected_ticks,
        }

    def result(self) -> dict[str, Any]:
        columns = np.arange(1, 2 * self.scale.buckets, 2, dtype=np.uint64)
        weighted = 0
        for number, row in enumerate(self.matrix):
            weighted += (number + 1) * int((row * columns).sum(dtype=np.uint64))
        return {
            "messages": self.ledger.rows,
            "matrix_sum": int(self.matrix.sum(dtype=np.uint64)),
            "matrix_weighted": weighted & MASK64,
            "matrix_digest": _digest(self.matrix.astype("<u4", copy=False).tobytes()),
            "bucket_words": int(self.totals.sum()),
            "buckets_digest": _digest(self.totals.astype("<u8", copy=False).tobytes()),
            "rank_sum": int(self.ranks.sum()),
            "ranks_digest": _digest(" ".join(map(str, self.ranks.tolist())).encode()),
        }


def _pairs(entries: list[tuple[int, int]]) -> NDArray[np.uint32]:
    return np.array(entries, dtype=np.uint32).reshape(-1, 2).T.copy()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _first_matrix(buckets: int) -> NDArray[np.uint32]:
    cells = np.arange(buckets * buckets, dtype=np.uint32)
    cells *= np.uint32(0x9E3779B1)
    cells ^= cells >> np.uint32(15)
    cells *= np.uint32(0x85EBCA77)
    cells ^= cells >> np.uint32(13)
    return cells.reshape(buckets, buckets)
