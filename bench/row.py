"""One row of the bench: our samples, those of what they are measured against, and the target of their ratio.

Machines are noisy and differ, so only ratios of figures taken side by side in one run count. A row takes
samples, never a verdict: the ratio and whether the target holds are computed here, from the medians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

__all__ = ("Row",)


@dataclass(frozen=True, slots=True)
class Row:
    """What one measurement found.

    ``samples_ours`` and ``samples_baseline`` are in ``unit``, each with at least one sample. ``ratio`` says
    how the ratio is read: "ours/baseline" for a share that is kept or a factor that is paid, "baseline/ours"
    for "so many times shorter". The target is ``at_least`` or ``at_most`` it; exactly one is given.
    """

    name: str
    unit: str
    samples_ours: Sequence[float]
    samples_baseline: Sequence[float]
    ratio: Literal["ours/baseline", "baseline/ours"] = "ours/baseline"
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"row {self.name}: give either at_least or at_most")
        if not self.samples_ours or not self.samples_baseline:
            raise ValueError(f"row {self.name}: both sides need at least one sample")

    def measured_ratio(self) -> float:
        """The ratio of the medians, in the direction of ``ratio``."""
        ours, baseline = median(self.samples_ours), median(self.samples_baseline)
        above, below = (ours, baseline) if self.ratio == "ours/baseline" else (baseline, ours)
        return above / below if below else float("inf")

    def holds(self) -> bool:
        """Whether the measured ratio meets the target."""
        measured = self.measured_ratio()
        if self.at_least is not None:
            return measured >= self.at_least
        return self.at_most is not None and measured <= self.at_most

    def to_doc(self) -> dict[str, Any]:
        """The row as it stands in the JSON document."""
        sign, bound = (">=", self.at_least) if self.at_least is not None else ("<=", self.at_most)
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": median(self.samples_ours),
            "baseline": median(self.samples_baseline),
            "ratio": self.measured_ratio(),
            "target": f"{self.ratio} {sign} {bound:g}",
            "holds": self.holds(),
            "samples": {"ours": list(self.samples_ours), "baseline": list(self.samples_baseline)},
            "note": self.note,
        }
