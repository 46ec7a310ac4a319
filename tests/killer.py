"""An outside killer: runs a program and ends random processes of its running system by SIGKILL.

::

    python -m tests.killer --kills 20 --seed 1 -- tests/programs/ring.py

The program is told through its environment (``KILLER_STORAGE``, ``KILLER_SYSTEM``) where to keep its
checkpoints and what to call its system; everything else is found out as any other program would: the
endpoint file in that folder names the coordinator, and the coordinator's status names the participants.
Only processes that the running system itself lists are ended; the program (the driver) is left alone.

Kills come at random moments, also in the middle of a recovery. The exit status is the program's own; 3 if
it ended before all kills were done, since then less was shown than was asked for.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutline.coordinator.client import Client
from cutline.errors import CutlineError
from cutline.participant.endpoint_file import read_endpoint

__all__ = ("Kill", "Killer", "main")

TOO_SOON = 3


@dataclass(frozen=True)
class Kill:
    """One process that was ended: seconds since the system was up, who, its pid, the newest cut then."""

    at: float
    role: str
    pid: int
    checkpoint: int


class Killer:
    """Ends processes of the system in `folder` while `program` runs."""

    def __init__(
        self,
        program: subprocess.Popen[bytes],
        folder: Path,
        system: str,
        *,
        seed: int,
        share: float,
        pause: tuple[float, float],
    ) -> None:
        self.program = program
        self.folder = folder
        self.system = system
        self.random = random.Random(seed)
        self.share = share
        self.pause = pause
        self.kills: list[Kill] = []
        self.began = 0.0

    def status(self) -> tuple[int, Mapping[str, Any]] | None:
        """The coordinator's pid and what it says; None while there is none that answers."""
        endpoint = read_endpoint(self.folder, self.system)
        if endpoint is None:
            return None
        try:
            with Client(self.folder, self.system, timeout=2.0) as client:
                return endpoint.pid, client.request("status", timeout=5.0)
        except (CutlineError, TimeoutError):
            return None

    def wait_until_up(self, participants: int) -> bool:
        """Whether the system came up before the program ended."""
        while self.program.poll() is None:
            found = self.status()
            if found is not None and found[1]["flowing"] and len(_living(found[1])) >= participants:
                self.began = time.monotonic()
                return True
            time.sleep(0.05)
        return False

    def run(self, count: int) -> None:
        """Kills until `count` is reached or the program ends."""
        while len(self.kills) < count:
            try:
                self.program.wait(self.random.uniform(*self.pause))
                return
            except subprocess.TimeoutExpired:
                self._kill_one()

    def _kill_one(self) -> None:
        wants_coordinator = self.random.random() < self.share
        choice = self.random.random()
        while self.program.poll() is None:
            found = self.status()
            if found is None:
                continue
            coordinator, status = found
            living = _living(status)
            if wants_coordinator:
                role, pid = "coordinator", coordinator
            elif living:
                role, pid = living[int(choice * len(living))]
            else:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # It ended between the answer and now; the next answer knows.
                continue
            kill = Kill(time.monotonic() - self.began, role, pid, int(status["committed"]))
            self.kills.append(kill)
            print(
                f"kill {len(self.kills):>3}  at {kill.at:6.2f} s  {role:<12} pid {pid:<8} "
                f"newest checkpoint {kill.checkpoint}",
                flush=True,
            )
            return


def _living(status: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [
        (name, int(seat["pid"]))
        for name, seat in sorted(status["participants"].items())
        if name != "driver" and seat["pid"] and seat["phase"] != "lost"
    ]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.killer", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--coordinator-share", type=float, default=0.2, help="how often it is the coordinator"
    )
    parser.add_argument("--pause", type=float, nargs=2, default=(0.3, 1.2), metavar=("LEAST", "MOST"))
    parser.add_argument("--participants", type=int, default=4, help="the system is up with so many")
    parser.add_argument("--system", default="killed")
    parser.add_argument(
        "program", nargs="+", help="a script of this Python, or any command, and its arguments"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the program under the killer; returns the exit status."""
    options = _options(arguments)
    command = list(options.program)
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    folder = Path(tempfile.mkdtemp(prefix="cutline-killer-"))
    environment = {**os.environ, "KILLER_STORAGE": str(folder), "KILLER_SYSTEM": options.system}
    program = subprocess.Popen(command, env=environment)
    killer = Killer(
        program,
        folder,
        options.system,
        seed=options.seed,
        share=options.coordinator_share,
        pause=(options.pause[0], options.pause[1]),
    )
    try:
        if killer.wait_until_up(options.participants):
            killer.run(options.kills)
        status = program.wait()
    finally:
        if program.poll() is None:
            program.terminate()
            program.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return _summary(killer, options.kills, status)


def _summary(killer: Killer, wanted: int, status: int) -> int:
    done = len(killer.kills)
    coordinators = sum(kill.role == "coordinator" for kill in killer.kills)
    print(
        f"killer: {done} of {wanted} kills ({done - coordinators} participants, "
        f"{coordinators} coordinators), the program ended with status {status}",
        flush=True,
    )
    if status == 0 and done < wanted:
        print("killer: the program ended before all kills were done; give it more work", flush=True)
        return TOO_SOON
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
