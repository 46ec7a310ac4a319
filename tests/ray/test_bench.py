"""The rows that are measured against Ray, run small: what they count is checked by themselves."""

from __future__ import annotations

import pytest

from bench.bench_channel_vs_ray import measure as measure_channel
from bench.bench_latency_vs_ray import measure as measure_latency
from bench.bench_recovery_vs_floor import measure as measure_recovery

pytestmark = pytest.mark.usefixtures("local_ray")


def test_channel_vs_ray_runs_small() -> None:
    row = measure_channel(rounds=1, messages=3000, plain=100)
    assert row.samples_ours[0] > 0 and row.samples_baseline[0] > 0
    assert "counts checked" in row.note


def test_latency_vs_ray_runs_small() -> None:
    row = measure_latency(rounds=1, questions=5)
    assert row.samples_ours[0] > 0 and row.samples_baseline[0] > 0


def test_recovery_vs_floor_runs_small() -> None:
    row = measure_recovery(rounds=1, size=1 << 20, rest=0.0)
    assert row.samples_ours[0] > 0 and row.samples_baseline[0] > 0
    assert "contents checked" in row.note
