"""`System`: what the user holds. Starts or resumes a system, spawns, loops, savepoints, stops.

Everything here runs in the user's threads and only talks: to the driver's runner (calls, answers, loop
positions) and through it to the coordinator (spawns, checkpoints). Nothing of the protocol is decided here.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from pathlib import Path
from typing import Any

from cutline.barrier import Member
from cutline.errors import (
    CannotRestore,
    CutlineError,
    Misuse,
    StoreNotWritable,
    SystemHalted,
    SystemStopped,
)
from cutline.participant.classes import name_of
from cutline.participant.driver import DRIVER, DriverState
from cutline.participant.endpoint_file import read_endpoint
from cutline.participant.handle import Handle, bound_port
from cutline.participant.host_process import start_beat
from cutline.participant.ingress import IngressLog
from cutline.participant.method_table import MethodTable
from cutline.participant.parcelling import ParcelDriver
from cutline.participant.persist import Persister
from cutline.participant.processes import process_started
from cutline.participant.program import describe_program
from cutline.participant.runner import Setup
from cutline.participant.transport_grpc import GrpcTransport
from cutline.storage import open_store

from .driver_port import DriverPort, outcome
from .environment import Report, Told, told_by_environment
from .loops import run_loop, sealed
from .ray_noise import OWN_PIDS
from .supervise import Supervising, Supervisor

__all__ = ("System", "start")

_log = logging.getLogger("cutline")
# Seconds for the last checkpoint of a program that was interrupted.
_HURRIED = 5.0


def start(
    storage: str | os.PathLike[str] = "./checkpoints",
    *,
    name: str = "default",
    interval: float | None = 5.0,
    min_pause: float = 0.0,
    full_every: int = 10,
    keep: int = 10,
    checkpoint_timeout: float = 60.0,
    spawn_timeout: float = 60.0,
    driver_grace: float = 30.0,
    by_reference: int = 1 << 20,
    fresh: bool = False,
    restore: str | None = None,
    quiet: bool = False,
    listen: str = "unix:",
    runtime: str | None = None,
    check_awaits: bool = False,
    break_mode: str = "",
) -> System:
    """Starts a system, or resumes it from its newest checkpoint.

    The environment variables CUTLINE_STORAGE and CUTLINE_INTERVAL take the place of two arguments
    (`cutline.coordinator.environment`).

    Args:
        storage: the folder that checkpoints are kept in; made if it is not there.
        name: the system's name; several systems can share a folder.
        interval: seconds from the beginning of one checkpoint to the next; None: only when asked.
        min_pause: seconds of rest after a checkpoint has ended, failed ones too.
        full_every: every how manyth checkpoint writes everything.
        keep: how many checkpoints are kept; savepoints are kept until they are deleted.
        checkpoint_timeout: seconds after which a checkpoint is given up; time inside a handler does not
            count.
        spawn_timeout: seconds that a participant's process may take to come up, waiting for resources
            of the cluster included; SpawnFailed after them, naming what is not there.
        driver_grace: on a Ray cluster that outlives this program: seconds after which the system stops when
            the program has ended without stopping it. A program that is started again need not wait.
        by_reference: bytes; on Ray, arguments with arrays that are at least so large travel through Ray's
            object store, and their large arrays arrive read-only, as Ray's do. 0: none. Calls of the driver
            that are logged (all but those in loops and those with ``durable=False``) travel as bytes.
        fresh: begin anew even if there is something to resume. Nothing old is deleted.
        restore: a checkpoint id or a savepoint's label: begin a new lineage from there. Inputs that were
            logged after it are not delivered again.
        quiet: no lines about losses and recoveries on standard error.
        runtime: ``"process"``: plain processes of this machine; ``"ray"``: Ray actors. Without it: Ray if
            the program has connected to Ray.
        check_awaits: look at every stretch of every async handler for state that is changed before an
            await, and not only at the first calls of each while the state is small. Costs a pickle of the
            state for each.
        listen: where the coordinator listens: ``unix:`` (a private socket) or ``127.0.0.1:PORT``.

    Raises:
        StoreNotShared: a node of the Ray cluster does not see the folder; the message names it.
        StoreInUse: a live system of that name owns the folder; the message names its process.
        NewerFormat, StoreNotWritable, StoreFull: the folder cannot be used.
        CheckpointNotFound: `restore` names nothing.
        ClassMissing, CannotRestore: the program lacks what the checkpoint names.
        PortInUse: the address of `listen` is taken.
        Misuse: an environment variable has a value that means nothing.
    """
    told = told_by_environment(storage, interval)
    if not quiet and not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("cutline: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    folder = Path(told.storage).absolute()
    chosen = _runtime(runtime)
    settings = {
        "system": name,
        "interval": told.interval,
        "min_pause": min_pause,
        "full_every": full_every,
        "keep": keep,
        "checkpoint_timeout": checkpoint_timeout,
        "spawn_timeout": spawn_timeout,
        # Plain processes notice the end of the driver's pipe.
        "driver_grace": driver_grace if chosen == "ray" else None,
        "check_awaits": check_awaits,
        "by_reference": by_reference,
        "break_mode": break_mode,
    }
    spec = {
        "settings": settings,
        "store": str(folder),
        "token": secrets.token_hex(16),
        "driver_pid": os.getpid(),
        "listen": listen,
        "runtime": chosen,
        "run_folder": tempfile.mkdtemp(prefix="cutline-run-"),
        "program": describe_program(),
        "fresh": fresh,
        "restore": restore,
    }
    return System(spec, folder, quiet, told)


def _runtime(wanted: str | None) -> str:
    if wanted is None:
        ray = sys.modules.get("ray")
        return "ray" if ray is not None and ray.is_initialized() else "process"
    if wanted not in ("process", "ray"):
        raise Misuse(f'runtime is "process" or "ray"; got {wanted!r}')
    return wanted


def _supervise(spec: dict[str, Any], failed: Callable[[CutlineError], None]) -> Supervising:
    if spec["runtime"] == "process":
        return Supervisor(spec, failed)
    # Ray is an extra: nothing of it is imported by who runs plain processes.
    from .ray_actor import RaySupervisor, connect_ray

    for line in connect_ray():
        _log.info(line)
    return RaySupervisor(spec, failed)


class System:
    """A running system. Use as a context manager, or call `stop`."""

    def __init__(self, spec: dict[str, Any], folder: Path, quiet: bool, told: Told) -> None:
        self.name: str = spec["settings"]["system"]
        self.folder = folder
        self.notices: list[dict[str, Any]] = []
        self._quiet = quiet
        self._run_folder: str = spec["run_folder"]
        self._stopped = False
        self._stop_lock = threading.Lock()
        try:
            self._supervisor = _supervise(spec, self._coordinator_gone)
        except BaseException:
            shutil.rmtree(self._run_folder, ignore_errors=True)
            raise
        try:
            self._build(spec)
            outcome(self._runner.went, 120.0, "first checkpoint")
        except BaseException as error:
            self._close()
            if isinstance(error, SystemHalted) and isinstance(error.__cause__, CannotRestore):
                # What keeps it from starting is the program's to mend: it is told as that.
                raise error.__cause__ from None
            raise
        self._port.numbers_from(self._runner.desk.next_number)
        self._undo = bound_port(self._port, thread_only=False)
        atexit.register(self._at_exit)
        for text in self._supervisor.first.get("damaged", ()):
            self._say(f"passed over: {text}")
        if self.resumed:
            self._say(
                f"resumed from checkpoint {self.resumed} ({len(self._runner.known_names) - 1} participants)"
            )
        self._report = Report(told.report, self.name, told.interval, self.notices)

    def _build(self, spec: dict[str, Any]) -> None:
        lineage = self._supervisor.first["lineage"]
        self.lineage: str = lineage
        self.resumed: int = self._supervisor.first["resumed"]
        store = open_store(str(self.folder), create=False)
        self.store = store
        setup = Setup(
            system=self.name,
            run=lineage,
            member=Member(DRIVER, 0),
            class_name=name_of(DriverState),
            options={},
            started=process_started(os.getpid()),
            by_reference=spec["settings"]["by_reference"],
        )
        token = spec["token"]

        def coordinator() -> str:
            endpoint = read_endpoint(self.folder, self.name)
            return endpoint.address if endpoint is not None and endpoint.token == token else ""

        runner = ParcelDriver(setup, store.blobs, coordinator, classes=MethodTable())
        runner.parcels.store = self._supervisor.parcel_store
        runner.log = IngressLog(self.folder / "ingress" / f"{lineage}.log")
        self._runner = runner
        runner.notice = self._noticed
        transport = GrpcTransport(
            token, runner.post, "unix:", DRIVER, greeting=lambda: runner.peers.greeting()
        )
        runner.attach(transport, Persister(store.blobs, runner.post, DRIVER))
        self._port = DriverPort(runner, self._supervisor.cluster, runner.parcels.join)
        runner.be_born(DriverState)
        runner.address = transport.start()
        self._stop_beat = start_beat(runner)
        self._thread = threading.Thread(target=self._run, name="cutline-driver", daemon=True)
        self._supervisor.back = self._coordinator_back
        self._thread.start()

    def _run(self) -> None:
        runner = self._runner
        try:
            reason = runner.run()
        except Exception as error:
            _log.exception("the driver's participant failed")
            runner.die(SystemStopped(f"the driver's participant failed: {type(error).__name__}: {error}"))
            return
        runner.die(SystemStopped(f"the system has ended: {reason}"))

    # -- participants ----------------------------------------------------------------------

    def spawn(self, name: str, kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Handle:
        """Starts a participant, or finds the restored one of that name.

        The new participant is captured once before this returns, so that a state that cannot go into an
        image is known now.

        Args:
            name: stable name; it is the participant's identity over restarts.
            kind: any class; its constructor gets the remaining arguments.

        Raises:
            DuplicateName: this program has spawned that name before.
            CannotCapture: the new state cannot go into an image; the message names the attribute path.
            SpawnFailed: the process did not come up.
            Exception: whatever the constructor raised.
        """
        handle, up = self._port.births.spawn(name, kind, None, args, kwargs)
        self._port.births.wait_up(name, up)
        return handle

    def ready(self, handles: Handle | Iterable[Handle], timeout: float | None = None) -> None:
        """Waits until the participants of these handles are up.

        Args:
            timeout: seconds for all of them together; TimeoutError after them.

        Raises:
            Exception: what kept the first failed one from coming up, as `spawn` raises it.
        """
        self._port.births.ready([handles] if isinstance(handles, Handle) else handles, timeout)

    def handle(self, name: str) -> Handle:
        """A handle by name, also of a participant that is spawned later (cyclic wiring)."""
        return Handle(name, self._runner.known_names.get(name, ""), self._port)

    # -- the driver's own position ---------------------------------------------------------

    def loop(self, name: str, times: int, body: Callable[[int], Any]) -> None:
        """Runs ``body(step)`` for step = 0 ... times-1, each step once in the history that remains.

        The position is part of every checkpoint. After a recovery, or when the program is started again,
        the loop goes on at the position of the checkpoint, and calls of the interrupted step that are in
        the checkpoint are not sent again. So the body must make the same calls at the same step. When the
        loop is through, a checkpoint is taken, so that no recovery goes back into it.

        Raises:
            ReplayMismatch: the body did something else at the same step.
            CheckpointAborted: the checkpoint after the last step did not commit.
        """
        run_loop(self._port, self.checkpoint, name, times, body)

    # -- checkpoints -----------------------------------------------------------------------

    def _request(self, what: str, timeout: float | None = None, **fields: Any) -> Any:
        done: Future[Any] = Future()
        self._port.check()
        self._runner.post(lambda: self._runner.request(what, fields, done))
        return outcome(done, timeout, f"reply of the coordinator to {what!r}")

    def checkpoint(self) -> int:
        """Takes a checkpoint now and returns its id when it is committed.

        Raises:
            CheckpointAborted: it did not commit; the message says why. Nothing is lost, ask again.
        """
        number: int = self._request("checkpoint")["checkpoint"]
        return number

    def savepoint(self, label: str) -> int:
        """Takes a labelled, self-contained checkpoint that is kept until it is deleted; returns its id.

        Raises:
            DuplicateLabel: the label is taken.
            CheckpointAborted: it did not commit.
        """
        number: int = self._request("savepoint", label=label)["checkpoint"]
        return number

    def checkpoints(self) -> list[Any]:
        """The committed checkpoints of this system, oldest first, with their figures."""
        rows: list[Any] = self.store.catalog.checkpoints(self.name)
        return rows

    def drain(self, node: str, timeout: float = 120.0) -> dict[str, str]:
        """Moves all participants off a node of the cluster; returns where each of them is now.

        A checkpoint is taken first; what is done after it is done again elsewhere. Nothing is started on
        that node any more. Ray's own draining of a node (``ray drain-node``, preemption) does the same.

        Raises:
            Misuse: there is no such node, or somebody's options allow no other; the message names both.
            TimeoutError: not everybody was elsewhere in `timeout` seconds.
        """
        places: dict[str, str] = self._request("drain", timeout, node=node)
        return places

    def status(self) -> dict[str, Any]:
        """What is going on: phase and process of each participant, the newest checkpoint, "
        "what is undecided."""
        doc: dict[str, Any] = self._request("status", timeout=30.0)
        return doc

    @property
    def coordinator_pid(self) -> int:
        """The process id of the coordinator that runs now."""
        return self._supervisor.pid

    @property
    def coordinator_deaths(self) -> list[dict[str, Any]]:
        """Coordinators that died under this system, with the time until the next one was there."""
        return list(self._supervisor.deaths)

    # -- what happens ----------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if not self._quiet:
            _log.info(text)

    def _noticed(self, doc: dict[str, Any]) -> None:
        self.notices.append({**doc, "at": time.monotonic()})
        what = doc["what"]
        if what == "joined":
            OWN_PIDS.add(doc["pid"])
        elif what == "recovered" and doc["causes"]:
            lost = ", ".join(doc["lost"]) or "nobody"
            self._say(
                f"{lost} lost, all back at checkpoint {doc['checkpoint']} ({doc['age']:.1f} s old), "
                f"{doc['in_flight']} in-flight messages re-delivered, going on"
            )
        elif what == "recovered" and doc["reason"] not in ("", "resume"):
            self._say(f"{doc['reason']}: all back at checkpoint {doc['checkpoint']}, going on")
        elif what == "damaged":
            self._say(f"passed over: {doc['text']}")
        elif what == "aborted":
            self._say(f"checkpoint {doc['checkpoint']} was aborted: {doc['reason']}")
        elif what == "spawn_failed":
            self._say(f"{doc['spawner']} spawned {doc['name']}, which did not come up: {doc['text']}")
        elif what == "undelivered":
            self._say(f"{doc['sender']} told {doc['name']}.{doc['method']}, nobody's name: a dead letter")
        elif what in ("catalog_unreachable", "sweep_failed"):
            self._say(f"{what.replace('_', ' ')}: {doc['text']}")

    def _coordinator_back(self, doc: dict[str, Any]) -> None:
        self.notices.append({**doc, "what": "coordinator_back", "at": time.monotonic()})
        self._say(f"the coordinator (process {doc['pid']}) was lost, another one took over")

    def _coordinator_gone(self, error: CutlineError) -> None:
        self._runner.post(lambda: self._runner.fail_all(error))

    # -- the end ---------------------------------------------------------------------------

    def stop(self, *, checkpoint: bool = True) -> None:
        """Stops every process of the system. Idempotent.

        Args:
            checkpoint: take a last checkpoint, so that the next start goes on exactly here. A system
                that has halted or cannot take one stops all the same.
        """
        self._stop(checkpoint, 30.0)

    def _stop(self, checkpoint: bool, patience: float) -> None:
        with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
        for name, error in self._port.births.untold().items():
            self._say(f"{name} never came up: {type(error).__name__}: {error}")
        try:
            self._report.write()
        except StoreNotWritable as error:
            self._say(f"no report was written: {error}")
        try:
            if checkpoint and self._runner.fault is None:
                self._runner.rolled_back = None
                last = sealed(lambda: int(self._request("checkpoint", timeout=patience)["checkpoint"]))
                self._say(f"stopped at checkpoint {last}")
        except (CutlineError, TimeoutError) as error:
            self._say(f"stopped without a last checkpoint: {error}")
        finally:
            self._close()

    def _close(self) -> None:
        runner = getattr(self, "_runner", None)
        self._supervisor.stopping = True
        # Without a thread it was interrupted before it had begun.
        if runner is not None and hasattr(self, "_thread"):
            if runner.fault is None:
                done: Future[Any] = Future()
                runner.post(lambda: runner.request("stop", {}, done))
                wait_futures([done], timeout=5.0)
            runner.post(lambda: setattr(runner, "ended", "stopped"))
            self._port.gates.close()
            self._thread.join(timeout=10.0)
        if hasattr(self, "_stop_beat"):
            self._stop_beat()
        self._supervisor.stop()
        shutil.rmtree(self._run_folder, ignore_errors=True)
        if runner is not None:
            runner.transport.close()
            runner.persister.close()
            if runner.log is not None:
                runner.log.close()
        if hasattr(self, "_undo"):
            self._undo()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self._leave(getattr(sys, "last_type", None))

    def _leave(self, error: type[BaseException] | None) -> None:
        """A person who interrupts a program does not wait for a handler of half a minute."""
        hurried = error is not None and issubclass(error, KeyboardInterrupt)
        self._stop(True, _HURRIED if hurried else 30.0)

    def __enter__(self) -> System:
        return self

    def __exit__(self, error: type[BaseException] | None, *_details: object) -> None:
        self._leave(error)
