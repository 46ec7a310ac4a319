"""Checkpoints beside a measurement: none is lost without a word, and too few are an error."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bench.throughput import measure_at
from bench.trigger import Trigger, enough
from cutline.errors import CheckpointAborted


class System:
    """Takes checkpoints at once, until there have been ``good``."""

    def __init__(self, good: int = 1_000_000) -> None:
        self.good = good
        self.began = time.monotonic()
        self.times: list[float] = []

    def checkpoint(self) -> int:
        if len(self.times) == self.good:
            raise CheckpointAborted("the participant keeper is gone")
        self.times.append(time.monotonic() - self.began)
        return len(self.times)


def triggered(system: System, per_second: float, seconds: float) -> Trigger:
    fake: Any = system
    with Trigger(fake, per_second) as trigger:
        system.began = time.monotonic()
        trigger.wanted.set()
        time.sleep(seconds)
    return trigger


def test_the_first_checkpoint_comes_after_half_an_interval() -> None:
    system = System()
    trigger = triggered(system, 5, 0.5)
    assert trigger.taken == len(system.times) >= 1
    assert 0.1 <= system.times[0]


def test_an_error_of_a_checkpoint_is_raised() -> None:
    with pytest.raises(RuntimeError, match="no more checkpoints were taken: .*keeper is gone") as raised:
        triggered(System(good=2), 200, 0.5)
    assert isinstance(raised.value.__cause__, CheckpointAborted)


def test_an_error_is_noticed_while_it_is_measured() -> None:
    fake: Any = System(good=0)
    trigger = Trigger(fake, 1000)
    trigger.check()
    trigger.wanted.set()
    with pytest.raises(RuntimeError, match="keeper is gone"):
        for _ in range(500):
            time.sleep(0.01)
            trigger.check()


def test_another_error_is_not_hidden_by_that_of_a_checkpoint() -> None:
    fake: Any = System(good=0)
    with pytest.raises(AssertionError, match="lost"), Trigger(fake, 1000) as trigger:
        trigger.wanted.set()
        time.sleep(0.1)
        raise AssertionError("lost")


def test_too_few_checkpoints_are_no_measurement() -> None:
    enough([2, 2], [4.0, 4.0], 1)
    enough([1, 1], [4.0, 4.0], 10)
    with pytest.raises(AssertionError, match="3 checkpoints were taken where 8 were asked for"):
        enough([1, 2], [4.0, 4.0], 1)
    with pytest.raises(AssertionError, match="1 of 2 spells had no checkpoint"):
        enough([9, 0], [4.0, 4.0], 10)


def test_a_row_whose_checkpoints_are_not_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"at_least": 0.95, "rounds": 1, "spell": 0.4, "mebibytes": 1}
    row = measure_at("kept", 10, **small)
    assert "asked for 10 checkpoints a second" in row.note
    monkeypatch.setattr(Trigger, "_take_all", lambda _self: None)
    with pytest.raises(AssertionError, match="1 of 1 spells had no checkpoint"):
        measure_at("kept", 10, **small)
