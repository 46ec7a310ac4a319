"""How a coordinator begins and ends, whatever it runs in: lease, lineage, transport, launcher, endpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cutline.errors import CutlineError, RefusedOption, StorageError, StoreInUse, StoreNotWritable
from cutline.participant.allowing import restrict
from cutline.participant.clock import wall
from cutline.participant.control import pack_control
from cutline.participant.endpoint_file import Endpoint, remove_endpoint, write_endpoint
from cutline.participant.persist_client import chosen_persister
from cutline.participant.places import machine_id, network_address
from cutline.participant.processes import process_alive, process_started
from cutline.participant.scratch import hold, let_go
from cutline.participant.transport_grpc import GrpcTransport
from cutline.storage import Lease, Owner, Store, locate
from cutline.storage.catalog import Catalog, Place
from cutline.storage.collect import MADE_WHOLE
from cutline.storage.effects import RECORDED, Rule
from cutline.storage.importing import claimed_by
from cutline.storage.verify import faults_of

from .authority import key_of, opened_with_key
from .client import Client
from .cycles import seldom_looking
from .ending import await_ends
from .input_retention import InputRetention
from .launch import Launcher, ProcessLauncher
from .outlet import Opened, close_sinks, opened_sinks
from .runner import LEASE_SECONDS, Coordinator, Settings
from .step_retention import forget_steps

__all__ = ("begin", "coordinate", "lineage_to_run")

_PATIENCE = 5.0
# Seconds: an owner that is on its way out waits for its participants, or its lease runs out.
_LEAVING = LEASE_SECONDS + 2 * _PATIENCE
# Seconds that participants have to come out of a handler at the end: nothing of it will be kept.
_GRACE = 2.0


def coordinate(coordinator: Coordinator, store: Store, spec: dict[str, Any]) -> str:
    """Coordinates until the end, then lets go of everything; returns why it ended."""
    try:
        with seldom_looking():
            reason = coordinator.run()
    except BaseException:
        # It failed; whoever takes over needs the participants, and the folder that their sockets are in.
        coordinator.transport.close()
        coordinator.launcher.close()
        store.catalog.release_lease(coordinator.lease)
        raise
    try:
        # What was said to them must leave before the links are closed; then they end by themselves.
        coordinator.transport.close()
        await_ends(coordinator.launcher, coordinator.roster, _GRACE)
        coordinator.output.close()
        coordinator.launcher.close()
        let_go(spec["run_folder"], remove=True)
    finally:
        remove_endpoint(Path(spec["home"]), coordinator.settings.system, os.getpid())
        if not (coordinator.ended or "").startswith("fenced"):
            store.catalog.release_lease(coordinator.lease)
    return reason


def begin(
    spec: dict[str, Any], launcher_kind: Callable[..., Launcher] = ProcessLauncher, host: str = ""
) -> tuple[Coordinator, Store]:
    """A coordinator that holds the lease, listens, and knows what to do first.

    Args:
        host: the address that other machines reach this one at; empty if nobody knows.

    Raises:
        RefusedOption: it is to listen for other machines at an address that nobody knows.
        StoreInUse: a live system owns the storage folder; the message names it.
        CheckpointNotFound: the point to restore does not exist.
    """
    settings = Settings(**spec["settings"])
    hold(spec["run_folder"])
    restrict(settings.system, spec["allow"])
    store = opened_with_key(spec, create=True)
    home = _made(Path(spec["home"]))
    lease = _acquire(store, settings.system, spec["driver_pid"], home)
    opened: dict[str, Opened | StorageError] = {}
    try:
        # What is refused is refused before there is a lineage: the next start would go on from that one.
        network = network_address(spec["listen"], host)
        if not spec["take_over"]:
            opened = opened_sinks(settings.sinks)
        lineage, mode = lineage_to_run(store, lease, settings.system, spec)
        coordinator = Coordinator(settings, store, lease, lineage, wall=wall)
        coordinator.output.take(opened)
        token = spec["token"]
        transport = GrpcTransport(
            token,
            coordinator.post,
            "unix:" if network else spec["listen"],
            "coordinator",
            greeting=lambda: pack_control("welcome", lineage=lineage, token=lease.token),
            network=network,
        )
        common = {
            "system": settings.system,
            "run": lineage,
            "store": locate(spec["store"]).blobs_url,
            "home": spec["home"],
            "token": token,
            "machine": machine_id(),
            "program": spec["program"],
            "allow": spec["allow"],
            "break_mode": settings.break_mode,
            "check_awaits": settings.check_awaits,
            "by_reference": settings.by_reference,
            "outbox_bytes": settings.outbox_bytes,
            "spill_bytes": settings.spill_bytes,
            "persister": chosen_persister(),
            "steps_key": key_of(spec).derived("steps"),
            "sinks": {name: {"kind": doc["kind"]} for name, doc in settings.sinks.items()},
        }
        launcher = launcher_kind(
            coordinator.post, common, folder=Path(spec["run_folder"]), hash_seed=int(lineage[:7], 16)
        )
        coordinator.attach(transport, launcher)
        coordinator.swept = partial(_swept, coordinator, InputRetention(coordinator), home)
        coordinator.parting.spec = {**spec, "take_over": True, "lineage": lineage}
        address = transport.start()
        write_endpoint(home, settings.system, Endpoint(address, token, os.getpid()), key_of(spec))
        if mode == "take_over":
            coordinator.recoverer.take_over()
        elif mode == "resume":
            coordinator.recoverer.resume_newest()
    except BaseException:
        close_sinks(opened)
        store.catalog.release_lease(lease)
        raise
    return coordinator, store


def _swept(coordinator: Coordinator, input_retention: InputRetention, home: Path) -> None:
    """What is not needed any more, beside the store."""
    input_retention.tell()
    forget_steps(coordinator, home)


def _made(home: Path) -> Path:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreNotWritable(
            f"{home}: {error.strerror}; a store that is no folder needs one on this machine for the driver's"
            " log: name another with CUTLINE_HOME",
            path=str(home),
        ) from error
    return home


def _acquire(store: Store, system: str, driver_pid: int, home: Path) -> Lease:
    owner = Owner.here("coordinator", driver_pid)
    deadline = time.monotonic() + _LEAVING
    asked = False
    while True:
        try:
            return store.catalog.acquire_lease(system, owner, LEASE_SECONDS, wall())
        except StoreInUse as error:
            # An owner whose driver has just died is on its way out; a live one is an error at once.
            holder = error.facts.get("owner", {}).get("driver_pid", 0)
            leaving = holder == driver_pid or not _alive(int(holder or 0))
            if not leaving or time.monotonic() > deadline:
                raise
            if not asked and holder != driver_pid:
                asked = True
                _ask_to_leave(home, system, error)
            time.sleep(0.05)


def _ask_to_leave(home: Path, system: str, held: StoreInUse) -> None:
    """A coordinator that outlives its driver for a while need not do so any longer.

    Raises:
        StoreInUse: it will not leave; the message says why.
    """
    try:
        with Client(home, system, timeout=2.0) as client:
            client.request("leave", timeout=2.0)
    except StoreInUse as refusal:
        raise StoreInUse(str(refusal), **{**held.facts, **refusal.facts}) from None
    except (CutlineError, TimeoutError):
        # Nobody is there: its lease will run out.
        return


def _alive(pid: int) -> bool:
    try:
        return pid > 0 and process_alive(pid, process_started(pid))
    except (CutlineError, OSError):
        return False


def lineage_to_run(store: Store, lease: Lease, system: str, spec: dict[str, Any]) -> tuple[str, str]:
    """Which lineage to run, and what to do first: take_over, resume, or begin."""
    catalog, rule = store.catalog, spec.get("effects")
    head = catalog.head_lineage(system)
    if spec["take_over"]:
        return _taken_over(catalog, system, spec["lineage"], head), "take_over"
    if spec["restore"]:
        row = catalog.find(system, spec["restore"])
        for fault in faults_of(store.blobs, row, deep=False):
            # Another one than was named is not what was asked for.
            raise fault
        return _made_here(catalog, lease, row.place, rule), "resume"
    if head is None or spec["fresh"]:
        return _made_here(catalog, lease, None, rule), "begin"
    _refuse_claimed(store, system, head)
    if head.startswith(MADE_WHOLE):
        # A copy owns nothing: opening it is a fork.
        row = catalog.find(system, "newest", head)
        for fault in faults_of(store.blobs, row, deep=False):
            raise fault
        # What was said of the copy, before anybody opened it, is said of what goes on from it.
        return _made_here(catalog, lease, row.place, rule or catalog.said_of_effects(head)), "resume"
    forked = any(row.lineage == head and row.origin is not None for row in catalog.lineages(system))
    if forked or catalog.checkpoints(system, lineage=head):
        # A fork without a cut of its own goes on from its origin's.
        return _ruled(catalog, lease, head, rule), "resume"
    # It crashed before cut 0: nothing was ever acknowledged.
    return _made_here(catalog, lease, None, rule), "begin"


def _taken_over(catalog: Catalog, system: str, lineage: str, head: str | None) -> str:
    """The lineage of the coordinator that was lost. Raises StoreInUse if the system goes on elsewhere."""
    newest = catalog.lineages(system)[-1:]
    # The newest may be the one that was being opened.
    if lineage != head and [lineage] != [line.lineage for line in newest]:
        raise StoreInUse(
            f"system {system!r} was taken to lineage {head} by another program, while this one's coordinator"
            f" was gone: lineage {lineage} stays as it was, and restore=POINT goes on from it",
            system=system,
            lineage=lineage,
        )
    return lineage


def _made_here(catalog: Catalog, lease: Lease, parent: Place | None, rule: Rule | None) -> str:
    """A lineage that does not count until it has come up: what fails, or is killed, before that changes
    nothing of where the next start goes on."""
    return _ruled(catalog, lease, catalog.create_lineage(lease, parent, opening=True), rule)


def _ruled(catalog: Catalog, lease: Lease, lineage: str, rule: Rule | None) -> str:
    """The lineage, after it was said what becomes of its effects. Raises RefusedOption."""
    if rule is not None and rule != catalog.effects_rule(lineage):
        line = next(each for each in catalog.lineages(lease.system) if each.lineage == lineage)
        begun = catalog.checkpoints(lease.system, lineage=lineage)
        if rule == RECORDED and (line.origin is None or begun):
            raise RefusedOption(
                f'effects="recorded" is for a fork that begins: system {lease.system!r} '
                + ("has made its own calls by now" if begun else "is none")
                + "; restore=POINT, or cutline.fork, makes one"
            )
        catalog.rule_effects(lease, lineage, rule)
    return lineage


def _refuse_claimed(store: Store, system: str, lineage: str) -> None:
    """A lineage that goes on in a copy does not go on here by itself."""
    export = claimed_by(store, lineage)
    if export is not None:
        raise StoreInUse(
            f"system {system!r} goes on in a copy that has claimed it (export {export}): going on here too"
            " would do twice what it does to the world. restore=POINT makes a fork here, fresh=True begins"
            " anew",
            system=system,
            lineage=lineage,
            export=export,
        )
