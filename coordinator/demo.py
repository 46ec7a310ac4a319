"""``cutline demo``: eight agents read the standard library, some are killed, nothing is lost or doubled.

The agents (`demo_agents`) parse, count, link and rank Python's own source. On the way two participants and
the coordinator are ended by SIGKILL while messages are in flight. At the end their combined result is
compared with a computation in one process that shares no code with them (`demo_reference`).

With ``--savepoint LABEL`` the demo takes a savepoint half way and stops; ``--resume LABEL`` goes on from
there, with the files that were read already replaced by garbage: they must not be needed again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutline.errors import CutlineError, RolledBack, SystemHalted
from cutline.participant.handle import Handle

from .answers import get
from .demo_agents import Scale
from .demo_cast import all_done, cast, combine, fraction_done, introductions, starters
from .demo_report import Bar, print_report
from .demo_source import copy_sources, find_sources
from .system import System, start

__all__ = ("DemoOptions", "run_demo")

FOLDER = Path("cutline-demo")
NAME = "demo"
STILL_SECONDS = 15.0
KILLS = ((0.30, "reader-1"), (0.55, "coordinator"), (0.85, "ranker"))
SAVEPOINT_AT = 0.5


@dataclass
class DemoOptions:
    """What the command line was given."""

    storage: Path | None = None
    files: int = 0
    passes: int = 12
    as_json: bool = False
    kills: bool = True
    savepoint: str | None = None
    resume: str | None = None
    break_mode: str = ""
    runtime: str = "process"


@dataclass
class _Run:
    """One run of the demo, as far as it has come."""

    options: DemoOptions
    folder: Path
    system: System
    handles: dict[str, Handle]
    polls: int = 0
    victims: list[dict[str, Any]] = field(default_factory=list)
    fraction: float = 0.0


def run_demo(options: DemoOptions) -> int:
    """Runs the demo; returns the exit status: 0 if the results are identical."""
    folder = (options.storage or FOLDER).absolute()
    corpus, job = folder / "corpus", folder / "job.json"
    if options.resume is None:
        source, paths = find_sources(options.files)
        folder.mkdir(parents=True, exist_ok=True)
        copy_sources(source, paths, corpus)
        job.write_text(json.dumps({"source": str(source), "paths": paths, "passes": options.passes}))
    elif not job.exists():
        raise CutlineError(
            f"no demo was run in {folder}: run `cutline demo --savepoint {options.resume}` first"
        )
    about = json.loads(job.read_text())
    scale = Scale(passes=about["passes"])
    if options.resume is not None:
        _spoil(corpus, about["paths"], folder / f"{options.resume}.cursor")
    system = start(
        folder,
        name=NAME,
        interval=1.0,
        fresh=options.resume is None,
        restore=options.resume,
        quiet=options.as_json,
        break_mode=options.break_mode,
        runtime=options.runtime,
    )
    with system:
        run = _Run(options, folder, system, {})
        run.handles = {
            name: system.spawn(name, kind, *args)
            for name, kind, args in cast(scale, str(corpus), about["paths"])
        }
        already = sum(system.checkpoints()[-1].summary["handlers"].values()) if options.resume else 0
        if options.resume is None:
            get([run.handles[name].connect.remote(*args) for name, args in introductions(run.handles)])
            for name in starters(run.handles):
                run.handles[name].step.tell()
        halted = ""
        try:
            finished = _watch(run)
        except SystemHalted as error:
            finished, halted = False, str(error)
        if options.savepoint is not None:
            return _stop_at_savepoint(run)
        result = combine(_ask_all(run, "result")) if finished else None
        status = {"handlers_run": 0, "handlers": 0} if halted else system.status()
        deaths = system.coordinator_deaths
        notices = list(system.notices)
        system.stop()
    expected = _reference(about, scale)
    document = _document(run, result, expected, status, notices, deaths, already)
    if halted:
        document["differences"] = [f"halted: {halted}"]
    print_report(document, folder, as_json=options.as_json)
    return 0 if document["identical"] else 1


def _spoil(corpus: Path, paths: list[str], cursor: Path) -> None:
    """Replaces every file that the savepoint's run had read by garbage."""
    count = int(cursor.read_text())
    for path in paths[:count]:
        (corpus / path).write_bytes(b"\x00 this file was read before the savepoint (")


def _stop_at_savepoint(run: _Run) -> int:
    """The watch has taken the savepoint; how far the librarian had come is noted for the next run."""
    print(f"savepoint {run.options.savepoint} taken at {run.fraction:.0%}; go on with --resume")
    return 0


# -- watching ----------------------------------------------------------------------------------


def _watch(run: _Run) -> bool:
    """Polls until all is done, killing on the way; false if nothing moves any more."""
    plan = list(KILLS) if run.options.kills and run.options.savepoint is None else []
    seen, moved_at = -1, time.monotonic()
    with Bar(quiet=run.options.as_json) as bar:
        while True:
            try:
                progress = _ask_all(run, "progress")
            except TimeoutError:
                return False
            handled = sum(each["handled"] for each in progress.values())
            if handled != seen:
                seen, moved_at = handled, time.monotonic()
            elif time.monotonic() - moved_at > STILL_SECONDS:
                return False
            run.fraction = fraction_done(progress)
            bar.show(run.fraction, handled)
            if run.options.savepoint is not None and run.fraction >= SAVEPOINT_AT:
                cursor = run.folder / f"{run.options.savepoint}.cursor"
                cursor.write_text(str(progress["librarian"]["cursor"]))
                run.system.savepoint(run.options.savepoint)
                return True
            if all_done(progress):
                return True
            if plan and run.fraction >= plan[0][0]:
                _kill(run, plan.pop(0)[1])
            time.sleep(0.2)


