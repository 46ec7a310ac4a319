"""Faults at the steps of an effect: who passes a step looks into a plan, and perhaps ends somebody there.

Installed in every process of a system by `site/sitecustomize.py`. The plan is a folder (``EFFECT_PLAN``):
each fault that is carried out leaves a file there, made exclusively, so that all processes together carry out
each cell of the matrix as often as was asked for. Who is who is in files too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ("ASKING", "FAULTS", "OUTPUT_STEPS", "STEPS", "at", "count", "i_am", "install")

# Where an effect can be when somebody dies; those with a star happen in the coordinator.
STEPS = (
    "request",
    "commit",
    "claim",
    "claimed*",
    "granted",
    "call",
    "called",
    "result",
    "recorded*",
    "delivery",
    "delivered",
)
# Where a question to a person can be; those in between happen in the process of whoever answers it.
ASKING = (
    "request",
    "commit",
    "watch",
    "watched*",
    "answering",
    "answered",
    "found*",
    "delivery",
    "delivered",
)
# The same of what is emitted; at those with two stars it is the coordinator itself that is stopped.
OUTPUT_STEPS = (
    "emit",
    "captured",
    "raised**",
    "wanted",
    "noted**",
    "half**",
    "written**",
    "saved**",
    "done",
    "call",
    "called",
    "given",
)
FAULTS = ("participant", "coordinator", "both", "system", "stop", "zombie")
STOPPED = 1.5
ZOMBIE = 4.0
# Seconds between two faults, so that the system gets somewhere.
PAUSE = 0.2


def _folder() -> Path | None:
    place = os.environ.get("EFFECT_PLAN")
    return Path(place) if place else None


def i_am(role: str) -> None:
    """Writes down which process plays a role now."""
    folder = _folder()
    if folder is not None:
        (folder / "roles" / role).write_text(str(os.getpid()))


def _pids(start: str) -> list[int]:
    folder = _folder()
    assert folder is not None
    return [int(path.read_text() or 0) for path in (folder / "roles").glob(f"{start}*")]


def count(folder: Path, step: str, fault: str) -> int:
    """How often that cell was carried out."""
    start = f"{step}.{fault}."
    return sum(name.startswith(start) for name in os.listdir(folder / "fired"))


def at(step: str) -> None:
    """A step is passed: perhaps somebody ends here."""
    folder = _folder()
    if folder is None:
        return
    wanted = int((folder / "times").read_text())
    clock = folder / "clock"
    if time.time() - clock.stat().st_mtime < PAUSE:
        return
    done = {fault: count(folder, step, fault) for fault in FAULTS}
    fault = min(FAULTS, key=lambda each: done[each])
    if done[fault] >= wanted:
        return
    try:
        (folder / "fired" / f"{step}.{fault}.{done[fault]}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.utime(clock)
    _carry_out(fault, step)


def _carry_out(fault: str, step: str) -> None:
    # In the coordinator the participant that it is about is one of those there are; where somebody answers,
    # it is he.
    own = os.getpid()
    in_it = step.endswith("*") and not step.endswith("**")
    victim = _pids("participant")[0] if in_it else own
    coordinator, driver = _pids("coordinator"), _pids("driver")
    if fault == "participant":
        _end(victim)
    elif fault == "coordinator":
        _end(*coordinator)
    elif fault == "both":
        _end(victim, *coordinator)
    elif fault == "system":
        _end(*driver, *_pids("participant"), *coordinator)
    elif fault == "stop":
        _later(STOPPED, victim)
        os.kill(victim, signal.SIGSTOP)
    else:
        _later(ZOMBIE, victim)
        others = [pid for pid in (*driver, *_pids("participant"), *coordinator) if pid != victim]
        # Ended by somebody else, since the victim stands still.
        command = f"kill -STOP {victim}; kill -KILL {' '.join(map(str, others))}"
        _detached(command)
        time.sleep(0.5)


def _end(*pids: int) -> None:
    own = os.getpid()
    for pid in sorted(pids, key=lambda each: each == own):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if own in pids:
        time.sleep(60)


def _later(seconds: float, pid: int) -> None:
    _detached(f"sleep {seconds}; kill -CONT {pid}")


def _detached(command: str) -> None:
    subprocess.Popen(
        ["sh", "-c", command],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def install() -> None:
    """Puts the points into this process's Cutline."""
    _install_effects()
    _install_output()


