"""The command line: ``cutline demo | bench | simulate | checkpoint | savepoint | list | show | stop``.

Reading commands (`list`, `show`) read the storage folder and work with or without a running system; the
others talk to the running one through its endpoint file. Errors end with status 1 and one line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cutline.errors import CutlineError, NotAStore
from cutline.storage import Store, open_store

from .client import Client
from .demo import DemoOptions, run_demo
from .simulate import run_simulation
from .trials import Trials, run_trials
from .trials_report import print_trials, shown_bytes, shown_seconds

__all__ = ("main", "app")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Consistent global checkpoints of running multi-agent systems.",
)
Folder = Annotated[Path, typer.Option("--storage", "-s", help="The storage folder.")]
Name = Annotated[str, typer.Option("--name", "-n", help="The system's name.")]
_FOLDER = Path("./checkpoints")
_console = Console()
_errors = Console(stderr=True)


def _plainly(command: Callable[..., Any]) -> Callable[..., Any]:
    """Errors that say what to do need no traceback."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (CutlineError, TimeoutError) as error:
            _errors.print(f"cutline: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(1) from error

    return wrapped


def _store(folder: Path) -> Store:
    try:
        return open_store(str(folder.absolute()), create=False)
    except NotAStore:
        raise NotAStore(f"{folder} holds no checkpoints; name the storage folder with --storage") from None


@app.command()
@_plainly
def checkpoint(storage: Folder = _FOLDER, name: Name = "default") -> None:
    """Take a checkpoint of the running system now."""
    with Client(storage.absolute(), name) as client:
        print(f"checkpoint {client.request('checkpoint')['checkpoint']} committed")


@app.command()
@_plainly
def savepoint(label: str, storage: Folder = _FOLDER, name: Name = "default") -> None:
    """Take a labelled, self-contained checkpoint that is kept until it is deleted."""
    with Client(storage.absolute(), name) as client:
        number = client.request("savepoint", label=label)["checkpoint"]
        print(f"savepoint {label} committed as checkpoint {number}")


@app.command()
@_plainly
def stop(storage: Folder = _FOLDER, name: Name = "default") -> None:
    """Take a last checkpoint and stop the running system."""
    with Client(storage.absolute(), name) as client:
        try:
            client.request("checkpoint")
        except CutlineError as error:
            _errors.print(f"no last checkpoint: {error}", markup=False, highlight=False)
        number = client.request("stop")["checkpoint"]
        print(f"stopped at checkpoint {number}")


@app.command("list")
@_plainly
def list_(
    storage: Folder = _FOLDER,
    name: Name = "default",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """The committed checkpoints of a system, oldest first."""
    catalog = _store(storage).catalog
    rows = catalog.checkpoints(name)
    if not rows and catalog.systems():
        there = ", ".join(catalog.systems())
        _errors.print(
            f"no checkpoints of system {name!r}; in {storage} there are: {there} (choose with --name)",
            markup=False,
            highlight=False,
        )
    if as_json:
        print(json.dumps([_row_doc(row) for row in rows]))
        return
    print_checkpoints(rows, storage)


def print_checkpoints(rows: list[Any], storage: Path) -> None:
    """The table of checkpoints that people see."""
    table = Table(title=f"checkpoints in {storage}")
    for column in (
        "id",
        "lineage",
        "kind",
        "label",
        "taken",
        "participants",
        "in flight",
        "written",
        "stall",
    ):
        table.add_column(column, justify="left" if column in ("lineage", "kind", "label") else "right")
    for row in rows:
        facts = row.summary
        table.add_row(
            str(row.checkpoint),
            row.lineage[:8],
            row.kind,
            row.label or "",
            time.strftime("%H:%M:%S", time.localtime(row.decided_at)),
            str(facts.get("participants", "")),
            str(facts.get("in_flight_messages", "")),
            shown_bytes(facts.get("written_bytes", 0)),
            f"{facts.get('stall_ms_max', 0.0):.1f} ms",
        )
    _console.print(table)


def _row_doc(row: Any) -> dict[str, Any]:
    return {
        "id": row.checkpoint,
        "lineage": row.lineage,
        "kind": row.kind,
        "label": row.label,
        "epoch": row.epoch,
        "begun_at": row.begun_at,
        "decided_at": row.decided_at,
        **{key: value for key, value in row.summary.items() if key != "extra"},
    }


@app.command()
@_plainly
def show(
    point: str,
    storage: Folder = _FOLDER,
    name: Name = "default",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """One checkpoint: an id, a label, or "newest"."""
    store = _store(storage)
    row = store.catalog.find(name, point)
    manifest = store.read_manifest(row)
    doc = {
        **_row_doc(row),
        "parent": list(row.parent) if row.parent else None,
        "manifest": (row.manifest_digest or b"").hex(),
        "images": {
            participant: {
                "birth": image.birth,
                "kind": image.ref.kind,
                "bytes": image.ref.size,
                "packs": len(image.ref.chain),
            }
            for participant, image in manifest.images.items()
        },
    }
    if as_json:
        print(json.dumps(doc))
        return
    for key, value in doc.items():
        if key != "images":
            _console.print(f"{key:>20}  {value}", markup=False, highlight=False)
    table = Table(title="images")
    for column in ("participant", "kind", "written", "packs", "handled"):
        table.add_column(column, justify="left" if column in ("participant", "kind") else "right")
    for participant, image in doc["images"].items():
        handled = row.summary.get("handled", {}).get(participant, "")
        table.add_row(
            participant, image["kind"], shown_bytes(image["bytes"]), str(image["packs"]), str(handled)
        )
    _console.print(table)


@app.command()
@_plainly
def demo(
    storage: Annotated[
        Path | None, typer.Option("--storage", "-s", help="Where to keep checkpoints.")
    ] = None,
    files: Annotated[int, typer.Option(help="How many source files to read; 0: all.")] = 0,
    passes: Annotated[int, typer.Option(help="How often each file is studied.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on the last line.")] = False,
    kills: Annotated[bool, typer.Option(help="Kill two participants and the coordinator on the way.")] = True,
    savepoint: Annotated[str | None, typer.Option(help="Take a savepoint half way and stop there.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on from a savepoint of an earlier demo.")] = None,
    runtime: Annotated[str, typer.Option(help="process or ray.")] = "process",
    break_mode: Annotated[
        str,
        typer.Option(
            "--break",
            help="Break Cutline on purpose: drop-channel-state, forget-dedup, skip-participant.",
        ),
    ] = "",
) -> None:
    """Read the standard library with eight agents, killing some; compare with one single process."""
    options = DemoOptions(
        storage=storage,
        files=files,
        passes=passes,
        as_json=as_json,
        kills=kills,
        savepoint=savepoint,
        resume=resume,
        break_mode=break_mode,
        runtime=runtime,
    )
    raise typer.Exit(run_demo(options))


@app.command()
@_plainly
def bench(
    program: Annotated[Path, typer.Argument(help="A Python program that calls cutline.start.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments, after --.")] = None,
    rounds: Annotated[int, typer.Option(help="How often it is run without and with checkpoints.")] = 3,
    interval: Annotated[
        float | None, typer.Option(help="Seconds between checkpoints; without it, what the program passes.")
    ] = None,
    hours: Annotated[
        float, typer.Option(help="Hours between two losses of a process that you expect.")
    ] = 24.0,
    storage: Annotated[
        Path, typer.Option("--storage", "-s", help="Where the runs keep checkpoints while they last.")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Run your own program without and with checkpoints: overhead, stall, bytes, and a suggested interval."""
    trials = Trials(program, arguments or (), rounds, interval, hours, storage)

    def told(side: str, seconds: float) -> None:
        _errors.print(f"{side} checkpoints: {shown_seconds(seconds)}", highlight=False)

    document = run_trials(trials, told)
    if as_json:
        print(json.dumps(document))
    else:
        print_trials(document, _console)


@app.command()
@_plainly
def simulate(
    seed: Annotated[int, typer.Option(help="Which schedule.")],
    trace: Annotated[bool, typer.Option("--trace", help="Print what happens, a line each.")] = False,
) -> None:
    """Run one simulated schedule of the whole system again (in a source checkout)."""
    raise typer.Exit(run_simulation(seed, print if trace else None))


def main() -> None:
    """Entry of the ``cutline`` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
