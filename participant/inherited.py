"""Inputs that a fork is given: what the ingress log of its origin has behind the point where it forked off.

They are copied when the fork is made, into a log of the lineage that nobody runs; whoever opens the fork
copies them into its own log before anything else, so that it delivers them as after a recovery. The origin's
files are only read: it may run, and append to them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from cutline.errors import Misuse

from .ingress import IngressLog
from .ingress_segment import segment_path, segments_of

__all__ = ("drop_inputs", "inherit", "inputs_after", "log_of", "put_inputs")


def log_of(home: Path, lineage: str) -> Path:
    """The ingress log of a lineage."""
    return home / "ingress" / f"{lineage}.log"


def inputs_after(home: Path, lineage: str, index: int, key: bytes) -> list[list[Any]]:
    """The records of a lineage's log behind one, without their numbers.

    Raises:
        Misuse: the log is not here, or has forgotten some of them.
        Corrupt, NotAuthentic: it is damaged.
    """
    path = log_of(home, lineage)
    with tempfile.TemporaryDirectory(prefix="cutline-") as folder:
        # Of a copy: the log itself is locked by the driver that writes it, and its end may be half written.
        copy = _copied(path, Path(folder))
        if copy is None:
            raise Misuse(
                f'inputs="replay": the ingress log of lineage {lineage} is not in {path.parent}: fork where '
                'the program of the origin ran, or without its inputs: inputs="drop"'
            )
        log = IngressLog(copy, key)
        try:
            if index < log.last and index + 1 < log.first:
                raise Misuse(
                    f'inputs="replay": of the inputs behind that checkpoint the ingress log {path} has '
                    "forgotten the first ones, because no recovery needs them any more: fork a newer "
                    'checkpoint, or inputs="drop"'
                )
            return [record[1:] for record in log.after(index)]
        finally:
            log.close()


def _copied(path: Path, folder: Path) -> Path | None:
    """The log's files in another folder; None if there are none."""
    while True:
        files = [segment_path(path, first) for first in segments_of(path)]
        try:
            for file in files:
                shutil.copyfile(file, folder / file.name)
        except FileNotFoundError:
            # Its driver has just removed the oldest one.
            for file in folder.iterdir():
                file.unlink()
            continue
        return folder / path.name if files else None


def put_inputs(home: Path, lineage: str, records: list[list[Any]], key: bytes) -> None:
    """Makes the log of a lineage that nobody runs.

    Raises:
        StoreFull, StoreNotWritable: it cannot be written.
    """
    log = IngressLog(log_of(home, lineage), key)
    try:
        log.append(records)
    finally:
        log.close()


def drop_inputs(home: Path, lineage: str) -> None:
    """The reverse, for a lineage that did not come about."""
    path = log_of(home, lineage)
    for file in (path, path.with_suffix(".lock")):
        file.unlink(missing_ok=True)


def inherit(log: IngressLog, home: Path, origin: str, key: bytes) -> None:
    """Copies what the lineage that this one forks off was given, if anything, into its log.

    All of it in one append: what a crash leaves of that is nothing, and the next start does it again.

    Raises:
        Corrupt, NotAuthentic: what it was given is damaged.
        StoreFull, StoreNotWritable: the log cannot be written.
    """
    if log.last or not log_of(home, origin).exists():
        return
    given = IngressLog(log_of(home, origin), key)
    try:
        records = [record[1:] for record in given.after(0)]
    finally:
        given.close()
    if records:
        log.append(records)