def _ask_all(run: _Run, method: str) -> dict[str, Any]:
    """One read of every participant; asked again if a recovery comes between."""
    deadline = time.monotonic() + 2 * STILL_SECONDS
    while True:
        try:
            refs = {
                name: getattr(handle, method).options(durable=False).remote()
                for name, handle in run.handles.items()
            }
            run.polls += len(refs)
            return {name: ref.result(timeout=STILL_SECONDS) for name, ref in refs.items()}
        except (RolledBack, TimeoutError):
            if time.monotonic() > deadline:
                raise


def _kill(run: _Run, name: str) -> None:
    """SIGKILL, with messages in flight: the job never rests before it is done."""
    if name == "coordinator":
        pid = run.system.coordinator_pid
    else:
        pid = int(run.system.status()["participants"][name]["pid"])
    committed = [n["checkpoint"] for n in run.system.notices if n["what"] == "committed"]
    run.victims.append(
        {"name": name, "pid": pid, "at": run.fraction, "newest": committed[-1] if committed else None}
    )
    os.kill(pid, signal.SIGKILL)


# -- the report --------------------------------------------------------------------------------


def _reference(about: dict[str, Any], scale: Scale) -> dict[str, Any]:
    """The same result, by one process that shares no code with the agents."""
    code = (
        "import json, sys; from cutline.coordinator.demo_reference import compute; "
        "a = json.load(sys.stdin); json.dump(compute(a.pop('source'), a.pop('paths'), **a), sys.stdout)"
    )
    request = {
        "source": about["source"],
        "paths": about["paths"],
        "passes": scale.passes,
        "readers": scale.readers,
        "buckets": scale.buckets,
        "iterations": scale.iterations,
        "ticks": scale.ticks,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    expected: dict[str, Any] = json.loads(done.stdout)
    return expected


def _document(
    run: _Run,
    result: dict[str, Any] | None,
    expected: dict[str, Any],
    status: dict[str, Any],
    notices: list[dict[str, Any]],
    deaths: list[dict[str, Any]],
    already: int,
) -> dict[str, Any]:
    same = json.loads(json.dumps(result)) == expected
    # Counted by the reference, not by Cutline: the continuation `on_total` is no message of its own.
    needed = expected["handlers"] - 1 + len(introductions(run.handles)) + run.polls
    messages = sum(row[0] for row in expected["messages"].values())
    kills = [_kill_row(victim, notices, deaths) for victim in run.victims]
    differences = [] if same else _differences(result, expected)
    return {
        "identical": same,
        "messages": messages,
        "messages_this_run": max(0, status["handlers"] - already - run.polls) if already else messages,
        "storage": str(run.folder),
        "handlers_run": status["handlers_run"],
        "handlers_needed": needed,
        "handlers_before": already,
        "kills": kills,
        "checkpoints": [_checkpoint_row(n) for n in notices if n["what"] == "committed"],
        "differences": differences,
    }


def _kill_row(
    victim: dict[str, Any], notices: list[dict[str, Any]], deaths: list[dict[str, Any]]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "role": "coordinator" if victim["name"] == "coordinator" else "participant",
        "name": victim["name"],
        "pid": victim["pid"],
        "at": round(victim["at"], 3),
    }
    for death in deaths:
        if death["pid"] == victim["pid"]:
            # Nobody rolls back for a coordinator: it holds no truth.
            return {
                **row,
                "checkpoint_used": victim["newest"],
                "rolled_back_messages": 0,
                "handlers_rerun": 0,
                "recovered_ms": round(death["recovered_ms"], 1),
            }
    for notice in notices:
        if notice["what"] == "recovered" and any(c["pid"] == victim["pid"] for c in notice["causes"]):
            return {
                **row,
                "checkpoint_used": notice["checkpoint"],
                "rolled_back_messages": notice["rolled_back_messages"],
                "handlers_rerun": notice["handlers_rerun"],
                "recovered_ms": round(notice["recovered_ms"], 1),
            }
    return {
        **row,
        "checkpoint_used": None,
        "rolled_back_messages": None,
        "handlers_rerun": 0,
        "recovered_ms": None,
    }


def _checkpoint_row(notice: dict[str, Any]) -> dict[str, Any]:
    facts = notice["summary"]
    return {
        "id": notice["checkpoint"],
        "kind": "full" if notice["full"] else "delta",
        "participants": facts["participants"],
        "in_flight_messages": facts["in_flight_messages"],
        "changed_bytes": facts["changed_bytes"],
        "written_bytes": facts["written_bytes"],
        "stall_ms_max": round(facts["stall_ms_max"], 2),
        "duration_ms": round(facts["duration_ms"], 1),
    }


def _differences(result: dict[str, Any] | None, expected: dict[str, Any]) -> list[str]:
    if result is None:
        return ["unfinished: nothing moved any more, so a message is missing"]
    show: Callable[[Any], str] = lambda value: json.dumps(value)[:80]  # noqa: E731
    found = [
        f"{key}: {show(result.get(key))} instead of {show(value)}"
        for key, value in expected.items()
        if result.get(key) != value and key != "messages"
    ]
    counts = result.get("messages", {})
    found += [
        f"messages {kind}: {show(counts.get(kind))} instead of {show(row)}"
        for kind, row in expected["messages"].items()
        if counts.get(kind) != row
    ]
    return found
