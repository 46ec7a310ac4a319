"""``cutline edit``: a fork of a checkpoint with changed states."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from cutline.errors import Misuse

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, plainly
from .edits import assign, named_function
from .loading import load

__all__ = ("edit",)


@app.command()
@plainly
def edit(
    point: str,
    storage: Folder = FOLDER,
    name: Name = "default",
    participant: Annotated[str | None, typer.Option("--participant", "-p", help="Whose state.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help='PATH=JSON: cash=5, book.orders["o1"]=2. Can be repeated.'),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(help="MODULE:FUNCTION that changes the instance; without --participant the whole cut."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Of the new checkpoint, which then stays.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Names that the states may name, and nothing else. Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fork a checkpoint (an id, a label, or "newest") with changed states; the old one stays as it is."""
    if not (assignments or function):
        raise typer.BadParameter("say what to change: --set PATH=JSON, or --function MODULE:FUNCTION")
    if assignments and participant is None:
        raise typer.BadParameter("--set needs --participant")
    # As `python -m` does: the user's modules are where the command is given.
    sys.path.insert(0, os.getcwd())
    only = None if participant is None else [participant]
    cut = load(point, storage, name=name, only=only, allow=allow)
    change = named_function(function) if function is not None else None
    if participant is None:
        assert change is not None
        _refuse_result(change(cut), function)
    else:
        for text in assignments or ():
            assign(cut[participant], text)
        if change is not None:
            _refuse_result(change(cut[participant]), function)
    made = cut.fork(label)
    suspended = {each.name: len(each.suspended) for each in cut.participants.values() if each.suspended}
    touched = {name: suspended[name] for name in made.changed if name in suspended}
    if as_json:
        doc = {"checkpoint": made.point, "label": label, "changed": list(made.changed), "suspended": touched}
        print(json.dumps(doc))
        return
    console.print(
        f"{made.point} forks {cut!r}, changed: {', '.join(made.changed)}", markup=False, soft_wrap=True
    )
    for each, count in touched.items():
        text = f"{each} has {count} suspended calls: they are run again from the top, over the changed state"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _refuse_result(result: object, function: str | None) -> None:
    if result is not None:
        raise Misuse(
            f"--function {function}: it is to change the instance that it is given and to return nothing; it "
            f"returned {result!r:.80}"
        )
