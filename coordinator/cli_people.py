"""``cutline pending``, ``answer``, ``suspend``: what participants ask people, what these say, and waiting."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, opened, plainly
from .client import connected
from .people import Question, answered, asked
from .suspending import SOONER, free_label, suspended_cut, wait_until_still

__all__ = ("answer", "pending", "suspend")


@app.command()
@plainly
def pending(
    place: Annotated[
        str | None,
        typer.Argument(
            help="A checkpoint (an id, a label): what was open there. Or the storage folder, or URL."
        ),
    ] = None,
    storage: Folder = FOLDER,
    name: Name = "default",
    as_json: AsJson = False,
) -> None:
    """Questions to people that wait for an answer; no process of the system need run."""
    if place is not None and (Path(place).is_dir() or "://" in place):
        storage, point = place, None
    else:
        point = place
    with opened(storage) as store:
        found = asked(store, name, point)
    found = [each for each in found if point is not None or each.state == "open"]
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in found]))
    else:
        _show(found)


def _show(found: list[Question]) -> None:
    table = Table(title="questions to people")
    for column in ("question", "asked", "schema", "deadline", "state"):
        table.add_column(column)
    for each in found:
        wanted = json.dumps(each.schema, ensure_ascii=False) if each.schema else "anything"
        until = "" if each.deadline is None else _moment(each.deadline)
        table.add_row(each.id, each.text, wanted, until, each.state)
    console.print(table)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


@app.command()
@plainly
def answer(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[STORE] QUESTION VALUE",
            help="The question's id, and the answer: JSON where that fits, else the text as it stands.",
        ),
    ],
    storage: Folder = FOLDER,
    name: Name = "default",
    as_json: AsJson = False,
) -> None:
    """Answer a question to a person, whether the system runs or not; recorded when this returns."""
    if len(words) not in (2, 3):
        raise typer.BadParameter("give the question's id and the answer; quote an answer of several words")
    question, value = words[-2:]
    with opened(words[0] if len(words) == 3 else storage) as store:
        given: Any = answered(store, name, question, value, is_text=True)
    if as_json:
        print(json.dumps(dataclasses.asdict(given)))
    else:
        console.print(f"{question} is answered", markup=False, highlight=False)


@app.command()
@plainly
def suspend(
    label: Annotated[
        str | None, typer.Argument(help="Of the savepoint; usually suspended-1 and so on.")
    ] = None,
    storage: Folder = FOLDER,
    name: Name = "default",
    when_waiting: Annotated[
        bool, typer.Option("--when-waiting", help="When it waits for people and timers alone.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds that this is waited for.")] = None,
) -> None:
    """Take a savepoint and end every process of the running system; starting its program goes on from it."""
    with connected(storage, name) as client:
        if when_waiting:
            wait_until_still(client.request, timeout, SOONER)
        if label is None:
            with opened(storage) as store:
                label = free_label(row.label for row in store.catalog.checkpoints(name))
        with opened(storage) as store:
            number = suspended_cut(client.request, print, store, name, label).checkpoint
        client.request("stop")
    print(f"suspended at checkpoint {number}, savepoint {label}")
