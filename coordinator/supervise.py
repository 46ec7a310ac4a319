"""The driver's hold on the coordinator's process: start it, notice its death, start another one."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgpack

from cutline.errors import CutlineError, SystemStopped
from cutline.participant.messages import unpack_error

__all__ = ("Supervising", "Supervisor")

_TRIES = 5


class Supervising(Protocol):
    """The driver's hold on a coordinator, whatever that runs in."""

    first: dict[str, Any]
    back: Callable[[dict[str, Any]], None]
    stopping: bool
    deaths: list[dict[str, Any]]

    @property
    def pid(self) -> int:
        """The coordinator's process id."""

    def stop(self, patience: float = 10.0) -> None:
        """Lets the coordinator end; after `patience` seconds it is ended."""


class Supervisor:
    """Owns the coordinator's process for as long as the driver lives."""

    def __init__(self, spec: dict[str, Any], failed: Callable[[CutlineError], None]) -> None:
        self.spec = spec
        self.failed = failed
        self.back: Callable[[dict[str, Any]], None] = lambda _doc: None
        self.stopping = False
        self.deaths: list[dict[str, Any]] = []
        self.process = self._start(take_over=False)
        self.first = self._first_line(self.process)
        threading.Thread(target=self._watch, name="cutline-supervisor", daemon=True).start()

    @property
    def pid(self) -> int:
        """The coordinator's process id."""
        return self.process.pid

    def _start(self, take_over: bool) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "cutline.coordinator.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        packed = msgpack.packb({**self.spec, "take_over": take_over})
        assert process.stdin is not None
        try:
            process.stdin.write(len(packed).to_bytes(4, "big") + packed)
            process.stdin.flush()
        except BrokenPipeError:
            # It died at once; the missing first line says so.
            process.wait(timeout=10)
        return process

    def _first_line(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise CutlineError(
                f"the coordinator ended with status {process.wait(timeout=10)} before it was ready"
            )
        doc: dict[str, Any] = msgpack.unpackb(base64.b64decode(line), strict_map_key=False)
        if "error" in doc:
            process.wait(timeout=10)
            raise unpack_error(doc["error"], participant="coordinator", live={})
        return doc

    def _watch(self) -> None:
        """Starts another coordinator whenever one dies; gives up when several do at once."""
        recent: list[float] = []
        while True:
            status = self.process.wait()
            if self.stopping:
                return
            died = time.monotonic()
            recent = [at for at in recent if died - at < 30.0] + [died]
            if status == 0 or len(recent) > _TRIES:
                self.failed(
                    SystemStopped(
                        f"the coordinator has ended (status {status}); run the program again "
                        "to resume from the "
                        "newest checkpoint"
                    )
                )
                return
            pid = self.process.pid
            try:
                self.process = self._start(take_over=True)
                self._first_line(self.process)
            except Exception as error:
                self.failed(SystemStopped(f"no new coordinator could be started: {error}"))
                return
            doc = {"role": "coordinator", "pid": pid, "recovered_ms": (time.monotonic() - died) * 1000}
            self.deaths.append(doc)
            self.back(doc)

    def stop(self, patience: float = 10.0) -> None:
        """Lets the coordinator end; after `patience` seconds its process is ended."""
        self.stopping = True
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
