"""The verbs that show what there is: diff, tree, du."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cutline.storage.compare import Changed, Difference, compare
from cutline.storage.tending import Cost, costs

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, opened, plainly
from .cli_store import SomeName, place_of, systems_of
from .lineages import branches, lineage_docs, told
from .trials_report import shown_bytes

__all__ = ("diff", "du", "tree")

_WIDE = 10_000


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
def tree(
    store: Annotated[str | None, typer.Argument(help="The same as --storage.")] = None,
    storage: Folder = FOLDER,
    name: SomeName = None,
    as_json: AsJson = False,
) -> None:
    """Which lineage comes from which (restores, edits, forks, imports), and their checkpoints."""
    with opened(store or storage) as there:
        docs = lineage_docs(there, systems_of(there, name))
    if as_json:
        print(json.dumps(docs))
        return
    below = branches(docs)
    # What is read by a program is not broken into lines.
    screen = console if console.is_terminal else Console(width=_WIDE)
    for system in docs:
        top = Tree(Text(system))
        _grow(top, [doc for doc in below.get(None, ()) if doc["system"] == system], below)
        if top.children:
            screen.print(top)


def _grow(above: Tree, docs: Iterable[Mapping[str, Any]], below: Mapping[str | None, Any]) -> None:
    for doc in docs:
        # Under its own system's name already, unless it is a fork that became another one.
        there = f" ({doc['system']})" if doc["how"] == "fork" else ""
        branch = above.add(Text(f"{doc['lineage']}{there}: {', '.join(told(doc))}"))
        _grow(branch, below.get(doc["lineage"], ()), below)


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
