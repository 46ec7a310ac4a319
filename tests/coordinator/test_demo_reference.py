"""The reference against the simplest reading of the definitions, and its independence from the agents."""

from __future__ import annotations

import ast
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.coordinator import demo_agents, demo_reference, demo_source
from cutline.coordinator.demo_reference import compute

SMALL = {"passes": 1, "readers": 1, "buckets": 32, "iterations": 2, "ticks": 1}


def imported(module: Any) -> set[str]:
    """The modules that a file imports, relative ones with their dot."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def test_the_reference_shares_no_code_with_the_agents() -> None:
    assert not any(name.startswith((".", "cutline")) for name in imported(demo_reference))


@pytest.mark.parametrize("module", [demo_agents, demo_source])
def test_the_agents_know_no_runtime_clock_or_chance(module: Any) -> None:
    forbidden = {"ray", "grpc", "time", "random", "secrets", "uuid", "threading", "datetime", "cutline"}
    assert not {name.split(".")[0] for name in imported(module)} & forbidden


def write(folder: Path, files: dict[str, str]) -> list[str]:
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    return sorted(files)


def test_counts_of_a_job_small_enough_to_do_by_hand(tmp_path: Path) -> None:
    files = {
        "a.py": "import b, sys\nfrom b import one, two\nclass Big:\n    def go(self): pass\n",
        "b.py": "one = 1\n",
    }
    result = compute(tmp_path, write(tmp_path, files), **SMALL)
    assert result["characters"] == sum(map(len, files.values())) and result["lines"] == 5
    # a: b, sys, one, two, Big, Big.go; b: one
    assert result["definitions"] == 7
    # import b, import sys, from b import one and two
    assert (result["imports"], result["link_plain"], result["link_external"]) == (4, 1, 1)
    assert (result["link_defined"], result["link_missing"], result["link_lines"]) == (1, 1, 1)
    assert (result["edges"], result["edge_weights"]) == (1, 3)
    # Big, go, self and one
    assert result["words"] == 4
    # connect 3, next 3, step 3, file_read 2, study 2, words 2, tick 2, resolve 1, look_again 4, edges 1,
    # graph_done 1, total 1, on_total 1, iterate 2
    assert result["handlers"] == 28
    assert result["messages"]["look_again"] == weigh("1|one", "1|two", "1|*", "1|__getattr__")


def weigh(*keys: str) -> list[int]:
    weights = [zlib.crc32(key.encode()) for key in keys]
    return [len(keys), sum(weights) % 2**64, sum(weight * weight for weight in weights) % 2**64]


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("HTTPServer2", ["http", "server"]),
        ("getURLs", ["get", "ur", "ls"]),
        ("snake_case_42x", ["snake", "case", "42"]),
        ("__x__", []),
        ("na\u00efve", ["na", "ve"]),
        ("ABc1D", ["bc"]),
    ],
)
def test_identifiers_are_cut_at_case_digits_and_everything_else(identifier: str, words: list[str]) -> None:
    assert demo_reference._words(identifier) == words


@given(st.text(alphabet="abYZ09_\u00e9-", max_size=12))
def test_both_ways_of_cutting_words_agree(identifier: str) -> None:
    module = ast.Module([ast.Expr(ast.Name(identifier, ast.Load()))], [])
    assert sorted(demo_source.find_words(module).elements()) == sorted(demo_reference._words(identifier))


@given(st.integers(1, 200), st.integers(2, 300))
def test_rows_get_the_stamps_of_the_ticks_over_them(ticks: int, buckets: int) -> None:
    rows = [0] * buckets
    for number in range(ticks):
        for place in range(max(1, buckets // 100)):
            rows[(number * buckets // ticks + place) % buckets] += (number + 1) * 0x9E3779B1
    assert demo_reference._stamps(ticks, buckets).tolist() == [row % 2**32 for row in rows]


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.integers(1, 9), max_size=20),
)
def test_ranks_are_pagerank_up_to_the_rounding(edges: dict[tuple[int, int], int]) -> None:
    size, turns = 6, 5
    out = [sum(weight for (source, _), weight in edges.items() if source == node) for node in range(size)]
    ranks = [Fraction(1, size)] * size
    for _ in range(turns):
        dangling = sum((ranks[node] for node in range(size) if not out[node]), Fraction())
        following = [Fraction(15, 100 * size) + Fraction(85, 100) * dangling / size] * size
        for (source, target), weight in edges.items():
            following[target] += Fraction(85, 100) * ranks[source] * weight / out[source]
        ranks = following
    assert sum(ranks) == 1
    for exact, fixed in zip(ranks, demo_reference._rank(size, edges, turns), strict=True):
        assert abs(exact - Fraction(fixed, 2**40)) < Fraction(1, 2**32)


def test_a_changed_byte_or_parameter_changes_the_result(tmp_path: Path) -> None:
    files = {"a.py": "from b import name\nvalue = name\n", "b.py": "name = 1\n"}
    paths = write(tmp_path, files)
    first = compute(tmp_path, paths, **SMALL)
    assert compute(tmp_path, paths, **SMALL) == first
    assert compute(tmp_path, paths, **{**SMALL, "passes": 2}) != first
    write(tmp_path, {"b.py": "nane = 1\n"})
    assert compute(tmp_path, paths, **SMALL) != first
