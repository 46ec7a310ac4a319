"""The verbs that show what there is: diff, tree, du."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cutline.storage import CheckpointRow, LineageRow
from cutline.storage.compare import Changed, Difference, compare
from cutline.storage.tending import Cost, costs

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, opened, plainly
from .cli_store import SomeName, place_of, systems_of
from .trials_report import shown_bytes

__all__ = ("diff", "du", "tree")


# -- diff --------------------------------------------------------------------------------------------


@app.command()
@plainly
def diff(
    before: str, after: str, storage: Folder = FOLDER, name: Name = "default", as_json: AsJson = False
) -> None:
    """What differs between two checkpoints: participants, attributes, bytes."""
    with opened(storage) as store:
        first, second = store.catalog.find(name, before), store.catalog.find(name, after)
        found = compare(store, first, second)
    if as_json:
        doc = {
            "before": place_of(first.place),
            "after": place_of(second.place),
            "participants": {each.participant: _difference_doc(each) for each in found},
        }
        print(json.dumps(doc))
        return
    table = Table(title=f"from {first} to {second}")
    for column, justify in (("participant", "left"), ("", "left"), ("attribute", "left"), ("bytes", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for each in found:
        state = f"of {shown_bytes(each.size)}" if each.what == "same" else shown_bytes(each.bytes)
        table.add_row(Text(each.participant), each.what, "", state)
        for part in _named(each):
            table.add_row("", _what(part), Text(part.name), shown_bytes(part.bytes))
    console.print(table)


def _named(difference: Difference) -> list[Changed]:
    """The changed parts by names that a user knows."""
    if difference.what in ("added", "removed"):
        return []
    pieces = [
        Changed(_attribute(part.name), part.before, part.after, part.bytes)
        for part in difference.pieces
        if part.name != "header"
    ]
    regions = difference.regions
    if regions:
        total = sum(part.bytes for part in regions)
        sizes = _sum(part.before for part in regions), _sum(part.after for part in regions)
        pieces.append(Changed(f"(memory of {len(regions)} arrays)", *sizes, total))
    parts = (Changed(f"({part.name})", part.before, part.after, part.bytes) for part in difference.sections)
    return [*pieces, *parts]


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _attribute(piece: str) -> str:
    kind, colon, name = piece.partition(":")
    return name if colon and kind in ("attr", "slot") else "(whole state)" if piece == "state" else piece


def _what(part: Changed) -> str:
    return "added" if part.before is None else "removed" if part.after is None else "changed"


def _difference_doc(difference: Difference) -> dict[str, Any]:
    return {
        "what": difference.what,
        "state_bytes": difference.size,
        "changed_bytes": difference.bytes,
        "parts": [
            {"name": part.name, "what": _what(part), "before": part.before, "after": part.after}
            | {"bytes": part.bytes}
            for part in _named(difference)
        ],
    }


# -- tree --------------------------------------------------------------------------------------------


@app.command()
@plainly
def tree(storage: Folder = FOLDER, name: SomeName = None, as_json: AsJson = False) -> None:
    """The lineages of each system, where each forked off, and their checkpoints."""
    with opened(storage) as store:
        names = systems_of(store, name)
        found = {
            system: (store.catalog.lineages(system), store.catalog.checkpoints(system, damage=[]))
            for system in names
        }
    if as_json:
        print(json.dumps({system: _tree_doc(*each) for system, each in found.items()}))
        return
    for system, (lines, rows) in found.items():
        top = Tree(Text(system))
        branches: dict[str, Tree] = {}
        for line in lines:
            parent = branches.get(line.origin[0], top) if line.origin else top
            branches[line.lineage] = parent.add(Text(_line_text(line, rows, line is lines[-1])))
        console.print(top)


def _line_text(line: LineageRow, rows: list[CheckpointRow], newest: bool) -> str:
    mine = [row for row in rows if row.lineage == line.lineage]
    text = f"{line.lineage}: {len(mine)} checkpoints"
    if mine:
        taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(mine[-1].decided_at))
        text += f", {mine[0].checkpoint} to {mine[-1].checkpoint}, the last of {taken}"
    if line.origin is not None:
        text += f", from {line.origin[1]}"
    labels = ", ".join(f"{row.label} ({row.checkpoint})" for row in mine if row.label)
    return text + (f", labelled {labels}" if labels else "") + (", goes on" if newest else "")


def _tree_doc(lines: list[LineageRow], rows: list[CheckpointRow]) -> list[dict[str, Any]]:
    return [
        {
            "lineage": line.lineage,
            "origin": place_of(line.origin),
            "epoch": line.epoch,
            "next_checkpoint": line.next_checkpoint,
            "checkpoints": [
                {"id": row.checkpoint, "kind": row.kind, "label": row.label, "decided_at": row.decided_at}
                for row in rows
                if row.lineage == line.lineage
            ],
        }
        for line in lines
    ]


# -- du ----------------------------------------------------------------------------------------------


@app.command()
@plainly
def du(storage: Folder = FOLDER, name: SomeName = None, as_json: AsJson = False) -> None:
    """What each checkpoint costs: bytes that it alone needs, and bytes that it shares with others."""
    with opened(storage) as store:
        found = {system: costs(store, system) for system in systems_of(store, name)}
    if as_json:
        print(json.dumps({system: _cost_doc(*each) for system, each in found.items()}))
        return
    for system, (cuts, unlisted) in found.items():
        table = Table(title=f"bytes of {system}")
        for column in ("lineage", "id", "kind", "label", "alone", "shared"):
            table.add_column(column, justify="right" if column in ("id", "alone", "shared") else "left")
        for cost in cuts:
            row = cost.row
            cells = row.lineage[:8], str(row.checkpoint), row.kind, row.label or ""
            table.add_row(*map(Text, cells), shown_bytes(cost.alone), shown_bytes(cost.shared))
        console.print(table)
        text = f"not listed by any checkpoint: {shown_bytes(unlisted)} (under way, or waiting for gc)"
        console.print(text, highlight=False)


def _cost_doc(cuts: list[Cost], unlisted: int) -> dict[str, Any]:
    return {
        "checkpoints": [
            {
                "place": place_of(cost.row.place),
                "label": cost.row.label,
                "alone": cost.alone,
                "shared": cost.shared,
                "missing": cost.missing,
            }
            for cost in cuts
        ],
        "unlisted": unlisted,
    }
