"""The same rows, measured some times over: whether a verdict comes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.document import Run

__all__ = ("Repeated",)

_KEPT = ("name", "ratio", "interval", "verdict")


class Repeated:
    """Runs, one after the other; ``new`` makes each. The document is that of the last one, or of the last
    with the most rows: one that was interrupted does not take the place of a whole one."""

    def __init__(self, times: int, new: Callable[[], Run]) -> None:
        self.times = times
        self.new = new
        self.runs: list[Run] = []

    def measure(self, names: Sequence[str], *, micro: bool, saved: Callable[[], object]) -> None:
        """All of it, the parts after the last run; ``saved`` is called after each module."""
        for number in range(1, self.times + 1):
            self.runs.append(self.new())
            if not self.runs[-1].measure_all(names, saved):
                return
            if micro and number == self.times:
                self.runs[-1].measure_micro()

    def to_doc(self) -> dict[str, Any]:
        """That of one run; with errors of all runs, and ``runs`` if there were to be several."""
        doc = max(reversed(self.runs), key=lambda run: len(run.rows)).to_doc()
        if self.times == 1:
            return doc
        errors = [
            {"name": each.name, "reason": f"run {number}: {each.reason}"}
            for number, run in enumerate(self.runs, 1)
            for each in run.errors
        ]
        docs = [[row.to_doc() for row in run.rows] for run in self.runs]
        kept = [[{key: row[key] for key in _KEPT} for row in rows] for rows in docs]
        return {**doc, "errors": errors, "runs": kept}

    def lines(self) -> list[str]:
        """For each row its verdicts and its ratios, run by run; none for a single run."""
        if self.times == 1:
            return []
        runs = [{row.name: row for row in run.rows} for run in self.runs]
        lines = []
        for name in dict.fromkeys(name for run in runs for name in run):
            rows = [run.get(name) for run in runs]
            verdicts = " ".join("absent" if row is None else row.verdict() or "-" for row in rows)
            ratios = " ".join("-" if row is None else f"{row.measured_ratio():.3g}" for row in rows)
            lines.append(f"{name}: {verdicts} ({ratios})")
        return lines
