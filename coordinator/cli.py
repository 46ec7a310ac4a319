"""The command line; ``cutline --help`` lists the verbs.

Reading verbs (`list`, `show`) read the storage folder and work with or without a running system;
`checkpoint`, `savepoint` and `stop` talk to the running one through its endpoint file. Verbs over a store as
a whole are in `cli_store`. Errors end with status 1 and one line.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cutline.errors import CutlineError
from cutline.participant.state_tree import Bounds

from .cli_app import FOLDER, AsJson, Folder, Name, app, console, errors, opened, plainly
from .cli_state import print_participant, state_doc
from .client import connected
from .demo import FOLDER as DEMO_FOLDER
from .demo import DemoOptions, run_demo
from .simulate import run_simulation
from .sinks import publish_the_rest
from .team_demo import TOPICS, TeamOptions, run_team
from .trials import Trials, run_trials
from .trials_report import print_trials, shown_bytes, shown_seconds

__all__ = ("main", "app")


@app.command()
@plainly
def checkpoint(storage: Folder = FOLDER, name: Name = "default") -> None:
    """Take a checkpoint of the running system now."""
    with connected(storage, name) as client:
        print(f"checkpoint {client.request('checkpoint')['checkpoint']} committed")


@app.command()
@plainly
def savepoint(label: str, storage: Folder = FOLDER, name: Name = "default") -> None:
    """Take a labelled, self-contained checkpoint that is kept until it is deleted."""
    with connected(storage, name) as client:
        number = client.request("savepoint", label=label)["checkpoint"]
        print(f"savepoint {label} committed as checkpoint {number}")


@app.command()
@plainly
def stop(storage: Folder = FOLDER, name: Name = "default") -> None:
    """Take a last checkpoint and stop the running system."""
    with connected(storage, name) as client:
        try:
            # Calls that are under way are let come to their end.
            client.request("rest_effects", seconds=15.0)
            client.request("checkpoint")
            publish_the_rest(client.request, print, 30.0)
        except CutlineError as error:
            errors.print(f"no last checkpoint: {error}", markup=False, highlight=False)
        number = client.request("stop")["checkpoint"]
        print(f"stopped at checkpoint {number}")


@app.command("list")
@plainly
def list_(
    storage: Folder = FOLDER,
    name: Name = "default",
    as_json: AsJson = False,
) -> None:
    """The committed checkpoints of a system, oldest first."""
    with opened(storage) as store:
        rows = store.catalog.checkpoints(name)
        there = "" if rows else ", ".join(store.catalog.systems())
    if there:
        errors.print(
            f"no checkpoints of system {name!r}; in {store.url} there are: {there} (choose with --name)",
            markup=False,
            highlight=False,
        )
    if as_json:
        print(json.dumps([_row_doc(row) for row in rows]))
        return
    print_checkpoints(rows, store.url)


def print_checkpoints(rows: list[Any], place: str) -> None:
    """The table of checkpoints that people see."""
    table = Table(title=f"checkpoints in {place}")
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
    console.print(table)


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


# Why arrays do not go by the kernel's account; see `RegionTracker.reasons`.
_WHYS = {
    "chosen": "as chosen",
    "account": "the kernel gives no account here",
    "memory": "no account of this memory",
    "moves": "moves each time",
    "changes": "nearly all changes",
}


def _tracked(summary: dict[str, Any], participant: str) -> str:
    """Bytes of a participant's arrays by the way in which their changes were found, with the reasons."""
    whys = summary.get("why", {}).get(participant, {})
    shown = []
    for way, size in sorted(summary.get("tracked", {}).get(participant, {}).items()):
        words = ", ".join(_WHYS.get(why, why) for why in whys.get(way, ()))
        shown.append(f"{way} {shown_bytes(size)}{f' ({words})' if words else ''}")
    return ", ".join(shown)


@app.command()
@plainly
def show(
    point: str,
    storage: Folder = FOLDER,
    name: Name = "default",
    as_json: AsJson = False,
    participant: Annotated[
        str | None, typer.Option("--participant", "-p", help="Show this one's state, as a tree.")
    ] = None,
    depth: Annotated[int, typer.Option(min=0, help="Of the state, so many levels.")] = 4,
    width: Annotated[int, typer.Option(min=1, help="Of each object, so many parts.")] = 20,
    trust: Annotated[
        bool, typer.Option("--trust", help="Show a state also if the key of the store is not here.")
    ] = False,
) -> None:
    """One checkpoint (an id, a label, or "newest"), or with --participant a state; none of your code runs."""
    with opened(storage) as store:
        if participant is not None:
            state = state_doc(store, name, point, participant, Bounds(depth, width), trust=trust)
            if as_json:
                print(json.dumps(state))
            else:
                print_participant(state)
            return
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
            console.print(f"{key:>20}  {value}", markup=False, highlight=False)
    table = Table(title="images")
    for column in ("participant", "kind", "written", "packs", "handled", "arrays tracked", "in Maps"):
        left = column in ("participant", "kind", "arrays tracked", "in Maps")
        table.add_column(column, justify="left" if left else "right")
    for participant, image in doc["images"].items():
        handled = row.summary.get("handled", {}).get(participant, "")
        tracked = _tracked(row.summary, participant)
        held = row.summary.get("containers", {}).get(participant)
        table.add_row(
            participant,
            image["kind"],
            shown_bytes(image["bytes"]),
            str(image["packs"]),
            str(handled),
            tracked,
            "" if held is None else f"{held['entries']:,}, {held['checked']:,} checked",
        )
    console.print(table)


@app.command()
@plainly
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
    agents: Annotated[
        bool, typer.Option("--agents", help="Another one: a team that pays and asks, killed at random.")
    ] = False,
    deaths: Annotated[int, typer.Option(min=0, help="With --agents: how many kills.")] = 20,
    topics: Annotated[int, typer.Option(min=1, max=len(TOPICS), help="With --agents: sections.")] = len(
        TOPICS
    ),
    seed: Annotated[int | None, typer.Option(help="With --agents: when who is killed.")] = None,
    break_mode: Annotated[
        str,
        typer.Option(
            "--break",
            help="Break Cutline on purpose: drop-channel-state, forget-dedup, skip-participant.",
        ),
    ] = "",
) -> None:
    """Read the standard library with eight agents, killing some; compare with one single process."""
    if agents:
        raise typer.Exit(run_team(TeamOptions(storage or DEMO_FOLDER, deaths, topics, seed, as_json)))
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
@plainly
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
    as_json: AsJson = False,
) -> None:
    """Run your own program without and with checkpoints: overhead, stall, bytes, and a suggested interval."""
    trials = Trials(program, arguments or (), rounds, interval, hours, storage)

    def told(side: str, seconds: float) -> None:
        errors.print(f"{side} checkpoints: {shown_seconds(seconds)}", highlight=False)

    document = run_trials(trials, told)
    if as_json:
        print(json.dumps(document))
    else:
        print_trials(document, console)


@app.command()
@plainly
def simulate(
    seed: Annotated[int, typer.Option(help="Which schedule.")],
    trace: Annotated[bool, typer.Option("--trace", help="Print what happens, a line each.")] = False,
) -> None:
    """Run one simulated schedule of the whole system again (in a source checkout)."""
    raise typer.Exit(run_simulation(seed, print if trace else None))


_FAMILIES = "store effects people output gc compare move key doctor check edit fork"
for _family in _FAMILIES.split():
    import_module(f"cutline.coordinator.cli_{_family}")


def main() -> None:
    """Entry of the ``cutline`` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
