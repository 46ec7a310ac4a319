"""What a measured ratio shows of its target, from its rounds: it holds, fails, or is undecided.

A round gives one ratio of two figures taken side by side. Their median is uncertain by as much as the rounds
differ, and how much that is a bootstrap says: rounds are drawn again and again, as many as there are, and the
middle 95 % of the medians of what was drawn is the interval. A target holds if the whole interval meets it,
fails if none of it does, and is undecided between: then the machine was too noisy, or the rounds too few.

All of it is a function of the samples: the draws come from a fixed seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

__all__ = ("FEW", "Interval", "Target", "Verdict", "interval_of", "ratio_of")

Verdict = Literal["holds", "fails", "undecided"]

# With n rounds the widest interval that a bootstrap can give, from the smallest ratio to the largest, has the
# true median in it with a chance of 1 - 2 ** (1 - n): 75 % with three, 94 % with five. With seven it is 89 %:
# the middle 95 % just leaves out the smallest and the largest there.
FEW = 5

_RESAMPLES = 2000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the median of the ratios lies, with a confidence of 95 %, and how many rounds say so.

    ``sure`` is False if there were too few rounds for that confidence. Without a round that gave a number
    both ends are none.
    """

    low: float
    high: float
    sure: bool


@dataclass(frozen=True, slots=True)
class Target:
    """The bounds that a ratio shall keep; one of them may be absent."""

    at_least: float | None = None
    at_most: float | None = None

    def met_by(self, ratio: float) -> bool:
        """Whether one figure keeps the bounds; what is not a number does not."""
        above = self.at_least is None or ratio >= self.at_least
        return above and (self.at_most is None or ratio <= self.at_most) and not math.isnan(ratio)

    def judge(self, interval: Interval) -> Verdict:
        """What an interval shows."""
        if not interval.sure or math.isnan(interval.low) or math.isnan(interval.high):
            return "undecided"
        if self.met_by(interval.low) and self.met_by(interval.high):
            return "holds"
        below = self.at_least is not None and interval.high < self.at_least
        above = self.at_most is not None and interval.low > self.at_most
        return "fails" if below or above else "undecided"

    def text(self) -> str:
        """As it stands in a table."""
        if self.at_least is None:
            return f"<= {self.at_most:g}"
        if self.at_most is None:
            return f">= {self.at_least:g}"
        return f"{self.at_least:g} to {self.at_most:g}"


def ratio_of(above: float, below: float) -> float:
    """The ratio of one round: without end over nothing, and not a number where both sides are nothing."""
    if below:
        return above / below
    return math.inf if above else math.nan


def interval_of(ratios: Sequence[float]) -> Interval:
    """The interval of the median, by resampling the rounds.

    Rounds whose ratio is not a number say nothing and are left out. Ratios that are all the same have no
    noise (counts of bytes, of requests): three of them are enough.
    """
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    if not known:
        return Interval(math.nan, math.nan, sure=False)
    if min(known) == max(known):
        return Interval(known[0], known[0], sure=len(known) >= 3)
    chance = random.Random(_SEED)
    medians = sorted(median(chance.choices(known, k=len(known))) for _ in range(_RESAMPLES))
    cut = _RESAMPLES // 40
    return Interval(medians[cut], medians[-1 - cut], sure=len(known) >= FEW)
