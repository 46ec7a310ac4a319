"""``cutline fork``: a system of its own that begins at a checkpoint of another one."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, plainly
from .edits import named_function
from .forks import DROP
from .forks import fork as make

__all__ = ("fork",)


@app.command()
@plainly
def fork(
    point: str,
    storage: Folder = FOLDER,
    name: Name = "default",
    to: Annotated[str | None, typer.Option(help="The fork's name; without it, one is made up.")] = None,
    effects: Annotated[str, typer.Option(help="block, recorded or live.")] = "block",
    inputs: Annotated[str, typer.Option(help="replay or drop: what the origin was sent since.")] = DROP,
    function: Annotated[
        str | None, typer.Option(help="MODULE:FUNCTION that changes the loaded checkpoint.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Of the fork's first checkpoint, which then stays.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a system of its own of a checkpoint (id, label, or "newest"); the origin goes on untouched."""
    # As `python -m` does: the user's modules are where the command is given.
    sys.path.insert(0, os.getcwd())
    edit = None if function is None else named_function(function)
    made = make(point, storage, name=name, to=to, effects=effects, inputs=inputs, edit=edit, label=label)
    if as_json:
        doc = {"checkpoint": made.point, "system": made.system, "label": label, "changed": list(made.changed)}
        print(json.dumps(doc))
        return
    text = f"system {made.system!r} begins at {made.point}; start it by that name"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
