"""The verbs that carry checkpoints from store to store: export, import."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cutline.storage import open_store
from cutline.storage.export import export_cut
from cutline.storage.importing import (
    check_authentic,
    claim_source,
    import_cut,
    open_export,
    place_of_claim,
)

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, opened, plainly
from .cli_store import place_of
from .trials_report import shown_bytes

__all__ = ("export", "import_")


@app.command()
@plainly
def export(
    point: str,
    target: Annotated[Path, typer.Argument(help="A file, or a folder with --folder; not there yet.")],
    storage: Folder = FOLDER,
    name: Name = "default",
    folder: Annotated[bool, typer.Option("--folder", help="Make a folder instead of one file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint (an id, a label, or "newest") as one file or folder that can be carried anywhere."""
    with opened(storage) as store:
        exported = export_cut(store, store.catalog.find(name, point), target, folder=folder)
    if as_json:
        doc = {
            "export": exported.id,
            "checkpoint": place_of(exported.row.place),
            "label": exported.row.label,
            "participants": exported.participants,
            "bytes": exported.bytes,
            "path": str(target),
        }
        print(json.dumps(doc))
        return
    text = f"{exported.row}: {exported.participants} participants, {shown_bytes(exported.bytes)} in {target}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@app.command("import")
@plainly
def import_(
    source: Annotated[Path, typer.Argument(help="A file or folder that `cutline export` has made.")],
    storage: Folder = FOLDER,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="The system's name here; without it, as exported.")
    ] = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="The copy goes on in place of its source, not as a fork.")
    ] = False,
    told: Annotated[
        str | None, typer.Option("--source", help="With --claim: the store it came from, which is told.")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Also if it does not verify with a key that is here; it can make code run later."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read an exported checkpoint into a store, made if it is not there; opening it is a fork."""
    if told is not None and not claim:
        raise typer.BadParameter("--source is told of a claim: give --claim too")
    export = open_export(source)
    with ExitStack() as stack:
        origin = stack.enter_context(opened(told)) if told is not None else None
        store = stack.enter_context(open_store(storage, create=True))
        if not trust:
            # Before the source is told of a claim.
            check_authentic(store, export)
        answers = claim_source(origin, export, place_of_claim(store, export)) if origin is not None else []
        row = import_cut(store, export, name=name, claim=claim, trust=trust, answers=answers)
    if as_json:
        doc = {"checkpoint": place_of(row.place), "system": row.system, "claimed": claim, "told": told}
        print(json.dumps({**doc, "export": export.doc["export"], "label": row.label}))
        return
    console.print(f"imported as {row}", markup=False, highlight=False, soft_wrap=True)
    if claim and told is None:
        text = "the source was not told (--source STORE does): see to it that it does not go on"
        console.print(text, markup=False)
    # A copy owns nothing: also where it goes on in place of its source, nobody knows what that has done.
    text = (
        f"effects of the copy wait for a word: `cutline effects --name {row.system}` shows which,"
        " `cutline effects` at the source what has been done or begun of them there, and `cutline effects"
        f" --name {row.system} --allow` lets them run here, under other keys"
    )
    console.print(text, markup=False, highlight=False, soft_wrap=True)
