"""What `cutline check` does, in a process of its own: a checkpoint against the modules of a program.

It takes up every participant of the cut as a restore does, by the same code (`participant.imaging.revive`),
but goes on after each fault, and hands nothing to anybody: no Ray, no socket, no message is handled.
Migrations run, and suspended calls are run again up to where they stood, as in a restore; what they ask for
goes nowhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutline.barrier import Member
from cutline.errors import CannotRestore, CutlineError, Misuse
from cutline.participant.allowing import allowing_only, check_allow
from cutline.participant.classes import Classes
from cutline.participant.findings import Findings
from cutline.participant.fitting import Fit, unmet
from cutline.participant.handle import bound_port
from cutline.participant.imaging import revive
from cutline.participant.method_table import MethodTable
from cutline.participant.parcelling import ParcelDesk
from cutline.participant.parcels import Parcels
from cutline.participant.saying import said
from cutline.storage import CheckpointRow, Image, Manifest, Store, open_store, read_image

from .loading import point_in

__all__ = ("check_cut", "check_here", "import_program", "main")

_SCRIPT = "__cutline_main__"


def import_program(against: Sequence[str]) -> types.ModuleType | None:
    """Imports what a program consists of; the module that stands for its script, if one is named by its file.

    Raises:
        Misuse: one does not import, or lacks what is to be in it.
    """
    script = None
    for entry in against:
        name, _, inside = entry.partition(":")
        try:
            if name.endswith(".py"):
                module = script = _script(Path(name))
            else:
                module = importlib.import_module(name)
        except CutlineError:
            raise
        except (Exception, SystemExit) as error:
            raise Misuse(f"--against {entry}: it does not import: {said(error)}") from error
        found: Any = module
        for part in inside.split(".") if inside else ():
            if not hasattr(found, part):
                raise Misuse(f"--against {entry}: {name} has no {inside!r}")
            found = getattr(found, part)
    return script


def _script(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(_SCRIPT, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Misuse(f"--against {path}: there is no such file")
    sys.path.insert(0, str(path.resolve().parent))
    module = sys.modules[_SCRIPT] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_here(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The report on a point of a store, with the modules that `spec` names; see `check_cut`."""
    script = import_program(spec["against"])
    allowed = check_allow(spec["allow"])
    with open_store(spec["storage"], create=False) as store:
        row, manifest = point_in(store, spec["name"], spec["point"], trust=spec["trust"])
        with allowing_only(allowed):
            return check_cut(store, row, manifest, Classes(script))


def check_cut(store: Store, row: CheckpointRow, manifest: Manifest, classes: Classes) -> dict[str, Any]:
    """What would come of restoring a cut in this process's program, participant by participant.

    Raises:
        Corrupt: a part of the cut is damaged.
    """
    participants: dict[str, dict[str, Any]] = {}
    fits: dict[Member, Fit] = {}
    for name, image in manifest.images.items():
        member = Member(name, image.birth)
        doc, fit = _participant(member, read_image(store.blobs, image.ref), classes)
        participants[name] = doc
        if fit is not None:
            fits[member] = fit
    for name, problem in unmet(fits):
        participants[name]["problems"].append(problem._asdict())
    return {
        "system": row.system,
        "checkpoint": f"{row.lineage}/{row.checkpoint}",
        "label": row.label,
        "fits": not any(doc["problems"] for doc in participants.values()),
        "participants": participants,
    }


def _participant(member: Member, image: Image, classes: Classes) -> tuple[dict[str, Any], Fit | None]:
    findings = Findings(lenient=True)
    known = MethodTable()
    desk = ParcelDesk(
        member, None, class_name=image.header["class"], methods_of=known.methods_of, now=time.time
    )
    desk.parcels = Parcels()
    undo = bound_port(desk, thread_only=True)
    try:
        revive(image, desk, classes, None, findings)
    except Exception as error:
        # What a restore would end with, too.
        text = f"participant {member.name!r} does not load: {said(error)}"
        findings.meet(error if isinstance(error, CannotRestore) else CannotRestore(text, path="self"))
    finally:
        undo()
        calls = [call.method for call in desk.calls.values()]
        desk.close()
    doc = {
        "class": image.header["class"],
        "now": desk.fit["class_name"] if desk.fit is not None else None,
        "version": image.header["class_version"],
        "suspended": calls,
        "migrations": [
            {**migration._asdict(), "objects": count} for migration, count in findings.migrations.items()
        ],
        "problems": [problem._asdict() for problem in findings.problems],
    }
    return doc, desk.fit


def main() -> None:
    """Reads what to check from standard input and writes the report, or the error, to standard output."""
    spec = json.load(sys.stdin)
    # What the program prints is not part of the report.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer: dict[str, Any]
    try:
        answer = {"report": check_here(spec)}
    except (CutlineError, TimeoutError) as error:
        answer = {"error": said(error)}
    with report:
        json.dump(answer, report)


if __name__ == "__main__":
    main()
