"""Starting, watching and ending participants' processes.

A launch has a nonce of its own; the newborn says it in its greeting, and `Ended` names it, so that an end
that is told late is never taken for the end of whoever came after. `ProcessLauncher` does it on this machine,
by the zygote; other hosts have launchers of their own behind the same verbs.

Sockets and flight recorders of a run live in a private temporary folder (0700) that the driver makes and
removes, so that a new coordinator finds what an older one started. Where both are killed, the next start
removes it (`participant.scratch`).
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgpack

from cutline.errors import Misuse
from cutline.participant.processes import Watch, process_alive, process_started, watch_exit
from cutline.participant.zygote import ChildExited, Zygote

from .roster import Seat

__all__ = ("Draining", "Ended", "Launcher", "ProcessLauncher", "launch_document")

ENTRY = "cutline.participant.host_process:serve"


class Ended(NamedTuple):
    """The process of a launch has ended, says the system that runs it; `how` is for people."""

    launch: str
    how: str


class Draining(NamedTuple):
    """The cluster is about to take a node away."""

    node: str


class Launcher(Protocol):
    """Where participants live. `program` is shipped with each launch; recorders lie in `folder`."""

    program: dict[str, Any]
    folder: Path

    def start(self, seat: Seat, mode: str, now: float, **details: Any) -> None:
        """Starts the seat's process; fills in its launch. `Ended` follows some day.

        Raises:
            SpawnFailed: it could not be started.
        """

    def adopt(self, seat: Seat) -> None:
        """Watches a process that an older coordinator started; `Ended` follows, at once if it is gone."""

    def alive(self, seat: Seat) -> bool:
        """Whether the seat's process runs."""

    def why_waiting(self, seat: Seat) -> str:
        """Why the seat's process has not begun to run, for people; empty if nobody knows."""

    def leave(self, node: str, seats: Sequence[Seat]) -> None:
        """From now on nothing is started on `node`; `seats` will have to be started elsewhere.

        Raises:
            Misuse: no such node, or one of them cannot be placed anywhere else.
        """

    def end(self, seat: Seat) -> None:
        """Ends the seat's process, if it still is the one that was started."""

    def close(self) -> None:
        """Lets go; participants live on."""


def launch_document(common: Mapping[str, Any], seat: Seat, mode: str, details: Mapping[str, Any]) -> bytes:
    """What a participant's process is told: who it is, and whether it is born or restored."""
    packed: bytes = msgpack.packb(
        {
            **common,
            "mode": mode,
            "member": list(seat.member),
            "class_name": seat.class_name,
            "options": dict(seat.options),
            "flight": seat.flight,
            "launch": seat.launch,
            **details,
        }
    )
    return packed


class ProcessLauncher:
    """One process per participant on this machine."""

    def __init__(
        self, post: Callable[[Ended], None], common: Mapping[str, Any], *, folder: Path, hash_seed: int
    ) -> None:
        self.program: dict[str, Any] = dict(common["program"])
        self.folder = folder
        self._common = dict(common)
        self._post = post
        # Ends are told by another thread, perhaps before `start` knows whose.
        self._lock = threading.Lock()
        self._launches: dict[int, str] = {}
        self._early: dict[int, int | None] = {}
        self._watches: list[Watch] = []
        # Handlers are run again after a crash, in another process: iteration over sets of strings must
        # have the same order there, so all processes of a lineage share one seed.
        self.zygote = Zygote(self._exited, env={"PYTHONHASHSEED": str(hash_seed)})
        self.zygote.warm()

    def _exited(self, event: ChildExited) -> None:
        with self._lock:
            launch = self._launches.get(event.pid)
            if launch is None:
                # It ended before `start` has returned.
                self._early[event.pid] = event.status
                return
        self._post(Ended(launch, _how(event.status)))

    def start(self, seat: Seat, mode: str, now: float, **details: Any) -> None:
        """See `Launcher.start`."""
        seat.launch = secrets.token_hex(6)
        seat.flight = str(self.folder / f"{seat.launch}.flight")
        common = {**self._common, "program": self.program}
        seat.pid = self.zygote.start(
            ENTRY,
            launch_document(common, seat, mode, details),
            name=seat.member.name,
            argv=self.program["argv"],
            path=self.program["path"],
            cwd=self.program["cwd"],
        )
        with self._lock:
            self._launches[seat.pid] = seat.launch
            early = seat.pid in self._early
            status = self._early.pop(seat.pid, None)
        if early:
            self._post(Ended(seat.launch, _how(status)))
        try:
            seat.started = process_started(seat.pid)
        except ProcessLookupError:
            seat.started = 0.0
        seat.phase, seat.launched_at, seat.link, seat.address = "starting", now, None, ""

    def adopt(self, seat: Seat) -> None:
        """See `Launcher.adopt`."""
        ended = Ended(seat.launch, "its process has ended")
        self._watches.append(watch_exit(seat.pid, seat.started, lambda _pid: self._post(ended)))

    def alive(self, seat: Seat) -> bool:
        """See `Launcher.alive`."""
        return bool(seat.pid) and process_alive(seat.pid, seat.started)

    def why_waiting(self, seat: Seat) -> str:
        """See `Launcher.why_waiting`: a process runs at once."""
        return ""

    def leave(self, node: str, seats: Sequence[Seat]) -> None:
        """See `Launcher.leave`: there is nowhere else."""
        raise Misuse("plain processes all run on this machine: there is no node to drain")

    def end(self, seat: Seat) -> None:
        """See `Launcher.end`: SIGKILL."""
        if self.alive(seat):
            os.kill(seat.pid, signal.SIGKILL)

    def close(self) -> None:
        """See `Launcher.close`."""
        for watch in self._watches:
            watch.cancel()
        self.zygote.close()


def _how(status: int | None) -> str:
    if status is None:
        return "its process has ended"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}"
