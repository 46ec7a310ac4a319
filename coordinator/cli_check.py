"""`cutline check`: what would come of restoring a checkpoint with another program, before it is deployed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, errors

__all__ = ("check",)

_CANNOT = 2


@app.command()
def check(
    point: str,
    against: Annotated[
        list[str],
        typer.Option(
            "--against",
            help="A module of the program (module[:NAME]), or its script (app.py); may be repeated.",
        ),
    ],
    storage: Folder = FOLDER,
    name: Name = "default",
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="As of cutline.start; may be repeated.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Also if the store's key is not here: it can make code run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Whether a program can restore a checkpoint: all that would fail, and what would be migrated.

    A process of its own imports the modules and takes up every participant, without handling anything, and
    writes nothing. Status 0: it fits; 1: it does not; 2: it cannot be told.
    """
    spec = {
        "point": point,
        "storage": storage,
        "name": name,
        "against": against,
        "allow": allow or None,
        "trust": trust,
    }
    report = _asked(spec)
    if as_json:
        print(json.dumps(report))
    else:
        _tell(report)
    raise typer.Exit(0 if report["fits"] else 1)


def _asked(spec: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "cutline.coordinator.checking"]
    done = subprocess.run(command, input=json.dumps(spec), stdout=subprocess.PIPE, text=True)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": f"the process that imports the program ended with status {done.returncode}"}
    if "error" in answer:
        text = f"cutline: {answer['error']}"
        errors.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(_CANNOT)
    report: dict[str, Any] = answer["report"]
    return report


def _tell(report: dict[str, Any]) -> None:
    verdict = "can be restored" if report["fits"] else "cannot be restored"
    table = Table(title=f"{report['checkpoint']} of {report['system']} {verdict}")
    for column in ("participant", "class", "migrations", "problems"):
        table.add_column(column, justify="right" if column == "problems" else "left")
    for name, doc in report["participants"].items():
        kind = doc["class"] if doc["now"] in (None, doc["class"]) else f"{doc['class']} -> {doc['now']}"
        migrations = ", ".join(
            f"{each['objects']} {each['name']} {each['found']} -> {each['wanted']}"
            for each in doc["migrations"]
        )
        table.add_row(Text(name), Text(kind), Text(migrations), str(len(doc["problems"])))
    console.print(table)
    for name, doc in report["participants"].items():
        for problem in doc["problems"]:
            text = f"{name}: {problem['text']}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
