"""What a person sees of ``cutline bench``: one line a figure, and where it comes from."""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ("print_trials", "shown_bytes", "shown_seconds")


def shown_bytes(count: float) -> str:
    """A size for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def shown_seconds(seconds: float) -> str:
    """A time for people."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def print_trials(document: dict[str, Any], console: Console) -> None:
    """The table, and under it the suggestion in a sentence."""
    rows = document["checkpoints"]
    seconds, cost, suggested = document["seconds"], document["cost_seconds"], document["suggested"]
    low, high = document["overhead_range"]
    interval = document["interval"]
    runs = len(seconds["with"])
    table = Table(title=f"{document['program']}: {runs} runs without and {runs} with checkpoints, in turns")
    for column in ("figure", "value", "from"):
        table.add_column(column, justify="right" if column == "value" else "left")
    table.add_row("without", shown_seconds(median(seconds["without"])), "median, from start-up to stop")
    every = f"one every {shown_seconds(interval)}" if interval else "those that the program asks for"
    table.add_row("with", shown_seconds(median(seconds["with"])), f"median, {every}")
    table.add_row("overhead", f"{document['overhead']:.1%}", f"median of the pairs; {low:.1%} to {high:.1%}")
    table.add_row("checkpoints", f"{median(rows['count']):.0f}", "a run, median; more than without")
    table.add_row("state", shown_bytes(rows["state_bytes"]), f"{rows['participants']} participants")
    table.add_row("changed", shown_bytes(rows["changed_bytes"]), "a checkpoint, median")
    for kind, size in rows["written_bytes"].items():
        if size is not None:
            table.add_row(f"written, {kind}", shown_bytes(size), "a checkpoint, median")
    table.add_row("written", f"{shown_bytes(rows['written_bytes_per_second'])}/s", "over all runs")
    sources = {
        "stall": "its slowest participant",
        "detect": "of a stall: finding out what changed",
        "duration": "from trigger to commit",
    }
    for name, source in sources.items():
        figures = rows[f"{name}_ms"]
        longest = f"a checkpoint, {source}; median, longest {figures['longest']:.1f} ms"
        table.add_row(name, f"{figures['median']:.1f} ms", longest)
    which = (
        "later with than without" if cost["used"] == cost["later"] else "the stall: more than the difference"
    )
    table.add_row("cost", shown_seconds(cost["used"]), f"a checkpoint; {which}")
    mean = f"a loss every {document['hours_between_losses']:g} h"
    table.add_row(
        "Young 1974", shown_seconds(suggested["young"]), f"sqrt(2 x cost x time between losses), {mean}"
    )
    table.add_row("Daly 2006", shown_seconds(suggested["daly"]), "the same with higher-order terms")
    console.print(table)
    console.print(_sentence(document), highlight=False, soft_wrap=True)


def _sentence(document: dict[str, Any]) -> str:
    shares = document["share_lost"]
    text = (
        f"suggested: interval={document['suggested']['interval']:.3g}; then {shares['suggested']:.2%} of the "
        "time goes to checkpoints and to work that is done again"
    )
    if shares["now"] is not None:
        text += f" ({shares['now']:.2%} with interval={document['interval']:g})"
    if document["overhead_range"][0] <= 0:
        text += ". Runs differ by more than checkpoints cost: more --rounds or a longer run would tell more"
    return text + "."
