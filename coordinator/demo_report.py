"""What a person sees of the demo: a bar on the way, then the verdict, the kills and the checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ("Bar", "print_report")

_MIB = 1024 * 1024


class Bar:
    """A progress bar, or nothing when a program reads the output."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[handled]} messages"),
            TimeElapsedColumn(),
            disable=quiet,
        )
        self._task = self._progress.add_task("reading the standard library", total=1.0, handled=0)

    def show(self, fraction: float, handled: int) -> None:
        """Moves the bar."""
        self._progress.update(self._task, completed=fraction, handled=handled)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.stop()


def print_report(document: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """Tables for people, or the document on one line."""
    if as_json:
        print(json.dumps(document))
        if not document["identical"]:
            print("DIFFERENT", file=sys.stderr)
        return
    console = Console()
    console.print(_kill_table(document["kills"]))
    console.print(_checkpoint_table(document["checkpoints"], folder))
    reruns = sum(kill["handlers_rerun"] for kill in document["kills"])
    console.print(
        f"{document['messages']} messages; {document['handlers_run']} handlers run, "
        f"{document['handlers_needed']} needed, {reruns} run again after losses"
    )
    if document["identical"]:
        survived = len(document["kills"])
        console.print(f"[bold green]identical to the single-process result[/], {survived} kills survived")
    else:
        console.print("[bold red]DIFFERENT[/] from the single-process result:")
        for difference in document["differences"][:12]:
            console.print(f"  {difference}", markup=False, highlight=False)
    console.print(f"checkpoints are in {folder}", highlight=False, soft_wrap=True)


def _kill_table(kills: list[dict[str, Any]]) -> Table:
    table = Table(title="ended by SIGKILL on the way")
    for column in ("who", "at", "back at", "messages undone", "recovered in"):
        table.add_column(column, justify="left" if column == "who" else "right")
    for kill in kills:
        recovered = kill["recovered_ms"]
        table.add_row(
            kill["name"],
            f"{kill['at']:.0%}",
            str(kill["checkpoint_used"]) if kill["role"] == "participant" else "-",
            str(kill["rolled_back_messages"]),
            f"{recovered:.0f} ms" if recovered is not None else "-",
        )
    return table


def _checkpoint_table(rows: list[dict[str, Any]], folder: Path) -> Table:
    shown = rows if len(rows) <= 12 else [*rows[:5], *rows[-6:]]
    table = Table(title=f"{len(rows)} checkpoints" + ("" if shown is rows else " (some left out)"))
    for column in ("id", "kind", "in flight", "changed", "written", "longest stall", "duration"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for row in shown:
        table.add_row(
            str(row["id"]),
            row["kind"],
            str(row["in_flight_messages"]),
            f"{row['changed_bytes'] / _MIB:.1f} MiB",
            f"{row['written_bytes'] / _MIB:.1f} MiB",
            f"{row['stall_ms_max']:.1f} ms",
            f"{row['duration_ms']:.0f} ms",
        )
    deltas = [row["written_bytes"] for row in rows if row["kind"] == "delta"]
    if deltas:
        table.caption = f"median delta: {median(deltas) / _MIB:.2f} MiB"
    return table
