"""What `cutline bench` concludes from its runs, and what the environment may say."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cutline.coordinator.environment import Report, told_by_environment
from cutline.coordinator.interval import daly, share_lost, young
from cutline.coordinator.trials import Trials, conclude
from cutline.coordinator.trials_report import print_trials, shown_bytes, shown_seconds
from cutline.errors import Misuse, StoreNotWritable


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    program = tmp_path / "app.py"
    program.touch()
    return Trials(program, ["--size", "3"], rounds=2, mean_hours=1.0)


def checkpoint(*, full: bool = False, stall: float = 10.0) -> dict[str, Any]:
    return {
        "id": 1,
        "full": full,
        "participants": 4,
        "changed_bytes": 1000,
        "written_bytes": 5000 if full else 800,
        "state_bytes": 5000,
        "stall_ms_max": stall,
        "detect_ms_max": stall / 2,
        "capture_delay_ms": 1.0,
        "duration_ms": 50.0,
        "in_flight_messages": 2,
    }


def run(seconds: float, checkpoints: int, interval: float | None = None) -> dict[str, Any]:
    rows = [checkpoint(full=number == 0) for number in range(checkpoints)]
    return {"seconds": seconds, "interval": interval, "checkpoints": rows, "aborted": 0}


# Young's own example has no figures; these are the formulas of both papers by hand.
def test_young_is_the_root_of_twice_the_product() -> None:
    assert young(0.5, 3600.0) == pytest.approx(60.0)


def test_daly_corrects_young() -> None:
    # cost / 2 mean = 1/100: 60 * (1 + 1/30 + 1/900) - 18
    mean = 900.0
    assert daly(18.0, mean) == pytest.approx(180.0 * (1 + 1 / 30 + 1 / 900) - 18.0)
    assert daly(2 * mean, mean) == mean


def test_youngs_interval_loses_least() -> None:
    best = young(0.5, 3600.0)
    least = share_lost(best, 0.5, 3600.0)
    assert all(share_lost(best * factor, 0.5, 3600.0) > least for factor in (0.5, 0.9, 1.1, 2.0))


def test_overhead_and_cost_come_from_pairs(trials: Trials) -> None:
    runs = {"without": [run(10.0, 0), run(20.0, 0)], "with": [run(11.0, 10, 1.0), run(22.0, 20, 1.0)]}
    found = conclude(trials, runs)
    assert found["overhead"] == pytest.approx(0.1)
    assert found["overhead_range"] == pytest.approx([0.1, 0.1])
    assert found["cost_seconds"]["later"] == found["cost_seconds"]["used"] == pytest.approx(0.1)
    assert found["suggested"]["young"] == pytest.approx(young(0.1, 3600.0))
    assert found["checkpoints"]["count"] == [10, 20]
    assert found["checkpoints"]["written_bytes"] == {"full": 5000, "delta": 800}
    json.dumps(found)


def test_checkpoints_of_the_program_itself_are_on_both_sides(trials: Trials) -> None:
    runs = {"without": [run(10.0, 3)] * 2, "with": [run(11.0, 8, 1.0)] * 2}
    assert conclude(trials, runs)["checkpoints"]["count"] == [5, 5]


def test_a_cost_below_the_stall_is_noise(trials: Trials) -> None:
    runs = {"without": [run(10.0, 0)] * 2, "with": [run(9.0, 5, 1.0)] * 2}
    found = conclude(trials, runs)
    assert found["cost_seconds"]["later"] < 0
    assert found["cost_seconds"]["used"] == found["cost_seconds"]["stall"] == pytest.approx(0.01)


def test_the_suggestion_is_no_shorter_than_a_checkpoint(trials: Trials) -> None:
    trials.mean_hours = 1e-6
    runs = {"without": [run(10.0, 0)] * 2, "with": [run(9.0, 5, 1.0)] * 2}
    found = conclude(trials, runs)
    assert found["suggested"]["daly"] < found["suggested"]["interval"] == pytest.approx(0.05)


def test_runs_without_checkpoints_say_what_to_do(trials: Trials) -> None:
    runs = {"without": [run(10.0, 1)] * 2, "with": [run(10.0, 1, 60.0)] * 2}
    with pytest.raises(Misuse, match=r"one is taken every 60 s\): give --interval SECONDS"):
        conclude(trials, runs)
    runs = {"without": [run(10.0, 1)] * 2, "with": [run(10.0, 1)] * 2}
    with pytest.raises(Misuse, match="the program passes interval=None"):
        conclude(trials, runs)


def test_what_people_see(trials: Trials) -> None:
    runs = {"without": [run(10.0, 0), run(20.0, 0)], "with": [run(11.0, 10, 1.0), run(19.0, 20, 1.0)]}
    text = io.StringIO()
    print_trials(conclude(trials, runs), Console(file=text, width=200))
    shown = text.getvalue()
    assert "Young 1974" in shown and "Daly 2006" in shown and "suggested: interval=" in shown
    assert "more --rounds" in shown


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"rounds": 0}, "at least one round"),
        ({"mean_hours": 0.0}, "hours between two losses"),
        ({"interval": -1.0}, "more than 0 seconds"),
        ({"program": Path("no-such.py")}, "no program no-such.py"),
    ],
)
def test_bad_options_are_named(trials: Trials, given: dict[str, Any], match: str) -> None:
    with pytest.raises(Misuse, match=match):
        Trials(**{"program": trials.program, **given})


def test_the_environment_takes_the_place_of_arguments() -> None:
    told = told_by_environment("./here", 5.0, {"CUTLINE_STORAGE": "/there", "CUTLINE_INTERVAL": "0.5"})
    assert told == ("/there", 0.5, "")
    assert told_by_environment("./here", 5.0, {"CUTLINE_INTERVAL": "off"}) == ("./here", None, "")
    assert told_by_environment(Path("here"), 5.0, {"CUTLINE_INTERVAL": "", "CUTLINE_REPORT": "r"}) == (
        "here",
        5.0,
        "r",
    )


@pytest.mark.parametrize("text", ["never", "0", "-1", "nan", "inf"])
def test_an_interval_that_means_nothing_is_named(text: str) -> None:
    with pytest.raises(Misuse, match="CUTLINE_INTERVAL is a number of seconds"):
        told_by_environment(".", None, {"CUTLINE_INTERVAL": text})


def test_a_report_has_what_happened_since_the_system_was_up(tmp_path: Path) -> None:
    summary = checkpoint()
    committed = {"what": "committed", "checkpoint": 7, "full": True, "summary": summary}
    notices: list[dict[str, Any]] = [committed]
    report = Report(str(tmp_path / "report"), "one", 2.0, notices)
    notices += [
        {**committed, "checkpoint": 8},
        {"what": "aborted"},
        {"what": "recovered", "causes": ["x"]},
        {"what": "recovered", "causes": []},
    ]
    report.write()
    (line,) = (tmp_path / "report").read_text().splitlines()
    found = json.loads(line)
    assert [row["id"] for row in found["checkpoints"]] == [8]
    assert (found["system"], found["interval"], found["aborted"], found["recovered"]) == ("one", 2.0, 1, 1)


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreNotWritable, match="CUTLINE_REPORT"):
        Report(str(tmp_path), "one", None, []).write()
    Report("", "one", None, []).write()


def test_sizes_and_times_for_people() -> None:
    assert [shown_bytes(count) for count in (12, 2048, 3 << 20, 5 << 30)] == [
        "12 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert [shown_seconds(time) for time in (0.0012, 2.5, 600.0)] == ["1.2 ms", "2.5 s", "10 min"]
