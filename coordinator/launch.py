"""Starting participant processes: launch documents, the zygote, and the folder of one run.

Sockets and flight recorders of a run live in a private temporary folder (0700) that the driver makes and
removes, so that a new coordinator finds what an older one started.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack

from cutline.participant.processes import process_started
from cutline.participant.zygote import ChildExited, Zygote

from .roster import Seat

__all__ = ("Launcher",)

ENTRY = "cutline.participant.host_process:serve"


class Launcher:
    """Starts one process per participant on this machine."""

    def __init__(
        self,
        post: Callable[[ChildExited], None],
        *,
        system: str,
        run: str,
        store: str,
        token: str,
        program: Mapping[str, Any],
        hash_seed: int,
        folder: Path,
        break_mode: str = "",
    ) -> None:
        self.system = system
        self.run = run
        self.store = store
        self.token = token
        self.program = dict(program)
        self.break_mode = break_mode
        self.folder = folder
        # Handlers are run again after a crash, in another process: iteration over sets of strings must
        # have the same order there, so all processes of a lineage share one seed.
        self.zygote = Zygote(post, env={"PYTHONHASHSEED": str(hash_seed)})
        self.zygote.warm()

    def start(self, seat: Seat, mode: str, now: float, **details: Any) -> None:
        """Starts the seat's process; fills in its pid, flight recorder and start time.

        Raises:
            SpawnFailed: the process could not be started.
        """
        nonce = secrets.token_hex(4)
        seat.flight = str(self.folder / f"{nonce}.flight")
        spec = {
            "mode": mode,
            "system": self.system,
            "run": self.run,
            "store": self.store,
            "token": self.token,
            "program": self.program,
            "break_mode": self.break_mode,
            "member": list(seat.member),
            "class_name": seat.class_name,
            "options": dict(seat.options),
            "flight": seat.flight,
            "listen": f"unix:{self.folder / nonce}.sock",
            **details,
        }
        seat.pid = self.zygote.start(
            ENTRY,
            msgpack.packb(spec),
            name=seat.member.name,
            argv=self.program["argv"],
            path=self.program["path"],
            cwd=self.program["cwd"],
        )
        seat.started = process_started(seat.pid) if os.path.exists(f"/proc/{seat.pid}") else 0.0
        seat.phase, seat.launched_at, seat.link, seat.address = "starting", now, None, ""

    def close(self) -> None:
        """Ends the zygote; participants live on."""
        self.zygote.close()
