"""What the environment tells `cutline.start`, for programs that nobody wants to edit.

=================  ==================================================================================
CUTLINE_STORAGE    the storage folder or URL, whatever the program passes
CUTLINE_INTERVAL   seconds between checkpoints, or ``off``: only those that are asked for
CUTLINE_TRACKING   how changes in large arrays are found: ``auto``, ``kernel`` or ``hash``; see
                   `cutline.actor`
CUTLINE_PERSISTER  what writes large images: ``process``, one on each machine, or ``thread``, each
                   participant in its own
CUTLINE_REPORT     a file; each system appends a line of JSON to it when it stops: how long it ran and
                   what its checkpoints cost
=================  ==================================================================================

`cutline bench` runs programs with all three.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cutline.errors import Misuse, StoreNotWritable
from cutline.participant.persist_client import chosen_persister
from cutline.participant.tracking import chosen_tracking, insist
from cutline.storage import locate, store_home

__all__ = (
    "INTERVAL",
    "REPORT",
    "STORAGE",
    "Report",
    "Told",
    "chosen_runtime",
    "chosen_store",
    "told_by_environment",
)

STORAGE = "CUTLINE_STORAGE"
INTERVAL = "CUTLINE_INTERVAL"
REPORT = "CUTLINE_REPORT"
_OFF = "off"


class Told(NamedTuple):
    """Storage and interval that count, and where to report to."""

    storage: str
    interval: float | None
    report: str


def told_by_environment(
    storage: str | os.PathLike[str], interval: float | None, environment: Mapping[str, str] = os.environ
) -> Told:
    """What the program passed, and what the environment puts in its place.

    Raises:
        Misuse: CUTLINE_INTERVAL is neither a number of seconds nor ``off``.
        RefusedOption: CUTLINE_TRACKING names no way of tracking, or one that is not to be had here;
            CUTLINE_PERSISTER names nothing that writes images.
    """
    insist(chosen_tracking(None, environment))
    chosen_persister(environment)
    text = environment.get(INTERVAL, "")
    if text:
        interval = None if text == _OFF else _seconds(text)
    return Told(environment.get(STORAGE) or os.fspath(storage), interval, environment.get(REPORT, ""))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Misuse(
            f"the environment variable {INTERVAL} is a number of seconds, or {_OFF!r}; it is {text!r}"
        )
    return seconds


class Report:
    """What one system writes when it stops. Its clock runs from here, when the system is up."""

    def __init__(self, path: str, system: str, interval: float | None, notices: Sequence[Mapping[str, Any]]):
        self.path = path
        self.system = system
        self.interval = interval
        self._notices = notices
        self._before = len(notices)
        self._began = time.monotonic()

    def write(self) -> None:
        """Appends the line, if a report is wanted; called before the last checkpoint.

        Raises:
            StoreNotWritable: the file cannot be written.
        """
        if not self.path:
            return
        seconds = time.monotonic() - self._began
        happened = self._notices[self._before :]
        line = {
            "system": self.system,
            "interval": self.interval,
            "seconds": seconds,
            "checkpoints": [_figures(notice) for notice in happened if notice["what"] == "committed"],
            "aborted": sum(notice["what"] == "aborted" for notice in happened),
            "recovered": sum(notice["what"] == "recovered" and bool(notice["causes"]) for notice in happened),
        }
        try:
            with Path(self.path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise StoreNotWritable(f"{REPORT}: {self.path}: {error.strerror}", path=self.path) from error


def _figures(notice: Mapping[str, Any]) -> dict[str, Any]:
    summary = notice["summary"]
    wanted = (
        "participants",
        "changed_bytes",
        "written_bytes",
        "state_bytes",
        "stall_ms_max",
        "detect_ms_max",
        "capture_delay_ms",
        "duration_ms",
        "in_flight_messages",
    )
    return {"id": notice["checkpoint"], "full": notice["full"], **{key: summary[key] for key in wanted}}


def chosen_store(storage: str) -> dict[str, str]:
    """What a launch says of the store: its URL, and the folder of what is not part of it (`store_home`).

    Raises:
        RefusedOption: the URL cannot be meant, or not for a running system.
    """
    return {"store": locate(storage).url, "home": str(store_home(storage))}


def chosen_runtime(wanted: str | None) -> str:
    """What participants run in: what was asked for, else Ray if the program has connected to it."""
    if wanted is None:
        ray = sys.modules.get("ray")
        return "ray" if ray is not None and ray.is_initialized() else "process"
    if wanted not in ("process", "ray"):
        raise Misuse(f'runtime is "process" or "ray"; got {wanted!r}')
    return wanted
