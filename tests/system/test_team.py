"""The team of `cutline demo --agents`: a short run with kills, and that its checks can fail."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cutline.coordinator import team_demo
from cutline.coordinator.team_demo import TOPICS, TeamOptions, run_team
from cutline.coordinator.team_judge import figures, judge
from cutline.coordinator.team_play import Play, Seen, operations, play

DEATHS = 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """Undisturbed, and killed."""
    folder = tmp_path_factory.mktemp("team")
    return (
        play(Play(folder / "undisturbed", TOPICS[:1], 0, 1, 120.0)),
        play(Play(folder / "killed", TOPICS[:1], DEATHS, 1, 240.0)),
    )


def failing(runs: tuple[Seen, Seen], deaths: int = 0, **changes: Any) -> list[str]:
    alone, seen = runs
    return [
        check.what for check in judge(dataclasses.replace(seen, **changes), deaths, alone) if not check.holds
    ]


def test_the_world_does_not_notice_the_kills(runs: tuple[Seen, Seen]) -> None:
    alone, seen = runs
    assert failing((alone, alone)) == []
    assert failing(runs, DEATHS) == [], (seen.trouble, figures(seen))
    assert {kill["kind"] for kill in seen.kills} == {"participant", "system"}
    assert seen.starts > 1 and len(alone.requests) == operations(1)
    assert alone.report is not None and "participant.runner" not in alone.report["published"]


def test_each_check_can_fail(runs: tuple[Seen, Seen]) -> None:
    # Of the run that nobody disturbs: a call that a kill has met has more attempts than one.
    seen = runs[0]
    calm = (seen, seen)
    first, last = next(e for e in seen.requests if e["what"] == "pay"), seen.requests[-1]
    rest = [entry for entry in seen.requests if entry is not first]
    again = "requests: operations, and those of unknown outcome sent again"
    # A doubled payment, under the same key and under another one; one that was not made, one of another sum.
    assert failing(calm, requests=[*seen.requests, first]) == ["invoices paid other than once", again]
    fresh = {**first, "about": {**first["about"], "key": "another"}}
    assert failing(calm, requests=[*seen.requests, fresh]) == ["invoices paid other than once", again]
    assert failing(calm, requests=rest) == ["invoices paid other than once", "invoices", again]
    dear = {**first, "about": {**first["about"], "cents": 1}}
    assert "invoices paid other than once" in failing(calm, requests=[*rest, dear])
    # A letter that nobody has listed as unknown; one that was.
    assert failing(calm, requests=[*seen.requests, last]) == [again]
    lost = next(doc for doc in seen.attempts if doc["key"] == last["about"]["key"])
    unknown = [{**lost, "state": "unknown", "attempt": 0}, *seen.attempts]
    assert failing(calm, requests=[*seen.requests, last], attempts=unknown) == []
    open_ones = [{**doc, "state": "claimed"} if doc is lost else doc for doc in seen.attempts]
    assert set(failing(calm, attempts=open_ones)) == {"operations", "effects without an outcome", again}
    assert failing(calm, questions=[*seen.questions, "another"]) == ["times the approval was asked"]
    assert failing(calm, answers=["taken", "taken"]) == ["answers taken", "second answers refused"]
    assert failing(calm, left=seen.left - 1) == ["cents left at the bank"]
    assert failing(calm, booked=seen.booked[1:]) == ["bookings at the bank"]
    assert failing(calm, report=None) == ["final report as of the undisturbed run"]
    assert failing(calm, DEATHS) == ["kills"]
    assert failing(calm, trouble=["it ended"]) == ["what kept it from its end"]


def test_the_verb_says_so(
    runs: tuple[Seen, Seen],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone, seen = runs
    first = next(entry for entry in alone.requests if entry["what"] == "pay")
    doubled = dataclasses.replace(alone, kills=seen.kills, requests=[*alone.requests, first])
    for number, (second, status) in enumerate(((seen, 0), (doubled, 1))):
        for as_json in (False, True):
            plays = [alone, second]

            def played(about: Play, left: list[Seen] = plays) -> Seen:
                about.folder.mkdir(parents=True)
                return left.pop(0)

            monkeypatch.setattr(team_demo, "play", played)
            assert run_team(TeamOptions(tmp_path, DEATHS, 1, 2 * number + as_json, as_json)) == status
            said = capsys.readouterr()
            if as_json:
                doc = json.loads(said.out)
                assert doc["good"] is not bool(status)
                assert [each["holds"] for each in doc["checks"]].count(False) == 2 * status
            else:
                assert ("NO" in said.out, "kept: " in said.out) == (bool(status), bool(status))
