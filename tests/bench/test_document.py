"""A run goes on after an error, names what is missing, and says nothing of whose machine it was."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench.document
from bench.__main__ import main
from bench.bench_same_vs_same import measure as measure_same
from bench.document import Run, compact, in_order, row_names, without_paths
from bench.quick import QUICK
from bench.row import Missing, Row

ROW = Row("good", "ms", [1.0], [1.0], at_most=2)


def test_the_baseline_against_itself_comes_first_and_last() -> None:
    assert in_order(["a", "same_vs_same", "z"]) == ["same_vs_same", "a", "z", "same_vs_same"]
    assert in_order(["same_vs_same"]) == ["same_vs_same"]
    assert in_order(["a", "b"]) == ["a", "b"]


def test_what_fails_and_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Row:
        raise AssertionError("/var/lib/store/pack: 3 messages lost\nmore of it")

    modules = {
        "bench.bench_good": SimpleNamespace(measure=lambda: ROW),
        "bench.bench_broken": SimpleNamespace(measure=broken),
        "bench.bench_peers": SimpleNamespace(measure=lambda: [ROW, Missing("orbax", "not installed")]),
    }
    monkeypatch.setattr(bench.document, "import_module", modules.__getitem__)
    heard: list[Row] = []
    run = Run(told=heard.append)
    for name in ("broken", "good", "peers"):
        run.measure(name)
    doc = json.loads(json.dumps(run.to_doc(), allow_nan=False))
    assert heard == [ROW, ROW] and len(doc["rows"]) == 2
    assert doc["missing"] == [{"name": "orbax", "reason": "not installed"}]
    assert doc["errors"] == [{"name": "broken", "reason": "AssertionError: .../pack: 3 messages lost"}]
    assert set(doc["seconds"]) == {"broken", "good", "peers"}


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Row:
        raise KeyboardInterrupt

    modules = {"bench.bench_a": lambda: ROW, "bench.bench_b": interrupted}
    monkeypatch.setattr(bench.document, "import_module", lambda name: SimpleNamespace(measure=modules[name]))
    run = Run()
    assert run.measure_all(["a"])
    assert not run.measure_all(["a", "b", "c", "b"])
    assert run.rows == [ROW, ROW]
    reason = "the run was interrupted before it ended"
    assert run.missing == [Missing("b", reason), Missing("c", reason)]


def test_a_quick_run_is_small_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def measure(**settings: object) -> Row:
        asked.append(settings)
        return ROW

    monkeypatch.setattr(bench.document, "import_module", lambda _name: SimpleNamespace(measure=measure))
    run = Run(quick=True)
    run.measure("channel_vs_ray")
    run.measure("no_such_row")
    assert asked == [dict(QUICK["channel_vs_ray"])]
    assert run.missing == [Missing("no_such_row", "not in the quick run; `make bench` measures it")]


def test_who_asks_for_a_row_alone_hears_why_it_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "coordinator_slope", "--quick"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "not measured: coordinator_slope: not in the quick run; `make bench` measures it\n"


def test_every_quick_row_exists() -> None:
    assert set(QUICK) <= set(row_names(Path(bench.document.__file__).parent))


def test_the_machine_is_not_named() -> None:
    doc = bench.document.machine()
    assert platform.node() not in json.dumps(doc)
    assert doc["kernel"] and doc["cores"] and doc["packages"]["numpy"]


def test_paths_are_not_told() -> None:
    assert without_paths("no /var/lib/a-b/pack 3/4 of ./x/y") == "no .../pack 3/4 of ./x/y"


def test_numbers_are_short_in_the_file() -> None:
    assert compact({"a": [1.23456789, 7, None, "x"]}) == {"a": [1.2346, 7, None, "x"]}


def test_a_baseline_against_itself_runs_small() -> None:
    rows = measure_same(rounds=2, messages=100, questions=20, suffix="_after")
    assert [row.name for row in rows] == ["same_pickle_after", "same_question_after"]
    assert all(min(*row.samples_ours, *row.samples_baseline) > 0 for row in rows)
    assert all(row.target is not None and row.target.text() == "0.95 to 1.05" for row in rows)
