"""A participant in a process of its own: what runs there from the first line to the exit status.

The main thread builds the instance and handles messages; gRPC and the persister live in daemon threads.
One more daemon thread tells the coordinator once a second that the process lives and what it is doing;
it needs nothing from the main thread, so a long handler is *busy*, not dead.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from cutline.barrier import Member
from cutline.errors import RefusedOption, StoreNotShared
from cutline.storage import open_blobs
from cutline.storage.image import ImageRef

from .addresses import TLS
from .allowing import restrict
from .control import pack_control
from .endpoint_file import read_endpoint
from .flight import Flight
from .log import only_in_handlers
from .messages import pack_error, unpack_arguments
from .method_table import MethodTable
from .parcelling import Parcelling
from .persist_client import persister_for
from .places import far_end, machine_id, network_address
from .processes import process_started
from .program import install_program
from .runner import Runner, Setup
from .sabotage import sabotage
from .saying import said
from .scratch import RUN, let_go, make_folder
from .spill import Spill
from .steps import Steps
from .transport_mixed import MixedTransport
from .undisturbed import set_switch_interval

__all__ = ("serve", "start_beat", "BEAT_SECONDS", "build")

BEAT_SECONDS = 1.0
# A thread with something to do takes the interpreter from a busy handler after so many seconds. Python's own
# 5 ms pass once per hop, several times between a trigger and the capture: they were most of that time. And
# they count anew whenever the handler lets go for a moment, as numpy does in many calls: one that does so
# more often than this keeps all others from running (decision 032).
SWITCH_SECONDS = 0.0001
_log = logging.getLogger("cutline")


def serve(raw: bytes, kind: type[Runner] = Parcelling, node: str = "", host: str = "") -> int:
    """The entry of a participant process; `raw` is the launch document the coordinator made.

    Args:
        node: which node of a cluster this is.
        host: the address that other machines reach it at.

    Raises:
        RefusedOption: this is another machine than the coordinator's, which listens to its own alone.
        StoreNotShared: this process does not see the storage folder of the system that launched it.
    """
    spec = msgpack.unpackb(raw, strict_map_key=False)
    if sys.getswitchinterval() > SWITCH_SECONDS:
        set_switch_interval(SWITCH_SECONDS)
    restrict(spec["system"], spec.get("allow"))
    install_program(spec["program"])
    with _private_folder(spec) as folder:
        runner = build(spec, kind, node, host, folder)
        begin(runner, spec)
        runner.address = runner.transport.start()
        stop_beat = start_beat(runner)
        try:
            reason = runner.run()
        finally:
            stop_beat()
            runner.transport.close()
    _log.debug("%s ends: %s", runner.me.name, reason)
    return 0


@contextmanager
def _private_folder(spec: Mapping[str, Any]) -> Iterator[Path]:
    """Where this process's socket and recorder are: with the run's others, or in a folder of its own.

    On another machine the run has no folder, and to make one of that name would be to trust whoever has read
    the name and made it first.
    """
    if spec["machine"] == machine_id():
        yield Path(spec["flight"]).parent
        return
    folder = make_folder(RUN)
    try:
        yield Path(folder)
    finally:
        let_go(folder, remove=True)


def build(spec: Mapping[str, Any], kind: type[Runner], node: str, host: str, private: Path) -> Runner:
    """The runner of a launch document, with its transport and persister; its socket is in `private`."""
    member = Member(*spec["member"])
    setup = Setup(
        system=spec["system"],
        run=spec["run"],
        member=member,
        class_name=spec["class_name"],
        options=spec["options"],
        launch=spec["launch"],
        check_awaits=spec["check_awaits"],
        by_reference=spec["by_reference"],
        outbox_bytes=spec["outbox_bytes"],
        sinks=spec.get("sinks", {}),
        started=process_started(os.getpid()),
        node=node,
    )
    folder = Path(spec["home"])
    token = spec["token"]

    def coordinator() -> str:
        endpoint = read_endpoint(folder, spec["system"])
        # Another run's coordinator has another token: it is not ours to talk to.
        return endpoint.address if endpoint is not None and endpoint.token == token else ""

    known = coordinator()
    if not known:
        # The coordinator wrote that file before it launched anybody.
        raise StoreNotShared(
            f"participant {member.name!r} was started on {node or 'this machine'}, where the storage "
            f"folder {folder} is another one, or not there: its checkpoints would be lost. Mount the "
            "driver's folder there, or keep participants away from that node (resources, label_selector)",
            participant=member.name,
            node=node,
        )
    if spec["machine"] != machine_id() and not far_end(known):
        raise RefusedOption(
            f"participant {member.name!r} was started on node {node}, which has joined the cluster since the "
            "system was started, and is another machine than the coordinator's, which listens to its own "
            "alone. Start the system with listen='tls:'",
            participant=member.name,
            node=node,
        )
    blobs = open_blobs(spec["store"])
    flight = Flight(private / Path(spec["flight"]).name)
    runner = kind(setup, blobs, coordinator, flight=flight, classes=MethodTable())
    transport = MixedTransport(
        token,
        runner.post,
        f"unix:{private / spec['launch']}.sock",
        member.name,
        greeting=lambda: runner.peers.greeting(),
        network=network_address(TLS, host) if host and far_end(known) else None,
    )
    runner.attach(transport, persister_for(spec, blobs, runner.post, private))
    runner.steps = Steps(member.name, member.birth, spec["run"], folder, spec["steps_key"])
    only_in_handlers()
    runner.outbox.spill = Spill(folder / "spill", spec["spill_bytes"])
    sabotage(runner, spec["break_mode"])
    return runner


def begin(runner: Runner, spec: Mapping[str, Any]) -> None:
    """Birth or restore; a failure is kept for the greeting, so that the spawner hears of it."""
    try:
        if spec["mode"] == "born":
            runner.be_born(lambda: _make(runner, spec))
        else:
            runner.be_restored(
                ImageRef.from_doc(spec["image"]), spec["epoch"], spec["checkpoint"], spec["floor"]
            )
    except Exception as error:
        runner.birth_error = pack_error(error, participant=runner.me.name)
        runner.birth_reason = said(error)
        runner.phase = "failed"


def _make(runner: Runner, spec: Mapping[str, Any]) -> object:
    kind = runner.classes.find_named(spec["class_name"])
    args, kwargs = unpack_arguments(spec["args"], participant=runner.me.name, live=runner.desk.live)
    return kind(*args, **kwargs)


def start_beat(runner: Runner, seconds: float = BEAT_SECONDS) -> Callable[[], None]:
    """Starts the thread that tells the coordinator what this process is doing; returns what stops it."""
    stop = threading.Event()

    def beat() -> None:
        held, seen, warned = 0.0, -1, -1
        while not stop.wait(seconds):
            running = runner.desk.in_handler
            count = runner.handled_total
            held = held + seconds if running and count == seen else 0.0
            seen = count
            if held >= seconds and warned != count:
                warned = count
                _log.warning(
                    "participant %r: handler %r has run for more than %.0f s; every checkpoint waits for it "
                    "(async handlers hold up none while they await)",
                    runner.me.name,
                    running,
                    held,
                )
            link = runner.liaison.link
            if link is not None:
                link.send_control(
                    pack_control(
                        "beat",
                        epoch=-1,
                        member=list(runner.me),
                        running=running,
                        held=held,
                        waits=runner.outbox.waits,
                        # A hint: a checkpoint tells.
                        still=runner.is_still,
                    )
                )

    thread = threading.Thread(target=beat, name="cutline-beat", daemon=True)
    thread.start()
    return stop.set
