"""A run goes on after an error, names what is missing, and says nothing of whose machine it was."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bench.document
import bench.packages
from bench.__main__ import main
from bench.bench_same_vs_same import measure as measure_same
from bench.document import Run, compact, in_order, row_names
from bench.merged import merged
from bench.quick import QUICK
from bench.reasons import without_paths
from bench.row import Failed, Missing, Row

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
        "bench.bench_peers": SimpleNamespace(
            measure=lambda: [ROW, Missing("orbax", "not installed"), Failed("torch", "lost")]
        ),
    }
    monkeypatch.setattr(bench.document, "import_module", modules.__getitem__)
    heard: list[Row] = []
    run = Run(told=heard.append)
    for name in ("broken", "good", "peers"):
        run.measure(name)
    doc = json.loads(json.dumps(run.to_doc(), allow_nan=False))
    assert heard == [ROW, ROW] and len(doc["rows"]) == 2
    assert doc["missing"] == [{"name": "orbax", "reason": "not installed"}]
    assert doc["errors"] == [
        {"name": "broken", "reason": "AssertionError: .../pack: 3 messages lost"},
        {"name": "torch", "reason": "lost"},
    ]
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


def _modules(monkeypatch: pytest.MonkeyPatch, **measures: Callable[..., object]) -> None:
    modules = {f"bench.bench_{name}": SimpleNamespace(measure=each) for name, each in measures.items()}
    monkeypatch.setattr(bench.document, "import_module", modules.__getitem__)


def _interrupted() -> Row:
    raise KeyboardInterrupt


def _broken() -> Row:
    raise AssertionError("lost")


def test_what_was_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _modules(monkeypatch, a=lambda: ROW, b=_broken, c=_interrupted)
    run = Run()
    assert not run.measure_all(["a", "b", "c", "d"])
    doc = run.to_doc()
    assert doc["measured"] == ["a"] and set(doc["seconds"]) == {"a", "b", "c"}
    assert [entry["name"] for entry in merged([doc, Run().to_doc()])["missing"]] == ["c", "d"]


def test_what_is_interrupted_the_second_time_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    measures = iter((lambda: ROW, _interrupted))
    _modules(monkeypatch, a=lambda: next(measures)(), b=lambda: ROW)
    run = Run()
    assert not run.measure_all(["a", "b", "a"])
    assert run.to_doc()["measured"] == ["b"] and [each.name for each in run.missing] == ["a"]


def test_figures_are_written_after_each_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there: list[dict[str, Any]] = []

    def killed() -> Row:
        there.append(json.loads((tmp_path / "figures.partial.json").read_text()))
        raise SystemExit("killed")

    long = Row("long", "s", [1.23456789], [1.0])
    monkeypatch.setattr("bench.__main__.row_names", lambda _folder: ["a", "b", "c"])
    _modules(monkeypatch, a=lambda: long, b=killed, c=killed)
    (tmp_path / "figures.json").write_text("those of a whole run")
    with pytest.raises(SystemExit, match="killed"):
        main(["--report", str(tmp_path)])
    (doc,) = there
    assert [row["name"] for row in doc["rows"]] == ["long"] and doc["rows"][0]["ratio"] == 1.2346
    assert doc["measured"] == ["a"] and [entry["name"] for entry in doc["missing"]] == ["b", "c"]
    assert (tmp_path / "figures.json").read_text() == "those of a whole run"
    _modules(monkeypatch, a=lambda: long, b=lambda: long, c=lambda: long)
    assert main(["--report", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["measured"] == ["a", "b", "c"]
    assert not (tmp_path / "figures.partial.json").exists()


def test_versions_of_the_peers_that_were_measured_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numpy": "2", "torch": "3", "kishu": "4", "langgraph": "5", "apache-flink": None}
    monkeypatch.setattr(bench.packages, "_version", lambda name, _python: versions.get(name))
    assert bench.document.machine()["packages"] == {"numpy": "2"}
    rows = ["arrays_stall_vs_torch", "store_bytes_vs_langgraph_delta", "overhead_1s_vs_flink"]
    assert bench.document.machine(rows)["packages"] == {"langgraph": "5", "numpy": "2", "torch": "3"}


def test_the_version_of_an_interpreter_of_its_own_is_asked_for() -> None:
    python = str(Path(sys.executable).with_name("python3"))
    assert python != sys.executable
    assert bench.packages._version("numpy", python) == bench.packages._version("numpy", sys.executable)
    assert bench.packages._version("no-such-package", python) is None
    assert bench.packages._version("numpy", "no-such-python") is None
