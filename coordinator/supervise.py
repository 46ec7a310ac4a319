"""The driver's hold on the coordinator's process: start it, notice its death, start another one."""

from __future__ import annotations

import base64
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgpack

from cutline.errors import CutlineError, SystemStopped
from cutline.participant.messages import unpack_error
from cutline.participant.parcels import ParcelStore
from cutline.participant.scratch import hold, sweep

__all__ = ("Supervising", "Supervisor", "supervise")

_log = logging.getLogger("cutline")
# How many may die in a row, each soon after its start: of themselves, and by SIGKILL from outside.
_TRIES, _KILLED = 5, 20
# Seconds after which a coordinator that dies has not failed at once.
_SETTLED = 3.0
_living: weakref.WeakSet[Supervisor] = weakref.WeakSet()


class Supervising(Protocol):
    """The driver's hold on a coordinator, whatever that runs in."""

    first: dict[str, Any]
    # Which cluster it runs on, where options of participants can name places of one.
    cluster: str
    # The address that other machines reach this program at, if the system spans several.
    host: str
    parcel_store: ParcelStore | None
    back: Callable[[dict[str, Any]], None]
    stopping: bool
    deaths: list[dict[str, Any]]

    @property
    def pid(self) -> int:
        """The coordinator's process id."""

    @property
    def bound(self) -> str:
        """Why the system cannot outlive this program, for people; empty if it can."""

    def leave(self) -> None:
        """Lets go of a coordinator that goes on without this program."""

    def stop(self, patience: float = 10.0) -> None:
        """Lets the coordinator end; after `patience` seconds it is ended."""


class Supervisor:
    """Owns the coordinator's process for as long as the driver lives."""

    cluster = ""
    host = ""
    parcel_store: ParcelStore | None = None
    bound = "plain processes belong to the program that has started them, and write to its terminal"

    def __init__(self, spec: dict[str, Any], failed: Callable[[CutlineError], None]) -> None:
        self.spec = spec
        self.failed = failed
        self.back: Callable[[dict[str, Any]], None] = lambda _doc: None
        self.stopping = False
        self.deaths: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.process = self._start(take_over=False)
        _living.add(self)
        try:
            self.first = self._first_line(self.process)
        except BaseException:
            self.stop()
            raise
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
        lineage = self.first["lineage"] if take_over else ""
        packed = msgpack.packb({**self.spec, "take_over": take_over, "lineage": lineage})
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
        tries, up = 0, time.monotonic()
        while True:
            status = self.process.wait()
            died = time.monotonic()
            tries = tries + 1 if died - up < _SETTLED else 1
            pid, reason = self.process.pid, f"status {status}"
            if status == 0:
                self._give_up(reason)
                return
            while True:
                if self.stopping:
                    return
                if tries > (_KILLED if status == -signal.SIGKILL else _TRIES):
                    self._give_up(reason)
                    return
                try:
                    self._replace()
                    break
                except Exception as error:
                    # It may have been ended while it started; what is really wrong stays wrong.
                    tries, reason = tries + 1, str(error)
            up = time.monotonic()
            doc = {"role": "coordinator", "pid": pid, "recovered_ms": (up - died) * 1000}
            self.deaths.append(doc)
            self.back(doc)

    def _replace(self) -> None:
        with self._lock:
            if self.stopping:
                return
            process, before = self._start(take_over=True), self.process
            self.process = process
        _hang_up(before)
        self._first_line(process)

    def _give_up(self, reason: str) -> None:
        if not self.stopping:
            self.failed(
                SystemStopped(
                    f"the coordinator has ended ({reason}); run the program again to resume from the "
                    "newest checkpoint"
                )
            )

    def leave(self) -> None:
        """Never called: see `bound`."""
        raise AssertionError(self.bound)

    def stop(self, patience: float = 10.0) -> None:
        """Lets the coordinator end; after `patience` seconds its process is ended."""
        with self._lock:
            self.stopping = True
            process = self.process
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(timeout=patience)
        except BrokenPipeError:
            process.wait()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _hang_up(process)


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """Closes the pipes of a coordinator that has ended."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def supervise(
    spec: dict[str, Any], failed: Callable[[CutlineError], None], running: dict[str, Any] | None
) -> Supervising:
    """Starts a coordinator, or takes hold of one that another program has left `running`."""
    hold(spec["run_folder"])
    sweep()
    if spec["runtime"] == "process":
        return Supervisor(spec, failed)
    # Ray is an extra: nothing of it is imported by who runs plain processes.
    from .ray_actor import RaySupervisor, connect_ray

    for line in connect_ray():
        _log.info(line)
    return RaySupervisor(spec, failed, running)


def _after_fork_in_child() -> None:
    """The end of this pipe tells the coordinator that its driver is gone; a fork would keep it open."""
    for supervisor in list(_living):
        if supervisor.process.stdin is not None:
            supervisor.process.stdin.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
