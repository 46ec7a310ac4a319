"""A row's ratio and verdict come from its samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.bench_capture_delay_queued import measure as measure_delay
from bench.bench_catalog_flat import measure as measure_catalog
from bench.bench_channel_vs_transport import measure as measure_channel
from bench.bench_commit_vs_publish import measure as measure_commit
from bench.bench_coordinator_slope import measure as measure_slope
from bench.bench_effect_latency import measure as measure_effects
from bench.bench_ingress_vs_limit import measure as measure_ingress
from bench.bench_log_vs_list import measure as measure_log
from bench.bench_messages_appended import measure as measure_messages
from bench.bench_restore_vs_read import measure as measure_restore
from bench.bench_step_vs_append import measure as measure_steps
from bench.bench_write_bandwidth import measure as measure_bandwidth
from bench.bench_written_per_changed import measure as measure_written
from bench.bench_written_per_changed_long import measure as measure_written_long
from bench.document import row_names
from bench.row import Row, interleave


def test_a_share_that_is_kept() -> None:
    row = Row("throughput_kept", "messages/s", [95.0, 96.0, 10.0], [100.0] * 3, at_least=0.95)
    assert row.measured_ratio() == 0.95
    assert row.holds()
    assert not Row("throughput_kept", "messages/s", [94.0], [100.0], at_least=0.95).holds()


def test_so_many_times_shorter() -> None:
    row = Row("stall_vs_pickle", "ms", [1.0], [700.0], ratio="baseline/ours", at_least=700)
    assert row.measured_ratio() == 700
    assert row.holds()


def test_a_factor_that_is_paid() -> None:
    assert Row("written_per_changed", "bytes", [115.0], [100.0], at_most=1.15).holds()
    assert not Row("written_per_changed", "bytes", [116.0], [100.0], at_most=1.15).holds()


def test_the_document_has_what_readers_expect() -> None:
    doc = Row("commit", "ms", [2.0, 3.0, 4.0], [1.0, 1.0, 1.0], at_most=3, note="directory").to_doc()
    assert doc == {
        "name": "commit",
        "unit": "ms",
        "ours": 3.0,
        "baseline": 1.0,
        "ratio": 3.0,
        "range": [2.0, 4.0],
        "interval": [2.0, 4.0],
        "target": "ours/baseline <= 3",
        "bounds": [None, 3],
        "holds": True,
        "verdict": "undecided",
        "samples": {"ours": [2.0, 3.0, 4.0], "baseline": [1.0, 1.0, 1.0]},
        "note": "directory",
        "against": "",
        "group": "",
    }
    json.dumps(doc, allow_nan=False)


def test_a_row_needs_samples_of_both_sides_and_bounds_that_can_be_kept() -> None:
    with pytest.raises(ValueError, match="at least 2 and at most 1"):
        Row("x", "ms", [1.0], [1.0], at_least=2, at_most=1)
    with pytest.raises(ValueError, match="no round was measured"):
        Row("x", "ms", [], [1.0], at_least=1)
    with pytest.raises(ValueError, match="a sample of both sides"):
        Row("x", "ms", [1.0, 2.0], [1.0], at_least=1)


def test_a_row_without_a_target_judges_nothing() -> None:
    doc = Row("x", "ms", [1.0] * 5, [2.0] * 5, against="a peer", group="channel").to_doc()
    assert (doc["ratio"], doc["target"], doc["holds"], doc["verdict"]) == (0.5, None, None, None)
    assert (doc["against"], doc["group"]) == ("a peer", "channel")


def test_a_figure_that_meets_the_target_may_be_undecided() -> None:
    ours = [0.9, 0.94, 0.96, 0.97, 1.0, 1.02]
    row = Row("x", "ms", ours, [1.0] * 6, at_least=0.95)
    assert row.holds() and row.verdict() == "undecided"
    assert Row("x", "ms", ours, [1.0] * 6, at_least=0.95, by="lower").holds() is False


def test_what_is_no_number_is_null_in_the_document() -> None:
    doc = Row("x", "ms", [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], at_most=1).to_doc()
    assert (doc["ratio"], doc["range"], doc["holds"]) == (None, [None, None], False)
    doc = Row("x", "ms", [0.0], [0.0], at_most=1).to_doc()
    assert (doc["ratio"], doc["interval"], doc["range"]) == (None, [None, None], [None, None])
    assert (doc["holds"], doc["verdict"]) == (False, "undecided")
    json.dumps(doc, allow_nan=False)


def test_a_baseline_of_nothing_is_no_division_by_zero() -> None:
    assert Row("x", "ms", [1.0], [0.0], at_most=3).measured_ratio() == float("inf")


def test_rows_are_the_modules_that_are_there(tmp_path: Path) -> None:
    for name in ("bench_stall.py", "bench_commit.py", "row.py"):
        (tmp_path / name).touch()
    assert row_names(tmp_path) == ["commit", "stall"]


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no_such_row"]) == 2
    assert "no row no_such_row" in capsys.readouterr().err


def test_rounds_are_taken_in_turns_and_the_order_changes() -> None:
    taken: list[str] = []

    def side(name: str) -> float:
        taken.append(name)
        return float(len(taken))

    ours, baseline = interleave(3, lambda: side("a"), lambda: side("b"), warm=1)
    assert "".join(taken) == "baabbaab"
    assert len(ours) == len(baseline) == 3


def test_the_machine_is_described(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("some", "ms", [1.0], [1.0], at_most=2)
    monkeypatch.setattr("bench.bench_written_per_changed.measure", lambda: row)
    assert main(["--json", "--only", "written_per_changed"]) == 0
    doc = json.loads(capsys.readouterr().out)
    assert doc["rows"] == [row.to_doc()]
    assert {"system", "processor", "cores", "memory_bytes", "load", "python"} <= set(doc["machine"])


def test_channel_vs_transport_runs_small() -> None:
    row = measure_channel(rounds=1, messages=3000, questions=3)
    assert row.samples_ours[0] > 0 and row.samples_baseline[0] > 0
    assert "counts checked" in row.note


def test_written_per_changed_runs_small() -> None:
    row = measure_written(rounds=1, mebibytes=2, share=0.1)
    assert row.samples_baseline == [51 * 4096.0]
    assert row.samples_ours[0] > row.samples_baseline[0]


def test_messages_appended_runs_small() -> None:
    written, stall = measure_messages(rounds=2, messages=2000)
    assert len(written.samples_ours) == len(stall.samples_ours) == 2
    assert 0 < max(written.samples_ours) < min(written.samples_baseline)
    assert min(*stall.samples_ours, *stall.samples_baseline) > 0


def test_log_vs_list_runs_small() -> None:
    rows = measure_log(rounds=1, values=100)
    assert [row.name for row in rows] == ["log_vs_list", "log_append_message", "log_walk", "log_read"]


def test_step_vs_append_runs_small() -> None:
    row = measure_steps(rounds=2, messages=20, steps=5)
    assert len(row.samples_ours) == 2 and min(*row.samples_ours, *row.samples_baseline) > 0


def test_written_per_changed_long_runs_small() -> None:
    row = measure_written_long(rounds=1, mebibytes=1, share=0.1, checkpoints=3)
    assert row.samples_baseline == [3 * 25 * 4096.0]
    # The full image, and three deltas at least.
    assert row.samples_ours[0] > (1 << 20) + row.samples_baseline[0]


def test_rows_of_the_storage_run_small() -> None:
    full, later = measure_restore(rounds=1, mebibytes=2, checkpoints=3, share=0.1)
    commit, listed = measure_catalog(rounds=1, few=5, many=20)
    rows = [full, later, commit, listed, measure_bandwidth(rounds=1, mebibytes=1)]
    rows.append(measure_commit(rounds=1, participants=2, each=1))
    names = {row.name for row in rows}
    assert names == {
        "restore_vs_read",
        "restore_vs_read_after_100",
        "catalog_flat",
        "catalog_flat_list",
        "write_bandwidth",
        "commit_vs_publish",
    }
    assert all(min(*row.samples_ours, *row.samples_baseline) > 0 for row in rows)


def test_capture_delay_queued_runs_small() -> None:
    row = measure_delay(rounds=1, triggers=2, queued=40_000, warm=0)
    assert len(row.samples_ours) == 1 and row.samples_ours[0] > 0


def test_effect_latency_runs_small() -> None:
    row = measure_effects(rounds=1, times=1, warm=0)
    assert min(*row.samples_ours, *row.samples_baseline) > 0


def test_ingress_vs_limit_runs_small() -> None:
    row = measure_ingress(rounds=1, each=2, warm=0)
    assert min(*row.samples_ours, *row.samples_baseline) > 0


def test_coordinator_slope_runs_small() -> None:
    slope, decoding = measure_slope(rounds=1, sizes=(5, 10, 20), warm=0)
    assert (slope.name, decoding.name) == ("coordinator_slope", "coordinator_vs_decoding")
    assert min(*slope.samples_ours, *slope.samples_baseline) > 0
    assert min(*decoding.samples_ours, *decoding.samples_baseline) > 0


def test_a_figure_may_have_two_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row("some", "ms", [1.0], [1.0], at_most=2), Row("other", "ms", [3.0], [1.0], at_most=2)]
    monkeypatch.setattr("bench.bench_written_per_changed.measure", lambda: rows)
    assert main(["--only", "written_per_changed"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "some: 1 (1 to 1) ours/baseline <= 2: undecided; 1 against 1 ms"
    assert second.startswith(
        "other: 3 (3 to 3) ours/baseline <= 2: undecided, the measured figure falls short"
    )
