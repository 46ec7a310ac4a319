"""Documents of several runs make one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.bench_same_vs_same import GROUP as NOISE
from bench.document import Run
from bench.merged import merged
from bench.report import too_noisy
from bench.row import Missing, Row


def _row(name: str, **more: Any) -> Row:
    return Row(name, "s", [1.0] * 5, [1.0] * 5, at_most=1.05, at_least=0.95, **more)


def _document(*rows: Row, missing: tuple[str, ...] = (), seconds: float = 1.0) -> dict[str, Any]:
    absent = [Missing(name, "not installed") for name in missing]
    return Run(rows=list(rows), missing=absent, seconds={row.name: seconds for row in rows}).to_doc()


def test_rows_are_put_together_and_what_is_there_is_not_missing() -> None:
    both = merged([_document(_row("a"), missing=("b", "c")), _document(_row("b"), missing=("a", "d"))])
    assert [row["name"] for row in both["rows"]] == ["a", "b"]
    assert [entry["name"] for entry in both["missing"]] == ["c", "d"]
    assert both["seconds"] == {"a": 1.0, "b": 1.0}


def test_one_document_is_itself() -> None:
    alone = _document(_row("a"), missing=("b",))
    assert merged([alone]) == alone


def test_a_noisy_run_makes_all_of_it_noisy() -> None:
    loud = Row("same", "s", [0.5, 1.0, 2.0, 1.0, 1.0], [1.0] * 5, at_least=0.95, at_most=1.05, group=NOISE)
    both = merged([_document(_row("same", group=NOISE)), _document(loud)])
    assert [row["name"] for row in both["rows"]] == ["same", "same_run_2"]
    assert too_noisy(both)


def test_the_later_of_two_rows_counts() -> None:
    later = Row("a", "s", [2.0] * 5, [1.0] * 5)
    both = merged([_document(_row("a"), _row("b")), _document(later)])
    assert [(row["name"], row["ratio"]) for row in both["rows"]] == [("a", 2.0), ("b", 1.0)]


def test_an_error_is_over_when_the_row_is_measured() -> None:
    failed = _document(_row("a"))
    failed["errors"] = [{"name": "b", "reason": "OSError: no"}, {"name": "c", "reason": "OSError: no"}]
    both = merged([failed, _document(_row("b"))])
    assert [entry["name"] for entry in both["errors"]] == ["c"]
    both = merged([_document(_row("b")), failed])
    assert [entry["name"] for entry in both["errors"]] == ["b", "c"]


def test_machines_that_differ_are_refused() -> None:
    one, other = _document(_row("a")), _document(_row("b"))
    other["machine"]["cores"] = 99
    with pytest.raises(ValueError, match="different machines: cores differs"):
        merged([one, other])


def test_a_run_joins_figures_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "figures.json"
    there.write_text(json.dumps(_document(_row("a"), missing=("b",))))
    monkeypatch.setattr("bench.bench_written_per_changed.measure", lambda: _row("b"))
    assert main(["--json", "--only", "written_per_changed", "--with", str(there)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in document["rows"]] == ["a", "b"] and not document["missing"]


def test_what_has_begun_is_not_measured_yet() -> None:
    first = Run(missing=[Missing("a", "not in the quick run"), Missing("b", "not in the quick run")]).to_doc()
    second = Run(measured=["b"], seconds={"a": 2.0, "b": 3.0}).to_doc()
    assert [entry["name"] for entry in merged([first, second])["missing"]] == ["a"]
    del second["measured"]
    second["missing"] = [{"name": "a", "reason": "interrupted"}]
    both = merged([first, second])
    assert both["measured"] == ["b"] and [entry["reason"] for entry in both["missing"]] == ["interrupted"]


def test_packages_of_all_are_there_and_a_part_that_was_quick_is_said() -> None:
    first, second = _document(_row("a")), _document(_row("b"))
    first["machine"]["packages"] = {"numpy": "1", "ray": "2"}
    second["machine"]["packages"] = {"numpy": "3", "torch": "4"}
    second["quick"] = True
    both = merged([first, second])
    assert both["machine"]["packages"] == {"numpy": "1 and 3", "ray": "2", "torch": "4"}
    assert both["quick"] and not merged([first, first])["quick"]
    assert merged([both, second])["machine"]["packages"] == both["machine"]["packages"]


def test_runs_are_kept() -> None:
    first = {**_document(_row("a")), "runs": [[], []]}
    assert merged([first, _document(_row("b"))])["runs"] == [[], []]
