"""`System`: what the user holds. Starts or resumes a system, spawns, loops, savepoints, stops.

Everything here runs in the user's threads and only talks: to the driver's runner (calls, answers, loop
positions) and through it to the coordinator (spawns, checkpoints). Nothing of the protocol is decided here.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from pathlib import Path
from typing import Any

from cutline.errors import CutlineError, Misuse, StoreNotWritable, SystemStopped
from cutline.participant.allowing import check_allow
from cutline.participant.driver import DriverState
from cutline.participant.handle import Handle, bound_port
from cutline.participant.host_process import start_beat
from cutline.participant.keys import KEY_SECONDS
from cutline.participant.outbox import OUTBOX_BYTES
from cutline.participant.program import new_program
from cutline.participant.room import WAITING_INPUTS
from cutline.participant.saying import said
from cutline.participant.scratch import RUN, let_go, make_folder
from cutline.participant.spill import SPILL_BYTES
from cutline.storage.blobs import check_name

from .asking import Asking
from .authority import opened_with_key, store_key
from .departing import depart
from .driver_port import DriverPort, outcome
from .driver_seat import clear_seat, make_driver
from .effect_rows import chosen_rule
from .environment import Report, Told, chosen_runtime, chosen_store, told_by_environment
from .input_retention import input_options
from .loops import run_loop, sealed
from .ray_noise import OWN_PIDS
from .sinks import SinkLike, chosen_sinks, publish_the_rest
from .supervise import supervise
from .suspending import Suspended, suspended_cut
from .telling import lines_about, tell_people, to_be_mended

__all__ = ("System", "start")

_log = logging.getLogger("cutline")
# Seconds for the last checkpoint of a program that was interrupted.
_HURRIED = 5.0


def start(
    storage: str | os.PathLike[str] = "./checkpoints",
    *,
    name: str = "default",
    interval: float | None = 5.0,
    min_pause: float | None = None,
    full_every: int | None = None,
    keep: int = 10,
    checkpoint_timeout: float = 60.0,
    spawn_timeout: float = 60.0,
    driver_grace: float = 30.0,
    by_reference: int = 1 << 20,
    spares: int | None = None,
    outbox_bytes: int = OUTBOX_BYTES,
    spill_bytes: int = SPILL_BYTES,
    remember_keys: float = KEY_SECONDS,
    waiting_inputs: int = WAITING_INPUTS,
    sinks: Mapping[str, SinkLike] | None = None,
    fresh: bool = False,
    restore: str | None = None,
    effects: str | None = None,
    quiet: bool = False,
    listen: str = "unix:",
    trust: bool = False,
    allow: Iterable[str] | None = None,
    runtime: str | None = None,
    check_awaits: bool = False,
    break_mode: str = "",
) -> System:
    """Starts a system, or resumes it from its newest checkpoint.

    The environment variables CUTLINE_STORAGE and CUTLINE_INTERVAL take the place of two arguments
    (`cutline.coordinator.environment`).

    Args:
        storage: the folder that checkpoints are kept in, made if it is not there; or a URL of a bucket with a
            catalog in PostgreSQL (README, "Where checkpoints are kept").
        name: the system's name; several systems can share a folder.
        interval: seconds from the beginning of one checkpoint to the next; None: only when asked.
        min_pause: least seconds from the end of one to the next periodic one; None: interval / 2, at most 1.
        full_every: every how manyth checkpoint writes everything. None: only the first and savepoints are
            asked to; each participant does it by itself when its packs hold too much that is superseded.
        keep: how many checkpoints are kept; savepoints are kept until they are deleted.
        checkpoint_timeout: seconds until a checkpoint is given up; time inside a handler does not count.
        spawn_timeout: seconds that a participant's process may take to come up, waiting for resources
            of the cluster included; SpawnFailed after them, naming what is not there.
        driver_grace: on a Ray cluster that outlives this program: seconds after which the system stops when
            the program has ended without stopping it. A program that is started again need not wait.
        by_reference: on Ray, bytes from which on arguments with arrays travel through its object store, and
            arrive read-only (docs/ray.md); 0: none.
        spares: on Ray, workers kept ready for who is lost and has no resources of its own; None: docs/ray.md.
        outbox_bytes: what a participant has sent and others have not taken, from which on it takes nothing.
        spill_bytes: where several wait for each other so, the room on disk for each one's; then the system
            halts with `Overloaded`.
        remember_keys: seconds for which an idempotency key is remembered (``options(key=...)``), by all that
            follows from the checkpoint it is in; and as long as its question has no answer.
        waiting_inputs: how many calls of this program may wait to be taken; over it a call waits for room, or
            raises `InputRefused` (``options(wait=SECONDS)``).
        sinks: what `cutline.emit` names: a `FileSink`, a `PostgresSink`, or a function of a module, which
            participants call with each value (and a ``key``, if it takes one): at least once.
        fresh: begin anew even if there is something to resume. Nothing old is deleted.
        restore: a checkpoint id or a savepoint's label: begin a new lineage from there. Inputs that were
            logged after it are not delivered again.
        effects: ``"live"``, ``"block"`` (`effect` and `emit` wait until ``cutline effects --allow``) or
            ``"recorded"`` (outcomes of the origin, see `cutline.fork`). None: as before; a fork is blocked.
        quiet: no lines about losses and recoveries on standard error.
        runtime: ``"process"`` or ``"ray"``; without it: Ray if the program has connected to Ray.
        check_awaits: look at every stretch of every async handler for state that is changed before an
            await, and not only at the first calls of each while the state is small. Costs a pickle of the
            state for each.
        listen: where the coordinator listens: ``unix:`` (a private socket), ``127.0.0.1:PORT``, or for other
            machines ``tls:HOST:PORT``; on Ray ``tls:``, the default if nodes are on other machines by now.
        trust: a store whose key is not here is taken over: it gets a new key, and what is in it counts as
            authentic from then on. Whoever wrote it can make any code run here (README, "Whose it is").
        allow: dotted names of packages, modules, classes: nothing else may stored states and messages name.

    Raises:
        StoreNotShared: a node of the Ray cluster does not see the folder; the message names it.
        StoreInUse: a live system of that name owns the folder; the message names its process.
        ForeignStore: the key of the store is not here; the message says how to bring it.
        NewerFormat, StoreNotWritable, StoreFull, StoreForbidden, StoreUnreachable: it cannot be used.
        CheckpointNotFound: `restore` names nothing.
        ClassMissing, CannotRestore: the program lacks what the checkpoint names.
        BelowHorizon: the newest checkpoint is damaged, and what left after the one before cannot be undone.
        PortInUse: the address of `listen` is taken. OutputRefused: a sink is not what it must be.
        Misuse: an environment variable has a value that means nothing.
    """
    told = told_by_environment(storage, interval)
    tell_people(quiet)
    chosen = chosen_runtime(runtime)
    settings = {
        "system": check_name(name, "system"),
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
        "spares": spares,
        "outbox_bytes": outbox_bytes,
        "spill_bytes": spill_bytes,
        **input_options(remember_keys, waiting_inputs),
        "break_mode": break_mode,
        "sinks": chosen_sinks(sinks),
    }
    spec: dict[str, Any] = {
        "settings": settings,
        **(place := chosen_store(told.storage)),
        "key": store_key(place["store"], trust=trust),
        "allow": check_allow(allow),
        "token": secrets.token_hex(16),
        "driver_pid": os.getpid(),
        "listen": listen,
        "runtime": chosen,
        "run_folder": make_folder(RUN),
        "program": new_program(),
        "fresh": fresh,
        "restore": restore,
        "effects": None if effects is None else chosen_rule(effects),
    }
    return System(spec, Path(spec["home"]), quiet, told)


class System(Asking):
    """A running system. Use as a context manager, or call `stop`."""

    def __init__(
        self,
        spec: dict[str, Any],
        folder: Path,
        quiet: bool,
        told: Told,
        *,
        running: dict[str, Any] | None = None,
        patience: float = 120.0,
    ) -> None:
        self.name: str = spec["settings"]["system"]
        self.folder = folder
        self.notices: list[dict[str, Any]] = []
        self._quiet = quiet
        self._run_folder: str = spec["run_folder"]
        self._stopped = False
        # Whether the system was there before this program, and stays when it ends.
        self._visits = running is not None
        self._stop_lock = threading.Lock()
        try:
            self._supervisor = supervise(spec, self._coordinator_gone, running)
        except BaseException:
            let_go(self._run_folder, remove=running is None)
            raise
        try:
            self._build(spec, "" if running is None else running["launch"])
            outcome(self._runner.went, patience, "first checkpoint")
        except BaseException as error:
            self._close(goes_on=self._visits)
            if (cause := to_be_mended(error)) is not None:
                raise cause from None
            raise
        self._port.numbers_from(self._runner.desk.next_number)
        self._undo = bound_port(self._port, thread_only=False)
        atexit.register(self._at_exit)
        for text in self._supervisor.first.get("damaged", ()):
            self._noticed({"what": "damaged", "text": text})
        if self.resumed:
            self._say(
                f"resumed from checkpoint {self.resumed} ({len(self._runner.known_names) - 1} participants)"
            )
        self._report = Report(told.report, self.name, told.interval, self.notices)

    def _build(self, spec: dict[str, Any], launch: str) -> None:
        self.lineage: str = self._supervisor.first["lineage"]
        self.resumed: int = self._supervisor.first["resumed"]
        self.store = opened_with_key(spec, create=False)
        runner = make_driver(spec, self.folder, self.store, self.lineage, launch, self._supervisor.host)
        runner.parcels.store = self._supervisor.parcel_store
        runner.notice = self._noticed
        self._runner = runner
        self._port = DriverPort(runner, self._supervisor.cluster, runner.parcels.join)
        runner.be_born(DriverState)
        runner.address = runner.transport.start()
        self._stop_beat = start_beat(runner)
        self._thread = threading.Thread(target=self._run, name="cutline-driver", daemon=True)
        self._supervisor.back = self._coordinator_back
        self._thread.start()

    def _run(self) -> None:
        runner = self._runner
        try:
            end = f"the system has ended: {runner.run()}"
        except Exception as error:
            _log.exception("the driver's participant failed")
            end = f"the driver's participant failed: {said(error)}"
        runner.die(SystemStopped(end))

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

    def stop_participant(self, participant: Handle | str, timeout: float | None = None) -> None:
        """Has a participant leave, and returns when it is gone and its name is free.

        What this program has sent to it before is handled before; who asks it later is answered with
        `ParticipantLeft`. The order to leave is logged, like a call. Participants leave by themselves with
        `cutline.leave()`.

        Args:
            timeout: seconds; TimeoutError after them, and it leaves all the same.

        Raises:
            UnknownParticipant: nobody has that name.
            RolledBack: the system went back to a checkpoint before it had left. The order is logged: it will
                leave again.
        """
        name = participant if isinstance(participant, str) else participant._cutline_name
        self._port.stop(name, lambda: bool(self._request("await_left", timeout, name=name)["gone"]), timeout)

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
        if doc["what"] == "joined":
            OWN_PIDS.add(doc["pid"])
        for line in lines_about(doc):
            self._say(line)

    def _coordinator_back(self, doc: dict[str, Any]) -> None:
        self.notices.append({**doc, "what": "coordinator_back", "at": time.monotonic()})
        self._say(f"the coordinator (process {doc['pid']}) was lost, another one took over")

    def _coordinator_gone(self, error: CutlineError) -> None:
        self._runner.post(lambda: self._runner.fail_all(error))

    # -- the end ---------------------------------------------------------------------------

    def detach(self, timeout: float = 60.0) -> int:
        """Leaves the system, which goes on without this program; returns the checkpoint that it left with.

        Only on a Ray cluster that outlives this program. All that was told and asked is taken first; answers
        that have not come by then wait for the next program, which `cutline.connect` makes the driver.

        Raises:
            Misuse: the system would end with this program; the message says why.
            TimeoutError: somebody has not taken what was sent in `timeout` seconds; nothing has changed.
            RolledBack: the system went back behind something that this session has seen; nothing has changed.
        """
        why = self._supervisor.bound or ("a loop's body is running" if self._port.in_loop else "")
        if why:
            raise Misuse(f"system {self.name!r} cannot go on without this program: {why}")
        with self._stop_lock:
            if self._stopped:
                raise SystemStopped(f"system {self.name!r} was stopped, or left, by this program before")
            last = depart(self._port, self._runner, self._request, timeout)
            self._stopped = True
        self._tell_at_the_end()
        self._say(f"left at checkpoint {last}; the system goes on")
        self._close(goes_on=True)
        return last

    def stop(self, *, checkpoint: bool = True) -> None:
        """Stops every process of the system. Idempotent; in a fork of the program it does nothing.

        Args:
            checkpoint: take a last checkpoint, so that the next start goes on exactly here. A system
                that has halted or cannot take one stops all the same.
        """
        self._stop(checkpoint, 30.0)

    def _stop(self, checkpoint: bool, patience: float) -> None:
        with self._stop_lock:
            if self._stopped or self._runner.is_copy:
                return
            self._stopped = True
        self._tell_at_the_end()
        try:
            if self._runner.fault is None:
                self._runner.rolled_back = None
                # A call that is under way is let come to its end, or nobody would know what became of it.
                self._request("rest_effects", timeout=patience, seconds=patience / 2)
            if checkpoint and self._runner.fault is None:
                last = sealed(lambda: int(self._request("checkpoint", timeout=patience)["checkpoint"]))
                self._say(f"stopped at checkpoint {last}")
                publish_the_rest(self._request, self._say, patience)
        except (CutlineError, TimeoutError) as error:
            self._say(f"stopped without a last checkpoint: {error}")
        finally:
            self._close(goes_on=False)

    def _suspend(self, label: str) -> Suspended:
        if self._port.in_loop:
            raise Misuse(f"system {self.name!r} cannot be suspended inside a loop's body")
        with self._stop_lock:
            if self._stopped:
                raise SystemStopped(f"system {self.name!r} was stopped, or left, by this program before")
            self._runner.rolled_back = None
            found = suspended_cut(self._request, self._say, self.store, self.name, label)
            self._stopped = True
        self._tell_at_the_end()
        self._say(f"suspended at checkpoint {found.checkpoint} ({label}); cutline.start goes on from there")
        self._close(goes_on=False)
        return found

    def _tell_at_the_end(self) -> None:
        for name, error in self._port.births.untold().items():
            self._say(f"{name} never came up: {said(error)}")
        try:
            self._report.write()
        except StoreNotWritable as error:
            self._say(f"no report was written: {error}")

    def _close(self, *, goes_on: bool) -> None:
        runner = getattr(self, "_runner", None)
        self._supervisor.stopping = True
        # Without a thread it was interrupted before it had begun.
        if runner is not None and hasattr(self, "_thread"):
            if goes_on:
                left = SystemStopped(
                    f"this program has left system {self.name!r}; cutline.connect({self.name!r}) comes back"
                )
                runner.post(lambda: runner.fail_all(left))
            elif runner.fault is None:
                done: Future[Any] = Future()
                runner.post(lambda: runner.request("stop", {}, done))
                wait_futures([done], timeout=5.0)
            runner.post(lambda: setattr(runner, "ended", "stopped"))
            self._port.gates.close()
            self._thread.join(timeout=10.0)
        if hasattr(self, "_stop_beat"):
            self._stop_beat()
        if goes_on:
            self._supervisor.leave()
        else:
            self._supervisor.stop()
        let_go(self._run_folder, remove=not goes_on)
        if hasattr(self, "store"):
            clear_seat(runner, self.store, self.name)
        if hasattr(self, "_undo"):
            self._undo()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self._leave(getattr(sys, "last_type", None))

    def _leave(self, error: type[BaseException] | None) -> None:
        """A person who interrupts a program does not wait for a handler of half a minute."""
        hurried = error is not None and issubclass(error, KeyboardInterrupt)
        patience = _HURRIED if hurried else 30.0
        if not self._visits:
            self._stop(True, patience)
        elif not (self._stopped or self._runner.is_copy):
            self._end_the_visit(patience)

    def _end_the_visit(self, patience: float) -> None:
        try:
            self._runner.rolled_back = None
            self.detach(patience)
        except (CutlineError, TimeoutError) as error:
            self._say(f"left without a last checkpoint: {error}")
            self._stopped = True
            self._close(goes_on=True)

    def __enter__(self) -> System:
        return self

    def __exit__(self, error: type[BaseException] | None, *_details: object) -> None:
        self._leave(error)
