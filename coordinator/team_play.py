"""One run of the team, from outside: its program, its person, and whoever kills.

Nothing here belongs to the system: the program is a process of its own, started again when it was killed; the
person looks for questions in the store and answers; the killer ends participants, the coordinator, or all
processes at once, by SIGKILL, when the work has come so far, at moments that a seed draws.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutline.errors import CutlineError
from cutline.participant.driver import DRIVER
from cutline.participant.endpoint_file import authentic_endpoint
from cutline.storage import open_store, store_home

from .cli_effects import listing
from .client import connected
from .people import answer, pending
from .team_cast import PARTS
from .team_program import NAME
from .team_world import Service, bookings, make_bank, read_log

__all__ = ("KINDS", "Play", "Seen", "operations", "play")

# What is killed, over and over, in an order that is drawn: a participant, everything, the coordinator.
KINDS = ("participant", "system", "participant", "coordinator", "participant")
# Seconds between two kills, and between two looks of the person.
_PAUSES = 0.3, 2.0
_LOOK = 0.25
# Of the kills, those that wait for the question, and for its answer.
_AT_THE_END = 2
# How often the program may end by itself without being through.
_HALTS = 3
_QUICK = 3.0


def operations(topics: int) -> int:
    """Requests to the service that a report takes: an invoice for each question, a letter for each section,
    and the report."""
    return topics * (PARTS + 1) + 1


@dataclass(frozen=True)
class Play:
    """What is played. ``limit``: seconds."""

    folder: Path
    topics: Sequence[str]
    deaths: int
    seed: int
    limit: float


@dataclass
class Seen:
    """What was seen from outside."""

    kills: list[dict[str, Any]] = field(default_factory=list)
    # The ids of questions; what became of each answer that was tried.
    questions: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0
    trouble: list[str] = field(default_factory=list)
    report: dict[str, Any] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0
    booked: list[tuple[str, int]] = field(default_factory=list)


def play(about: Play) -> Seen:
    """Plays it to its end, or until time is up."""
    about.folder.mkdir(parents=True)
    bank, log = about.folder / "bank.sqlite", about.folder / "requests.log"
    make_bank(bank)
    service = Service(log, about.seed)
    try:
        run = _Run(about, service.url, bank, log)
        run.to_its_end()
    finally:
        service.close()
    seen = run.seen
    seen.requests, (seen.left, seen.booked) = read_log(log), bookings(bank)
    if run.report.exists():
        seen.report = json.loads(run.report.read_text())
    with open_store(run.store, create=False) as store:
        seen.attempts = listing(store, store.catalog.find(NAME, "newest"))
    return seen


class _Run:
    def __init__(self, about: Play, url: str, bank: Path, log: Path) -> None:
        self.about = about
        self.seen = Seen()
        self.log = log
        self.store = str(about.folder / "store")
        self.report, self.output = about.folder / "report.json", about.folder / "output"
        self.job = about.folder / "job.json"
        job = {
            "store": self.store,
            "bank": str(bank),
            "url": url,
            "topics": list(about.topics),
            "report": str(self.report),
        }
        self.job.write_text(json.dumps(job))
        self.chance = random.Random(about.seed)
        self.plan = [KINDS[number % len(KINDS)] for number in range(about.deaths)]
        self.chance.shuffle(self.plan)
        early = max(0, about.deaths - _AT_THE_END)
        most = operations(len(about.topics)) - 2
        # Requests after which each one comes, as far as they do not wait for the person.
        self.marks = sorted(self.chance.randint(0, most) for _ in range(early))
        self.kill_at = self.look_at = 0.0

    def to_its_end(self) -> None:
        began = time.monotonic()
        program = self._start()
        try:
            while True:
                code = program.poll()
                if code == 0:
                    break
                if time.monotonic() - began > self.about.limit:
                    self.seen.trouble.append(f"it did not come to its end in {self.about.limit:.0f} s")
                    break
                if code is not None:
                    if code != -signal.SIGKILL and not self._may_start_again(code):
                        break
                    program = self._start()
                self._be_the_person()
                self._be_the_killer(program)
                time.sleep(0.02)
        finally:
            if program.poll() is None:
                self._end_all(program)
            self.seen.seconds = time.monotonic() - began

    def _start(self) -> subprocess.Popen[bytes]:
        self.seen.starts += 1
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "cutline.coordinator.team_program", str(self.job)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _may_start_again(self, code: int) -> bool:
        said = self.output.read_text(errors="replace")[-1000:]
        self.seen.trouble.append(f"the program ended with status {code}: {said}")
        return len(self.seen.trouble) < _HALTS

    # -- the person --------------------------------------------------------------------------------

    def _be_the_person(self) -> None:
        now = time.monotonic()
        if now < self.look_at:
            return
        self.look_at = now + _LOOK
        try:
            open_ones = pending(self.store, name=NAME)
        except CutlineError:
            # There is no store yet, or it is in the middle of something.
            return
        for question in open_ones:
            if question.id not in self.seen.questions:
                self.seen.questions.append(question.id)
            if len(self.seen.kills) >= self.about.deaths - 1:
                self._answer(question.id)

    def _answer(self, question: str) -> None:
        # A person who clicks twice.
        for _ in range(2):
            try:
                answer(self.store, question, True, name=NAME)
                said = "taken"
            except CutlineError as error:
                said = type(error).__name__
            self.seen.answers.append(said)
        self.kill_at = 0.0

    # -- the killer --------------------------------------------------------------------------------

    def _be_the_killer(self, program: subprocess.Popen[bytes]) -> None:
        done, now = len(self.seen.kills), time.monotonic()
        if done >= len(self.plan) or now < self.kill_at or not self._is_time(done):
            return
        victims = self._victims(program, self.plan[done])
        if not victims:
            return
        struck = [name for name, pid in victims if _struck(pid)]
        if struck:
            self.seen.kills.append({"kind": self.plan[done], "names": struck, "requests": self._requests()})
            self.kill_at = now + self.chance.uniform(*_PAUSES)

    def _is_time(self, done: int) -> bool:
        if done < len(self.marks):
            return self._requests() >= self.marks[done]
        if done < self.about.deaths - 1:
            return bool(self.seen.questions)
        return "taken" in self.seen.answers

    def _requests(self) -> int:
        return len(read_log(self.log))

    def _victims(self, program: subprocess.Popen[bytes], kind: str) -> list[tuple[str, int]]:
        """Names and process ids; none if they cannot be found now."""
        found = self._processes()
        if kind == "participant":
            living = [each for each in found if each[0] != "coordinator"]
            return [self.chance.choice(living)] if living else []
        if kind == "coordinator":
            return [each for each in found if each[0] == "coordinator"]
        # The program first: it would start another coordinator.
        return [("program", program.pid), *found] if found else []

    def _processes(self) -> list[tuple[str, int]]:
        try:
            with connected(self.store, NAME) as client:
                status = client.request("status", timeout=_QUICK)
        except (CutlineError, TimeoutError, OSError):
            # Somebody is about to come back.
            return []
        endpoint = authentic_endpoint(store_home(self.store), NAME)
        found = [] if endpoint is None else [("coordinator", endpoint.pid)]
        for name, seat in sorted(status["participants"].items()):
            if name != DRIVER and seat["pid"] and seat["phase"] == "running":
                found.append((name, int(seat["pid"])))
        return found

    def _end_all(self, program: subprocess.Popen[bytes]) -> None:
        for _, pid in self._victims(program, "system") or [("program", program.pid)]:
            _struck(pid)
        program.wait()


def _struck(pid: int) -> bool:
    """Whether there was such a process; there is none now."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
