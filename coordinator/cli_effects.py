"""``cutline effects``: what participants have asked of the world, and what became of it; a person's word."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.table import Table

from cutline.errors import Misuse, NotRunning
from cutline.storage import CheckpointRow, Owner, Store
from cutline.storage.effects import BLOCK, LIVE, PERSON

from .cli_app import FOLDER, AsJson, Folder, Name, Point, app, console, opened, plainly
from .client import connected
from .effect_rows import requests_of, resolved, row_doc

__all__ = ("effects", "listing")

# Seconds that a lease is taken for, to write a person's word down.
_LEASE = 30.0


@app.command()
@plainly
def effects(
    point: Point = "newest",
    storage: Folder = FOLDER,
    name: Name = "default",
    resolve: Annotated[
        str | None, typer.Option(help="Say what became of one: PARTICIPANT#NUMBER, or its key.")
    ] = None,
    done: Annotated[str | None, typer.Option(help="It has happened; its result, as JSON.")] = None,
    failed: Annotated[str | None, typer.Option(help="It has failed; a text.")] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="It has surely not happened.")] = False,
    allow: Annotated[bool, typer.Option("--allow", help="Let a fork's effects run.")] = False,
    as_json: AsJson = False,
) -> None:
    """What was asked of the world: requests of a checkpoint, claims, attempts, results."""
    if resolve is not None:
        if sum((done is not None, failed is not None, not_done)) != 1:
            raise Misuse("say one of --done JSON, --failed TEXT, --not-done")
        _say(storage, name, "resolve_effect", {"effect": resolve, "done": done, "failed": failed})
        return
    if allow:
        _say(storage, name, "allow_effects", {})
        return
    with opened(storage) as store:
        docs = listing(store, store.catalog.find(name, point))
    if as_json:
        print(json.dumps(docs))
    else:
        _show(docs)


def _say(storage: str, name: str, what: str, fields: dict[str, Any]) -> None:
    """To the running system, or else to the catalog, under a lease of our own."""
    try:
        with connected(storage, name) as client:
            said = client.request(what, **fields)
    except NotRunning:
        said = _write(storage, name, what, fields)
    if what == "allow_effects":
        console.print(f"effects of lineage {said['lineage']} run", markup=False, highlight=False)
    else:
        console.print(f"{said['effect']} is {said['state']}", markup=False, highlight=False)


def _write(storage: str, name: str, what: str, fields: dict[str, Any]) -> dict[str, Any]:
    with opened(storage) as store:
        catalog = store.catalog
        lineage = catalog.head_lineage(name)
        if lineage is None:
            raise Misuse(f"there is no system {name!r} in {store.url}")
        lease = catalog.acquire_lease(name, Owner.here("cutline effects", os.getpid()), _LEASE, time.time())
        try:
            if what == "resolve_effect":
                return resolved(catalog, lease, lineage, fields, time.time())
            catalog.rule_effects(lease, lineage, LIVE)
            return {"lineage": lineage}
        finally:
            catalog.release_lease(lease)


def listing(store: Store, row: CheckpointRow) -> list[dict[str, Any]]:
    """Attempts of the checkpoint's lineage, and requests in the checkpoint that nobody has claimed yet."""
    rows = [each for each in store.catalog.effects(row.lineage) if each.function != PERSON]
    pending = [
        (me.name, me.birth, request) for me, request in requests_of(store, row) if not request.is_question
    ]
    waiting = {request.key for _, _, request in pending}
    docs = [{**row_doc(each), "pending": each.key in waiting} for each in rows]
    claimed = {each.key for each in rows}
    waits = store.catalog.effects_rule(row.lineage) == BLOCK
    for name, birth, request in pending:
        if request.key not in claimed:
            docs.append(
                {
                    "participant": name,
                    "birth": birth,
                    "number": request.number,
                    "function": request.function,
                    "key": request.handed_key,
                    "attempt": 0,
                    "repeatable": request.repeatable,
                    "state": "blocked" if waits and not request.repeatable else "asked",
                    "pending": True,
                }
            )
    return sorted(docs, key=lambda doc: (doc["participant"], doc["number"], doc["attempt"]))


def _show(docs: list[dict[str, Any]]) -> None:
    table = Table(title="effects")
    for column in ("effect", "function", "state", "attempt", "claimed from", "key"):
        table.add_column(column, justify="right" if column == "attempt" else "left")
    for doc in docs:
        state = doc["state"] + (f" by {doc['by']}" if doc.get("by") else "")
        table.add_row(
            f"{doc['participant']}#{doc['number']}",
            doc["function"],
            state if not doc["pending"] or state == "asked" else f"{state}, not delivered there",
            str(doc["attempt"] or ""),
            str(doc.get("checkpoint") or ""),
            doc["key"][:16],
        )
    console.print(table)
    for text in _what_to_do(docs):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _what_to_do(docs: list[dict[str, Any]]) -> Iterator[str]:
    """What waits for a person's word, and how that is given."""
    blocked = [doc for doc in docs if doc["state"] == "blocked"]
    if blocked:
        yield (
            f"{len(blocked)} of them wait for a word, because this lineage is a fork, or a copy, which owns"
            " nothing of what its origin does to the world: look what was done there, then `cutline effects"
            " --allow` lets them run"
        )
    unknown = [doc for doc in docs if doc["state"] == "claimed" and doc["pending"]]
    for doc in unknown:
        yield (
            f"{doc['participant']}#{doc['number']} was begun, and nobody has said yet what became of it; if"
            " its process is gone, look at the world and say it: `cutline effects --resolve"
            f" {doc['participant']}#{doc['number']}` with --done JSON, --failed TEXT or --not-done"
        )