def _install_effects() -> None:
    from cutline.coordinator.effects import Effects
    from cutline.coordinator.questions import Questions
    from cutline.participant.effecting import Effecting
    from cutline.storage.effect_table import EffectTable

    _before(Effecting, "_take_fresh", "request")
    _before(Effecting, "_claim", "claim")
    _before(Effecting, "_call", "granted")
    _before(Effecting, "_say_outcome", "result")
    _before(Effecting, "_deliver", "delivery")
    _after(Effecting, "_deliver", "delivered")
    _before(Effecting, "_watch", "watch")
    _after(Questions, "watch", "watched*")
    _before(EffectTable, "settle", "answering")
    _after(EffectTable, "settle", "answered")
    settled, born, made = Effecting.settled, Effecting.__init__, Effects.__init__
    answer = Effects._answer
    write = Effects._write
    look = Questions._found

    def committed(self: Any, checkpoint: int, is_committed: bool) -> None:
        settled(self, checkpoint, is_committed)
        if is_committed and self.desk.effects:
            at("commit")

    def participant(self: Any, *given: Any, **named: Any) -> None:
        born(self, *given, **named)
        if self.me.name != "driver":
            i_am(f"participant-{self.me.name}")

    def coordinator(self: Any, *given: Any) -> None:
        made(self, *given)
        i_am("coordinator")

    def answered(self: Any, seat: Any, claim: Any, verdict: Any) -> None:
        if verdict.kind == "granted":
            at("claimed*")
        answer(self, seat, claim, verdict)

    def looked(self: Any) -> Any:
        found = look(self)
        if found:
            at("found*")
        return found

    def written(self: Any, *given: Any) -> None:
        journal = self.c.catalog.journal
        said = bool(self.endings)

        def journaled(*rows: Any) -> Any:
            found = journal(*rows)
            if said:
                at("recorded*")
            return found

        self.c.catalog.journal = journaled
        try:
            write(self, *given)
        finally:
            del self.c.catalog.journal

    for kind, name, changed in (
        (Effecting, "settled", committed),
        (Effecting, "__init__", participant),
        (Effects, "__init__", coordinator),
        (Effects, "_answer", answered),
        (Effects, "_write", written),
        (Questions, "_found", looked),
    ):
        setattr(kind, name, changed)


def _install_output() -> None:
    from cutline.coordinator.output import Outputs
    from cutline.participant.emitting import Emitting
    from cutline.storage import line_file
    from cutline.storage.disk import write_all
    from cutline.storage.row_table import RowTable

    _before(Emitting, "_hand_over", "wanted")
    _before(Emitting, "other_event", "given", lambda event: type(event).__name__ == "_Given")
    _before(Emitting, "other_order", "done", lambda doc: doc["kind"] == "emit_done")
    _after(Outputs, "_raise_horizon", "raised**")
    _after(Outputs, "_save", "saved**")
    _after(line_file.LineFile, "_sync_journal", "noted**")
    _after(line_file.LineFile, "publish", "written**")
    _after(RowTable, "publish", "written**")
    captured, write = Emitting.captured, write_all

    def emitted(self: Any, checkpoint: int) -> None:
        captured(self, checkpoint)
        if not self.desk.output.is_empty:
            at("captured")

    def in_halves(descriptor: int, data: bytes, place: int) -> None:
        half = len(data) // 2
        write(descriptor, data[:half], place)
        if data[:1] == b"{":
            # A line, and none of the journal's: that is written when a coordinator begins, too.
            at("half**")
        write(descriptor, data[half:], place + half)

    setattr(Emitting, "captured", emitted)  # noqa: B010
    setattr(line_file, "write_all", in_halves)  # noqa: B010


def _before(kind: type, name: str, step: str, when: Callable[..., bool] = lambda *_given: True) -> None:
    real: Callable[..., Any] = getattr(kind, name)

    def passing(self: Any, *given: Any) -> Any:
        if when(*given[:1]):
            at(step)
        return real(self, *given)

    setattr(kind, name, passing)


def _after(kind: type, name: str, step: str) -> None:
    real: Callable[..., Any] = getattr(kind, name)

    def passed(self: Any, *given: Any) -> Any:
        found = real(self, *given)
        at(step)
        return found

    setattr(kind, name, passed)
