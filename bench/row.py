"""One row of the bench: our samples, those of what they are measured against, and the target of their ratio.

Machines are noisy and differ, so only ratios of figures taken side by side in one run count. A row takes
samples, never a verdict: sample k of both sides comes from round k, the ratio is the median of the rounds'
ratios, and whether the target holds is computed from it. `interleave` takes the rounds.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

__all__ = ("Row", "interleave")


@dataclass(frozen=True, slots=True)
class Row:
    """What one measurement found.

    ``samples_ours`` and ``samples_baseline`` are in ``unit``, one of each per round. ``ratio`` says how the
    ratio is read: "ours/baseline" for a share that is kept or a factor that is paid, "baseline/ours" for "so
    many times shorter". The target is ``at_least`` or ``at_most`` it; exactly one is given. ``by`` "lower":
    the lower end of a 95 % interval of the median, by resampling the rounds, is held against the target.
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

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"row {self.name}: give either at_least or at_most")
        if not self.samples_ours:
            raise ValueError(f"row {self.name}: no round was measured")
        if len(self.samples_ours) != len(self.samples_baseline):
            raise ValueError(f"row {self.name}: a round has a sample of both sides")

    def ratios(self) -> list[float]:
        """The ratio of each round, in the direction of ``ratio``."""
        pairs = zip(self.samples_ours, self.samples_baseline, strict=True)
        if self.ratio == "baseline/ours":
            pairs = zip(self.samples_baseline, self.samples_ours, strict=True)
        return [above / below if below else float("inf") for above, below in pairs]

    def measured_ratio(self) -> float:
        """The median of the rounds' ratios."""
        return median(self.ratios())

    def lower(self) -> float:
        """The lower end of the 95 % interval of the median (percentile bootstrap, a fixed seed)."""
        ratios, chance = self.ratios(), random.Random(1)
        medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
        return medians[len(medians) // 40]

    def holds(self) -> bool:
        """Whether the measured ratio meets the target."""
        measured = self.lower() if self.by == "lower" else self.measured_ratio()
        if self.at_least is not None:
            return measured >= self.at_least
        return self.at_most is not None and measured <= self.at_most

    def to_doc(self) -> dict[str, Any]:
        """The row as it stands in the JSON document."""
        sign, bound = (">=", self.at_least) if self.at_least is not None else ("<=", self.at_most)
        ratios = self.ratios()
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": median(self.samples_ours),
            "baseline": median(self.samples_baseline),
            "ratio": self.measured_ratio(),
            "range": [min(ratios), max(ratios)],
            **({"lower": self.lower()} if self.by == "lower" else {}),
            "target": f"{self.ratio} {sign} {bound:g}",
            "holds": self.holds(),
            "samples": {"ours": list(self.samples_ours), "baseline": list(self.samples_baseline)},
            "note": self.note,
        }


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
