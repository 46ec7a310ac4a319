"""The report says what the document says: noise, verdicts, what is missing; and the pictures are drawn."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.bench_overhead import measure_cell
from bench.bench_same_vs_same import GROUP as NOISE
from bench.document import Run, compact
from bench.matrix import cells_of
from bench.overhead import Cell
from bench.pictures import Picture
from bench.report import number, report_text, too_noisy, write_report
from bench.row import Missing, Row
from tests.bench.test_overhead import Steady


def _same(name: str, ours: list[float]) -> Row:
    return Row(name, "s", ours, [1.0] * len(ours), at_least=0.95, at_most=1.05, group=NOISE)


def _document(*rows: Row, **more: Any) -> dict[str, Any]:
    run = Run(quick=True, rows=list(rows), seconds={"some": 90.0}, **more)
    doc: dict[str, Any] = json.loads(json.dumps(compact(run.to_doc()), allow_nan=False))
    return doc


QUIET = _same("same_pickle", [0.99, 1.0, 1.01, 1.0, 0.98])
LOUD = _same("same_pickle", [0.8, 1.0, 1.3, 1.1, 0.9])
HOLDS = Row("channel_vs_ray", "messages/s", [150.0, 151, 152, 153, 154], [1.0] * 5, at_least=100)
FAILS = Row("latency_vs_ray", "s", [0.5, 0.51, 0.52, 0.5, 0.51], [1.0] * 5, at_most=0.4)
PEER = Row("grpc", "messages/s", [5.0] * 5, [4.0] * 5, against="a gRPC stream", group="channel")
PARTS = [{"name": "p", "what": "a part", "median": 2e-6, "q1": 1e-6, "q3": 3e-6, "rounds": 2000}]


def _matrix() -> list[Row]:
    rows = []
    for cell in (Cell("ring", 2, 100, 1), Cell("all_to_all", 16, 10240, 1024)):
        ours = Steady(3000.0, {0: 1.0, 1: 0.9, 10: 0.8})
        rows += measure_cell(cell, ours, Steady(1000.0, {0: 1.0, 1: 0.6, 10: 0.2}), rounds=5, spell=1.0)
    return rows


def test_a_noisy_machine_gives_no_verdicts() -> None:
    quiet, loud = _document(QUIET, HOLDS), _document(LOUD, HOLDS)
    assert (too_noisy(quiet), too_noisy(loud), too_noisy(_document(HOLDS))) == (False, True, None)
    assert "| holds |" in report_text(quiet, ()) and "too noisy" not in report_text(quiet, ())
    assert "| holds? |" in report_text(loud, ()) and "too noisy for verdicts" in report_text(loud, ())
    assert "Not measured (`same_vs_same`)" in report_text(_document(HOLDS), ())


def test_one_noisy_baseline_of_two_is_enough() -> None:
    assert too_noisy(_document(QUIET, LOUD))


def test_a_machine_that_was_not_looked_at_in_the_end_is_not_called_quiet() -> None:
    after, added = _same("same_pickle_after", [1.0] * 5), _same("same_pickle_run_2", [1.0] * 5)
    added_after = _same("same_pickle_after_run_2", [1.0] * 5)
    unknown = "it is not known whether it was quiet at the end"
    for rows in ([QUIET, HOLDS], [QUIET, HOLDS, after, added]):
        text = report_text(_document(*rows), ()).replace("\n", " ")
        assert unknown in text and "Yes: a baseline" not in text
    for rows in ([QUIET], [QUIET, HOLDS, after], [QUIET, HOLDS, after, added, added_after]):
        text = report_text(_document(*rows), ()).replace("\n", " ")
        assert unknown not in text and "Yes: a baseline" in text


def test_notes_are_told_once() -> None:
    rows = [
        Row(name, "s", [1.0], [1.0], note=note) for name, note in (("a", "x | y"), ("b", "x | y"), ("c", ""))
    ]
    text = report_text(_document(*rows, Row("d", "s", [1.0], [1.0], note="z")), ())
    assert text.split("## Notes")[1].split("\n\n")[2] == "- `a`, `b`: x | y\n- `d`: z\n"
    assert "## Notes" not in report_text(_document(HOLDS), ())


def test_target_stands_beside_measured() -> None:
    text = report_text(_document(QUIET, HOLDS, FAILS), ())
    assert "| `channel_vs_ray` | ours/baseline >= 100 | 152 | 150 to 154 | holds | 152 | 1 |" in text
    assert "| `latency_vs_ray` | ours/baseline <= 0.4 | 0.51 | 0.5 to 0.52 | fails | 0.51 | 1 | s |" in text


def test_what_is_missing_and_what_failed_is_named() -> None:
    missing, failed = [Missing("redis", "no server")], [Missing("stall", "AssertionError: 3 lost")]
    text = report_text(_document(QUIET, missing=missing, errors=failed), ())
    assert "| `redis` | no server |" in text.split("## Missing")[1]
    assert "| `stall` | AssertionError: 3 lost |" in text.split("## Ended with an error")[1]
    assert "## Missing" not in report_text(_document(QUIET), ())


def test_peers_have_a_table_with_what_they_are() -> None:
    text = report_text(
        _document(QUIET, HOLDS, PEER), [Picture("channel-messages-s.png", "beside others", "channel")]
    )
    assert text.index("## Targets") < text.index("## Beside the channels")
    assert "| `grpc` | - | 1.25 | 1.25 to 1.25 | no target | 5 | 4 | messages/s | a gRPC stream |" in text
    assert "![beside others](channel-messages-s.png)" in text


def test_the_matrix_has_a_line_for_each_cell() -> None:
    doc = _document(QUIET, *_matrix())
    assert [cell.label for cell in cells_of(doc["rows"])] == [
        "ring, 2 actors, 100 B, 1 MB",
        "all-to-all, 16 actors, 10 KB, 1 GB",
    ]
    assert (
        "| ring, 2 actors, 100 B, 1 MB | 1,000 | 3 / 2.7 / 2.4 | 0.9 / 0.8 | 0.6 / 0.2 | 4.5 / 12 "
        "| holds / holds |" in report_text(doc, ())
    )


def test_numbers_for_people() -> None:
    figures = [0, 0.5, 3.14159, 1234.5, 0.0000123, None]
    assert [number(figure) for figure in figures] == ["0", "0.5", "3.14", "1,234", "1.23e-05", "-"]


def _size(picture: Path) -> tuple[int, int]:
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_the_pictures_are_drawn_and_small(tmp_path: Path) -> None:
    endless = Row("endless", "s", [1.0] * 5, [0.0] * 5, at_least=2)
    nothing = Row("nothing", "bytes", [0.0] * 5, [1.0] * 5, against="x", group="store")
    flink = Row("overhead_1s_vs_flink", "share", [0.9] * 5, [0.8] * 5, against="Flink", group="overhead")
    doc = _document(QUIET, HOLDS, FAILS, PEER, endless, nothing, flink, *_matrix(), micro=PARTS)
    written = write_report(doc, tmp_path)
    assert sorted(path.name for path in written) == [
        "channel-messages-s.png",
        "micro.png",
        "overhead-kept.png",
        "overhead-share.png",
        "overhead-throughput.png",
        "report.md",
        "store-bytes.png",
        "targets.png",
    ]
    text = (tmp_path / "report.md").read_text()
    for path in written[1:]:
        assert text.count(f"({path.name})") == 1
        width, height = _size(path)
        assert width == 990 and 100 < height < 3000
        assert path.stat().st_size < 200_000
    assert "| `p` | a part | 2 | 1 to 3 | 2,000 |" in text


def test_without_figures_nothing_is_drawn(tmp_path: Path) -> None:
    assert [path.name for path in write_report(_document(), tmp_path)] == ["report.md"]


def test_old_figures_are_reported_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    figures.write_text(json.dumps(_document(QUIET, HOLDS)))
    assert main(["--figures", str(figures), "--report", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "figures.json").read_text().strip() == figures.read_text()
    assert "| `channel_vs_ray` |" in (tmp_path / "new" / "report.md").read_text()
    assert "written: targets.png" in capsys.readouterr().err


def test_the_report_that_is_there_is_that_of_its_figures(tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "bench" / "results"
    assert main(["--figures", str(results / "figures.json"), "--report", str(tmp_path)]) == 0
    for name in ("report.md", "figures.json"):
        assert (tmp_path / name).read_text() == (results / name).read_text(), f"{name} was changed by hand"
    assert {path.name for path in tmp_path.iterdir()} <= {path.name for path in results.iterdir()}


def test_the_parts_are_in_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter((0, 1))

    def ran(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        file = Path(command[-1].removeprefix("--benchmark-json="))
        stats = {"median": 2e-6, "q1": 1e-6, "q3": 3e-6, "rounds": 2000, "mean": 9.0}
        part = {"name": "test_p", "extra_info": {"what": "a part"}, "stats": stats}
        file.write_text(json.dumps({"benchmarks": [part]}))
        return subprocess.CompletedProcess(command, next(statuses))

    monkeypatch.setattr(subprocess, "run", ran)
    run = Run()
    run.measure_micro()
    assert run.micro == PARTS and not run.errors
    run.measure_micro()
    assert run.errors == [Missing("micro", "pytest ended with status 1")]

    def interrupted(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    run.measure_micro()
    assert run.missing == [Missing("micro", "the run was interrupted before it ended")]


def test_every_part_runs_and_gives_what_it_should() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-disable", "bench/micro"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
