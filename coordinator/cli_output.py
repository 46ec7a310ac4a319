"""``cutline output``: what was emitted and is not published yet, of a checkpoint; how far each sink is."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from rich.table import Table

from cutline.errors import NotRunning
from cutline.participant.output import Emitted
from cutline.storage import CheckpointRow, Store
from cutline.storage.image import read_sections
from cutline.storage.sinks import Origin

from .cli_app import FOLDER, AsJson, Folder, Name, Point, app, console, opened, plainly
from .client import connected

__all__ = ("output", "unpublished")


@app.command()
@plainly
def output(
    point: Point = "newest",
    storage: Folder = FOLDER,
    name: Name = "default",
    as_json: AsJson = False,
) -> None:
    """What participants have emitted: how far each sink is, and what of a checkpoint it has not got yet."""
    with opened(storage) as store:
        docs = unpublished(store, store.catalog.find(name, point))
    held = _held(storage, name)
    if as_json:
        print(json.dumps({"sinks": docs, "held": held}))
        return
    table = Table(title="output")
    for column in ("sink", "participant", "published", "waiting", "bytes", "since checkpoint"):
        table.add_column(column, justify="left" if column in ("sink", "participant") else "right")
    for doc in docs:
        since = "" if doc["since"] is None else str(doc["since"])
        figures = (doc["published"], doc["waiting"], doc["bytes"])
        table.add_row(doc["sink"], doc["participant"], *map(str, figures), since)
    console.print(table)
    for sink, why in held.items():
        console.print(f"{sink}: {why or 'being published'}", markup=False, highlight=False, soft_wrap=True)


def _held(storage: str, name: str) -> dict[str, str]:
    """Why something waits, as the running system says; nothing if none runs."""
    try:
        with connected(storage, name) as client:
            held: dict[str, str] = client.request("status")["output_held"]
            return held
    except NotRunning:
        return {}


def unpublished(store: Store, row: CheckpointRow) -> list[dict[str, Any]]:
    """For each sink and participant of a checkpoint that has emitted something, how far that is."""
    piles = [
        (sink, name, image.birth, records, next_number)
        for name, image in store.read_manifest(row).images.items()
        for sink, next_number, records in _piles(read_sections(store.blobs, image.ref)["calls"])
    ]
    lineages = {row.lineage, *(each.lineage for pile in piles for each in pile[3])}
    numbers = store.catalog.output(lineages)
    docs = []
    for sink, name, birth, records, next_number in piles:
        waiting = [
            each
            for each in records
            if each.number > numbers.get((sink, Origin(each.lineage, name, birth)), 0)
        ]
        docs.append(
            {
                "sink": sink,
                "participant": name,
                "birth": birth,
                "emitted": next_number - 1,
                "published": next_number - 1 - len(waiting),
                "waiting": len(waiting),
                "bytes": sum(len(each.body) for each in waiting),
                # One that is first in this very checkpoint does not know that yet.
                "since": (waiting[0].checkpoint or row.checkpoint) if waiting else None,
            }
        )
    return sorted(docs, key=lambda doc: (doc["sink"], doc["participant"]))


def _piles(raw: Any) -> list[tuple[str, int, list[Emitted]]]:
    doc = msgpack.unpackb(raw, strict_map_key=False, max_bin_len=len(raw), max_str_len=len(raw))
    return [
        (sink, next_number, [Emitted(*each) for each in records])
        for sink, next_number, records in doc.get("output", ())
    ]
