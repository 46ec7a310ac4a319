"""The verb that looks at this machine: `cutline doctor`."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from typing import Any

from rich.table import Table

from cutline.participant.persist_client import persister_here
from cutline.participant.tracking import chosen_tracking, tracking_here

from .cli_app import AsJson, app, console, plainly

__all__ = ("doctor",)

_PACKAGES = ("numpy", "ray", "grpcio", "obstore", "psycopg", "torch")


@app.command()
@plainly
def doctor(as_json: AsJson = False) -> None:
    """What this machine offers: how changes in large arrays are found here, and which packages are there."""
    doc = _findings()
    if as_json:
        print(json.dumps(doc))
        return
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    tracking = doc["tracking"]
    found = {
        "kernel": "by the kernel's account of written pages: a capture costs what changed",
        "hash": "by hashing all of them at each capture",
    }[tracking["way"]]
    table.add_row("changes in arrays", found)
    if tracking["reason"]:
        table.add_row("why not by the kernel", tracking["reason"])
    if tracking["chosen"] != "auto":
        table.add_row("CUTLINE_TRACKING", tracking["chosen"])
    persister = doc["persister"]
    written = {
        "process": "by a process of their own, one on each machine",
        "thread": "by a thread of each participant",
    }[persister["way"]]
    table.add_row("large images are written", written)
    if persister["reason"]:
        table.add_row("why not by a process", persister["reason"])
    table.add_row("machine", f"{doc['machine']}, {doc['cores']} cores")
    table.add_row("kernel", doc["kernel"])
    table.add_row("Python", doc["python"])
    for name, version in doc["packages"].items():
        table.add_row(name, version or "not installed")
    console.print(table)


def _findings() -> dict[str, Any]:
    here, reason = tracking_here()
    chosen = chosen_tracking(None)
    return {
        "tracking": {"way": "hash" if chosen == "hash" else here, "chosen": chosen, "reason": reason},
        "persister": dict(zip(("way", "reason"), persister_here(), strict=True)),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
