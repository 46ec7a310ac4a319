"""The driver's participant of this process: its runner, log and connections, ready to take its seat."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutline.barrier import Member
from cutline.participant.addresses import TLS
from cutline.participant.allowing import lift, restrict
from cutline.participant.classes import name_of
from cutline.participant.driver import DRIVER, DriverState
from cutline.participant.endpoint_file import read_endpoint
from cutline.participant.ingress import IngressLog
from cutline.participant.inherited import inherit, log_of
from cutline.participant.leaving import LeavingDriver
from cutline.participant.method_table import MethodTable
from cutline.participant.persist import Persister
from cutline.participant.places import network_address
from cutline.participant.processes import process_started
from cutline.participant.room import Room
from cutline.participant.setup import Setup
from cutline.participant.transport_mixed import MixedTransport
from cutline.storage import Store
from cutline.storage.collect import FORKED

from .authority import key_of

__all__ = ("clear_seat", "make_driver")


def make_driver(
    spec: Mapping[str, Any], folder: Path, store: Store, lineage: str, launch: str, host: str
) -> LeavingDriver:
    """A runner that has not started yet.

    Args:
        launch: what a coordinator knows a driver by that it has let in; empty for one that starts the system.
        host: the address that other machines reach this one at; empty if there are none.

    Raises:
        StoreInUse: another driver writes the ingress log.
        Corrupt: the ingress log is damaged.
    """
    system, token = spec["settings"]["system"], spec["token"]
    restrict(system, spec["allow"])
    setup = Setup(
        system=system,
        run=lineage,
        member=Member(DRIVER, 0),
        class_name=name_of(DriverState),
        options={},
        started=process_started(os.getpid()),
        by_reference=spec["settings"]["by_reference"],
        launch=launch,
    )

    def coordinator() -> str:
        endpoint = read_endpoint(folder, system)
        return endpoint.address if endpoint is not None and endpoint.token == token else ""

    runner = LeavingDriver(setup, store.blobs, coordinator, classes=MethodTable())
    runner.script_key = key_of(spec)
    runner.key_seconds = spec["settings"]["remember_keys"]
    runner.room = Room(spec["settings"]["waiting_inputs"])
    key = key_of(spec).derived("ingress")
    runner.log = IngressLog(log_of(folder, lineage), key)
    origin = next(line.origin for line in store.catalog.lineages(system) if line.lineage == lineage)
    if origin is not None and origin[0].startswith(FORKED):
        try:
            inherit(runner.log, folder, origin[0], key)
        except BaseException:
            runner.log.close()
            raise
    transport = MixedTransport(
        token,
        runner.post,
        "unix:",
        DRIVER,
        greeting=lambda: runner.peers.greeting(),
        network=network_address(TLS, host) if host else None,
    )
    runner.attach(transport, Persister(store.blobs, runner.post, DRIVER))
    return runner


def clear_seat(runner: LeavingDriver | None, store: Store, system: str) -> None:
    """Closes what the driver had open. The store opens again if somebody asks it something."""
    if runner is not None:
        runner.transport.close()
        runner.persister.close()
        if runner.log is not None:
            runner.log.close()
    store.close()
    lift(system)
