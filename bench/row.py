"""One row of the bench: our samples, those of what they are measured against, and the target of their ratio.

Machines are noisy and differ, so only ratios of figures taken side by side in one run count. A row takes
samples, never a verdict: sample k of both sides comes from round k, the ratio is the median of the rounds'
ratios, and what they show of the target is computed from them (`verdict`). `interleave` takes the rounds.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from bench.verdict import Interval, Target, Verdict, interval_of, ratio_of

__all__ = ("NOT_IN_QUICK", "Failed", "Missing", "Row", "interleave")

# Why a row is missing that only a whole run has.
NOT_IN_QUICK = "not in the quick run; `make bench` measures it"


@dataclass(frozen=True, slots=True)
class Missing:
    """What could not be measured here, and why: a peer that is not installed, a server that cannot be had."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failed(Missing):
    """What ended with an error, beside other rows of its module that did not."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one measurement found.

    ``samples_ours`` and ``samples_baseline`` are in ``unit``, one of each per round. ``ratio`` says how the
    ratio is read: "ours/baseline" for a share that is kept or a factor that is paid, "baseline/ours" for "so
    many times shorter". The target is ``at_least`` or ``at_most`` it, or both; without either the row
    compares and judges nothing. ``by`` "lower": ``holds`` looks at the lower end of the interval, not at
    the median.

    ``against`` is what the baseline is, where a row's name does not say it (a peer); rows of one ``group``
    stand in one table and one picture of the report.
    """

    name: str
    unit: str
    samples_ours: Sequence[float]
    samples_baseline: Sequence[float]
    ratio: Literal["ours/baseline", "baseline/ours"] = "ours/baseline"
    at_least: float | None = None
    at_most: float | None = None
    by: Literal["median", "lower"] = "median"
    note: str = ""
    against: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"row {self.name}: at least {self.at_least:g} and at most {self.at_most:g}")
        if not self.samples_ours:
            raise ValueError(f"row {self.name}: no round was measured")
        if len(self.samples_ours) != len(self.samples_baseline):
            raise ValueError(f"row {self.name}: a round has a sample of both sides")

    @property
    def target(self) -> Target | None:
        """The bounds of the ratio; None if there are none."""
        if self.at_least is None and self.at_most is None:
            return None
        return Target(self.at_least, self.at_most)

    def ratios(self) -> list[float]:
        """The ratio of each round, in the direction of ``ratio``."""
        pairs = zip(self.samples_ours, self.samples_baseline, strict=True)
        if self.ratio == "baseline/ours":
            pairs = zip(self.samples_baseline, self.samples_ours, strict=True)
        return [ratio_of(above, below) for above, below in pairs]

    def measured_ratio(self) -> float:
        """The median of the rounds' ratios; not a number if none of them is one."""
        known = [ratio for ratio in self.ratios() if not math.isnan(ratio)]
        return median(known) if known else math.nan

    def interval(self) -> Interval:
        """Where that median lies with a confidence of 95 %."""
        return interval_of(self.ratios())

    def holds(self) -> bool | None:
        """Whether the measured figure meets the target; None without a target."""
        if self.target is None:
            return None
        return self.target.met_by(self.interval().low if self.by == "lower" else self.measured_ratio())

    def verdict(self) -> Verdict | None:
        """What the whole interval shows of the target; None without a target."""
        return None if self.target is None else self.target.judge(self.interval())

    def to_doc(self) -> dict[str, Any]:
        """The row as it stands in the JSON document; what is no finite number is null there."""
        ratios, interval = [ratio for ratio in self.ratios() if not math.isnan(ratio)], self.interval()
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": median(self.samples_ours),
            "baseline": median(self.samples_baseline),
            "ratio": _finite(self.measured_ratio()),
            "range": [_finite(min(ratios)), _finite(max(ratios))] if ratios else [None, None],
            "interval": [_finite(interval.low), _finite(interval.high)],
            "target": f"{self.ratio} {self.target.text()}" if self.target is not None else None,
            "bounds": [self.at_least, self.at_most],
            "holds": self.holds(),
            "verdict": self.verdict(),
            "samples": {"ours": list(self.samples_ours), "baseline": list(self.samples_baseline)},
            "note": self.note,
            "against": self.against,
            "group": self.group,
        }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def interleave(
    rounds: int, ours: Callable[[], float], baseline: Callable[[], float], *, warm: int = 1
) -> tuple[list[float], list[float]]:
    """Samples of both sides, taken in turns: A/B, B/A, A/B, ... after ``warm`` rounds that do not count.

    The order changes from round to round, so that neither side always comes right after the other's work.
    """
    samples: tuple[list[float], list[float]] = ([], [])
    sides = ((samples[0], ours), (samples[1], baseline))
    for number in range(-warm, rounds):
        for taken, side in sides if number % 2 == 0 else sides[::-1]:
            gc.collect()
            sample = side()
            if number >= 0:
                taken.append(sample)
    return samples
