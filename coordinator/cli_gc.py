"""``cutline gc``: gives up checkpoints by count and age, and removes what nobody needs any more."""

from __future__ import annotations

import json
import re
import time
from typing import Annotated, Any

import typer

from cutline.errors import RefusedOption
from cutline.storage.retention import Policy
from cutline.storage.tending import gc as collect
from cutline.storage.tending import planned

from .cli_app import FOLDER, AsJson, Folder, app, console, opened, plainly
from .cli_store import SomeName, place_of, systems_of
from .trials_report import shown_bytes

__all__ = ("gc", "seconds_of")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "": 1}


@app.command()
@plainly
def gc(
    storage: Folder = FOLDER,
    name: SomeName = None,
    keep_last: Annotated[int, typer.Option(min=1, help="Of each lineage, the newest so many.")] = 10,
    keep_for: Annotated[str, typer.Option(help="And all that are younger: 12h, 7d, 4w.")] = "",
    thin: Annotated[
        list[str] | None,
        typer.Option(help="And one for each EVERY up to an age of UPTO, as EVERY:UPTO. Can be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give up old checkpoints (never labelled ones, nor the newest whole one) and remove their bytes."""
    policy = Policy(keep_last, seconds_of(keep_for) if keep_for else 0.0, tuple(map(_period, thin or ())))
    docs: dict[str, Any] = {}
    with opened(storage) as store:
        for system in systems_of(store, name):
            if dry_run:
                plan, done = planned(store, system, policy, time.time()), None
            else:
                plan, done = collect(store, system, policy, time.time())
            removed = list(plan.removed) if done is None else done.removed
            given_up = [row.place for row in plan.given_up] if done is None else done.given_up
            docs[system] = {
                "given_up": [place_of(place) for place in given_up],
                "kept": [place_of(row.place) for row in plan.kept],
                "blobs": len(removed),
                "bytes": sum(plan.removed.get(key, 0) for key in removed),
                "dry_run": dry_run,
            }
    if as_json:
        print(json.dumps(docs))
        return
    for system, doc in docs.items():
        would = "would go" if dry_run else "gone"
        text = (
            f"{system}: {len(doc['given_up'])} checkpoints {would}, {len(doc['kept'])} stay;"
            f" {doc['blobs']} blobs with {shown_bytes(doc['bytes'])} {would}"
        )
        console.print(text, markup=False, highlight=False)
        for place in doc["given_up"]:
            console.print(f"  {place}", markup=False, highlight=False)


def seconds_of(text: str) -> float:
    """An age such as 90s, 15m, 12h, 7d, 4w. Raises RefusedOption."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip())
    if not found or not float(found[1]):
        raise RefusedOption(f"{text!r} is no length of time: write a number and s, m, h, d or w, such as 12h")
    return float(found[1]) * _UNITS[found[2]]


def _period(text: str) -> tuple[float, float]:
    every, colon, upto = text.partition(":")
    if not colon:
        raise RefusedOption(f"{text!r}: write --thin EVERY:UPTO, such as 1h:2d (one an hour for two days)")
    return seconds_of(every), seconds_of(upto)
