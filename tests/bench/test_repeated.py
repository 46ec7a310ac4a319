"""Rows measured several times over: each run's verdict is told, and the last one's rows are kept."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import bench.document
from bench.__main__ import main
from bench.row import Row


def _row(name: str, ratio: float, at_most: float | None = 2.0) -> Row:
    return Row(name, "s", [ratio] * 5, [1.0] * 5, at_most=at_most)


@pytest.fixture
def three_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that fails in the second of three, one that is absent there, and one without a target."""
    found = iter(
        (
            [_row("a", 1.54), _row("b", 1), _row("c", 3, None)],
            [_row("a", 2.5), _row("c", 3, None)],
            [_row("a", 1.6), _row("b", 1), _row("c", 3, None)],
        )
    )
    monkeypatch.setattr("bench.__main__.row_names", lambda _folder: ["a"])
    module = SimpleNamespace(measure=lambda: next(found))
    monkeypatch.setattr(bench.document, "import_module", lambda _name: module)


@pytest.mark.usefixtures("three_runs")
def test_each_row_has_a_line_of_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 + 3
    assert lines[8:] == [
        "a: holds fails holds (1.54 2.5 1.6)",
        "b: holds absent holds (1 - 1)",
        "c: - - - (3 3 3)",
    ]


@pytest.mark.usefixtures("three_runs")
def test_the_document_has_all_runs_and_the_rows_of_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "3", "--json"]) == 0
    doc = json.loads(capsys.readouterr().out)
    assert [[(row["name"], row["ratio"]) for row in run] for run in doc["runs"]] == [
        [("a", 1.54), ("b", 1.0), ("c", 3.0)],
        [("a", 2.5), ("c", 3.0)],
        [("a", 1.6), ("b", 1.0), ("c", 3.0)],
    ]
    assert doc["runs"][1][0] == {"name": "a", "ratio": 2.5, "interval": [2.5, 2.5], "verdict": "fails"}
    assert [row["ratio"] for row in doc["rows"]] == [1.6, 1.0, 3.0]


def test_an_error_of_an_earlier_run_is_one_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter(([], [_row("a", 1)]))

    def measure() -> list[Row]:
        rows = next(found)
        if not rows:
            raise AssertionError("lost")
        return rows

    monkeypatch.setattr("bench.__main__.row_names", lambda _folder: ["a"])
    monkeypatch.setattr(bench.document, "import_module", lambda _name: SimpleNamespace(measure=measure))
    assert main(["--runs", "2", "--json"]) == 1
    doc = json.loads(capsys.readouterr().out)
    assert doc["errors"] == [{"name": "a", "reason": "run 1: AssertionError: lost"}]
    assert [row["name"] for row in doc["rows"]] == ["a"]


def test_a_run_that_is_interrupted_does_not_take_the_place_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter((_row("a", 1), _row("b", 1), _row("a", 2)))

    def measure() -> Row:
        row = next(found, None)
        if row is None:
            raise KeyboardInterrupt
        return row

    monkeypatch.setattr("bench.__main__.row_names", lambda _folder: ["a", "b"])
    monkeypatch.setattr(bench.document, "import_module", lambda _name: SimpleNamespace(measure=measure))
    assert main(["--runs", "2", "--json"]) == 0
    doc = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["ratio"]) for row in doc["rows"]] == [("a", 1.0), ("b", 1.0)]
    assert [len(run) for run in doc["runs"]] == [2, 1] and not doc["missing"]


@pytest.mark.usefixtures("three_runs")
def test_one_run_has_no_list_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    assert "runs" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("times", ["0", "-1", "x"])
def test_no_run_at_all_is_refused(times: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"--runs={times}"])
    assert ended.value.code == 2
    assert f"{times} is no number of runs: it must be 1 or more" in capsys.readouterr().err
