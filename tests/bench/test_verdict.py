"""What an interval shows of a target, and that it is a function of the samples."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

import bench.quick
from bench.quick import QUICK
from bench.verdict import FEW, Interval, Target, interval_of, ratio_of

NOISY = [0.90, 0.97, 0.99, 1.01, 1.02, 1.03, 1.10, 0.95, 1.00]


def test_the_interval_is_a_function_of_the_samples() -> None:
    first = interval_of(NOISY)
    random.seed(99)
    assert interval_of(NOISY) == first
    assert min(NOISY) <= first.low < 1.0 < first.high <= max(NOISY)
    assert first.sure


def test_no_row_takes_seven_rounds() -> None:
    modules = [*Path(bench.quick.__file__).parent.glob("bench_*.py")]
    modules = [path for path in modules if not path.name.startswith("bench_stall_vs_pickle")]
    assert modules and not [path.name for path in modules if "rounds: int = 7" in path.read_text()]
    assert not [name for name, settings in QUICK.items() if settings.get("rounds") == 7]


def test_more_rounds_make_it_narrower() -> None:
    few, many = interval_of(NOISY), interval_of(NOISY * 10)
    assert many.high - many.low < few.high - few.low


def test_the_interval_has_the_true_median_as_often_as_it_says() -> None:
    chance = random.Random(7)
    found = 0
    for _ in range(200):
        interval = interval_of([chance.gauss(1.0, 0.1) for _ in range(15)])
        found += interval.low <= 1.0 <= interval.high
    assert found >= 180


@pytest.mark.parametrize("rounds", range(1, FEW))
def test_too_few_rounds_decide_nothing(rounds: int) -> None:
    interval = interval_of([10.0 + number for number in range(rounds)])
    assert not interval.sure
    assert Target(at_least=1).judge(interval) == "undecided"
    assert Target(at_most=1).judge(interval) == "undecided"


def test_the_fewest_rounds_that_decide() -> None:
    interval = interval_of([10.0, 11.0, 12.0, 13.0, 14.0])
    assert interval == Interval(10.0, 14.0, sure=True)
    assert Target(at_least=9).judge(interval) == "holds"


def test_counts_that_are_all_the_same_have_no_noise() -> None:
    assert interval_of([1.1] * 3) == Interval(1.1, 1.1, sure=True)
    assert Target(at_most=1.15).judge(interval_of([1.1] * 3)) == "holds"
    assert Target(at_most=1.0).judge(interval_of([1.1] * 3)) == "fails"
    assert Target(at_most=1.15).judge(interval_of([1.1] * 2)) == "undecided"


def test_a_bound_is_met_by_what_is_exactly_on_it() -> None:
    exact = Interval(1.0, 1.0, sure=True)
    assert Target(at_least=1.0).judge(exact) == Target(at_most=1.0).judge(exact) == "holds"


def test_between_the_ends_nothing_is_decided() -> None:
    interval = Interval(0.9, 1.1, sure=True)
    assert Target(at_least=1.0).judge(interval) == "undecided"
    assert Target(at_most=1.0).judge(interval) == "undecided"
    assert Target(at_least=0.9).judge(interval) == "holds"
    assert Target(at_least=1.2).judge(interval) == "fails"
    assert Target(at_most=0.8).judge(interval) == "fails"


def test_two_bounds() -> None:
    same = Target(0.95, 1.05)
    assert same.judge(Interval(0.97, 1.04, sure=True)) == "holds"
    assert same.judge(Interval(0.90, 1.01, sure=True)) == "undecided"
    assert same.judge(Interval(0.90, 1.10, sure=True)) == "undecided"
    assert same.judge(Interval(0.80, 0.90, sure=True)) == "fails"
    assert same.judge(Interval(1.10, 1.20, sure=True)) == "fails"
    assert [same.text(), Target(at_most=3).text(), Target(at_least=700).text()] == [
        "0.95 to 1.05",
        "<= 3",
        ">= 700",
    ]


def test_a_baseline_of_nothing() -> None:
    assert ratio_of(1.0, 0.0) == math.inf
    assert math.isnan(ratio_of(0.0, 0.0))
    assert ratio_of(0.0, 2.0) == 0.0
    endless = interval_of([math.inf] * 5)
    assert Target(at_least=3).judge(endless) == "holds"
    assert Target(at_most=3).judge(endless) == "fails"
    assert Target(at_most=3).judge(interval_of([1.0, 1.0, 1.0, math.inf, math.inf])) == "undecided"


def test_rounds_without_a_number_say_nothing() -> None:
    assert interval_of([math.nan, 2.0, math.nan, 2.0, 2.0]) == Interval(2.0, 2.0, sure=True)
    for nothing in ([], [math.nan] * 9):
        interval = interval_of(nothing)
        assert math.isnan(interval.low) and math.isnan(interval.high)
        assert Target(at_least=0).judge(interval) == "undecided"
    assert not Target(at_least=0).met_by(math.nan)
