"""The verbs that look after a store: verify, rebuild-catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from cutline.errors import CheckpointNotFound, Misuse, StorageError, StoreInUse
from cutline.participant.processes import process_alive, process_started
from cutline.storage import CheckpointRow, Report, Store, locate
from cutline.storage.repair import rebuild_catalog

from .cli_app import FOLDER, AsJson, Folder, app, console, errors, opened, plainly

__all__ = ("rebuild", "verify")

SomeName = Annotated[str | None, typer.Option("--name", "-n", help="One system; without it, all of them.")]


def systems_of(store: Store, name: str | None) -> list[str]:
    """The systems that a verb is about. Raises CheckpointNotFound."""
    known = store.catalog.systems()
    if name is None:
        return known
    if name not in known:
        raise CheckpointNotFound(
            f"no system {name!r} in {store.url}; there are: {', '.join(known) or 'none'}"
        )
    return [name]


def place_of(place: tuple[str, int] | None) -> str | None:
    """A cut as it can be named on the command line."""
    return None if place is None else f"{place[0]}/{place[1]}"


# -- verify ------------------------------------------------------------------------------------------


@app.command()
@plainly
def verify(storage: Folder = FOLDER, name: SomeName = None, as_json: AsJson = False) -> None:
    """Read every stored byte again; name all that is damaged, and the newest whole checkpoint."""
    with opened(storage) as store:
        names = systems_of(store, name)
        sizes = _sizes(store, names)
        reports = {}
        with _bar(sum(sizes.values()), quiet=as_json) as advance:

            def told(row: CheckpointRow) -> None:
                advance(sum(sizes.pop(key, 0) for key in row.blobs))

            for system in names:
                reports[system] = store.verify(system, told)
        heads = {system: store.catalog.head_lineage(system) or "" for system in names}
    docs = {system: _report_doc(report, heads[system]) for system, report in reports.items()}
    if as_json:
        print(json.dumps(docs))
    else:
        for system, doc in docs.items():
            _tell_report(system, doc)
    if any(doc["faults"] for doc in docs.values()):
        raise typer.Exit(1)


def _sizes(store: Store, names: list[str]) -> dict[str, int]:
    """Bytes of each blob that is to be read; what is missing is found later."""
    keys = {key for name in names for row in store.catalog.checkpoints(name, damage=[]) for key in row.blobs}
    sizes = {}
    for key in keys:
        try:
            sizes[key] = store.blobs.size(key)
        except StorageError:
            sizes[key] = 0
    return sizes


@contextmanager
def _bar(total: int, *, quiet: bool) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=errors, disable=quiet or not errors.is_terminal) as progress:
        task = progress.add_task("reading", total=total)
        yield lambda size: progress.advance(task, size)


def _report_doc(report: Report, head: str) -> dict[str, Any]:
    return {
        "whole": [place_of(place) for place in report.whole],
        "damaged": {place_of(place): keys for place, keys in report.broken.items()},
        "faults": [
            {"key": fault.facts.get("key"), "checkpoint": fault.facts.get("checkpoint"), "text": str(fault)}
            for fault in report.faults
        ],
        "newest_whole": place_of(report.newest.get(head)),
        "newest_whole_by_lineage": {line: place_of(place) for line, place in report.newest.items()},
    }


def _tell_report(system: str, doc: dict[str, Any]) -> None:
    whole, damaged = len(doc["whole"]), len(doc["damaged"])
    say = console.print
    say(f"{system}: {whole} of {whole + damaged} checkpoints are whole", markup=False, highlight=False)
    for fault in doc["faults"]:
        say(f"  damaged: {fault['text']}", markup=False, highlight=False, soft_wrap=True)
    for place, keys in doc["damaged"].items():
        say(f"  checkpoint {place} lacks {', '.join(keys)}", markup=False, highlight=False, soft_wrap=True)
    newest = doc["newest_whole"] or "none: nothing can be restored"
    say(f"  newest whole checkpoint: {newest}", markup=False, highlight=False)


# -- rebuild-catalog ---------------------------------------------------------------------------------


@app.command("rebuild-catalog")
@plainly
def rebuild(
    store: Annotated[str, typer.Argument(help="The storage folder, or its URL.")] = FOLDER,
    force: Annotated[bool, typer.Option("--force", help="Also if the catalog of a folder is whole.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Also from records that do not verify with a key that is here.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a lost or damaged catalog again from the manifests and commit records; name what is left out."""
    location = locate(store)
    if location.kind == "folder":
        _refuse_a_living_owner(location.path)
    found = rebuild_catalog(location.url, force=force, trust=trust)
    doc = {
        "systems": {
            system: {"lineages": len(lines), "checkpoints": [place_of(row.place) for row in rows]}
            for system, (lines, rows) in found.systems.items()
        },
        "left_out": found.left_out,
        "damaged": found.damaged,
    }
    if as_json:
        print(json.dumps(doc))
        return
    for system, (lines, rows) in found.systems.items():
        text = f"{system}: {len(rows)} checkpoints in {len(lines)} lineages are in the catalog again"
        console.print(text, markup=False, highlight=False)
    for text in (*(f"left out: {text}" for text in found.left_out), *found.damaged):
        console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)
    lost = "labels given or taken later, failure counts, claims of copies and horizons"
    console.print(f"{lost} were not recorded", markup=False)


def _refuse_a_living_owner(folder: Path) -> None:
    """A catalog that is lost cannot say who has it; the endpoint file of a running system can."""
    if not folder.is_dir():
        raise Misuse(f"{folder} is no folder")
    for path in folder.glob("endpoint-*.json"):
        try:
            pid = int(json.loads(path.read_text())["pid"])
            alive = process_alive(pid, process_started(pid))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if alive:
            raise StoreInUse(
                f"{folder} is in use: {path.name} names process {pid}, which runs; stop that system"
                " first, or remove the file if that is some other program",
                pid=pid,
            )
