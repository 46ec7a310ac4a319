"""Numbered messages go round four participants on two machines that share a storage folder and nothing else.

::

    python -m tests.cluster.two_machines --messages 4000

The second machine is a network and a mount namespace of its own, joined by a virtual cable: another address,
another loopback, Unix sockets that are out of reach, as `places.machine_id` sees it. What travels over the
cable between participants must be TLS. A participant on the far machine is killed, then the far machine's
cable is pulled out and its processes are ended: everybody comes back, here. Exit status 0 if each message was
applied once, in order. Needs root for the namespaces.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray

import cutline
from cutline.coordinator.ray_nodes import alive_nodes, own_node
from cutline.participant.endpoint_file import read_endpoint
from cutline.participant.places import far_end
from tests.cluster.machines import SEAT, end_process, node_of
from tests.programs.ring import SIZE, Ring, again, ask_until_kept, connect, judge
from tests.system.living import until

__all__ = ("main",)

# A machine that is switched off says nothing; Ray finds out by asking, and asks more often here.
_SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_STORE = 80 * 1024 * 1024


_PATIENCE = 90.0
_until = partial(until, timeout=_PATIENCE)


@cutline.actor(resources={SEAT: 1}, scheduling_strategy="SPREAD")
class Spread(Ring):
    """One of the ring."""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _ray(address: str, *options: str) -> list[str]:
    own = [f"--node-ip-address={address}", "--num-cpus=2", f"--object-store-memory={_STORE}"]
    resources = f"--resources={json.dumps({SEAT: SIZE})}"
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *own, resources, *options]


class Machine(NamedTuple):
    """Another machine: a process that holds its namespaces, and the name of its end of the cable."""

    holder: subprocess.Popen[bytes]
    inside: tuple[str, ...]

    def switch_off(self) -> None:
        """As the plug is pulled: nothing is said any more, and every process is gone."""
        _run(*self.inside, "ip", "link", "set", "far0", "down")
        network = os.stat(f"/proc/{self.holder.pid}/ns/net").st_ino
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if os.stat(entry / "ns" / "net").st_ino == network and int(entry.name) != self.holder.pid:
                    os.kill(int(entry.name), signal.SIGKILL)


@contextmanager
def _machine(net: str) -> Iterator[Machine]:
    """Another machine, at the address .2 of the network `net`; this one is at .1."""
    cable = f"cut{os.getpid() % 100000}"
    holder = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"])
    inside = ("nsenter", "-t", str(holder.pid), "--net", "--mount")
    try:
        own_network = os.stat("/proc/self/ns/net").st_ino
        _until(lambda: os.stat(f"/proc/{holder.pid}/ns/net").st_ino != own_network, "the other network")
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "far0", "netns", str(holder.pid))
        _run("ip", "addr", "add", f"{net}.1/24", "dev", cable)
        _run("ip", "link", "set", cable, "up")
        _run(*inside, "ip", "addr", "add", f"{net}.2/24", "dev", "far0")
        _run(*inside, "ip", "link", "set", "far0", "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        yield Machine(holder, inside)
    finally:
        # The cable goes with the namespace.
        end_process(holder)


@contextmanager
def two_machines(folder: Path) -> Iterator[Machine]:
    """A cluster whose head is this machine, and whose other node is another one, which is what is yielded."""
    net = f"10.{random.randrange(16, 250)}.{random.randrange(250)}"
    # Ray asks for a token where the user has one; this cluster is behind a cable of its own.
    environment = {**os.environ, **_SOON, "RAY_AUTH_MODE": "disabled"}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with _machine(net) as machine, ExitStack() as started:
        head = _ray(f"{net}.1", "--head", f"--port={port}", "--include-dashboard=false")
        started.callback(end_process, subprocess.Popen(head, env=environment, **quiet))
        _answers(f"{net}.1", port)
        there = (*machine.inside, *_ray(f"{net}.2", f"--address={net}.1:{port}"))
        elsewhere = {**environment, "TMPDIR": str(folder)}
        started.callback(end_process, subprocess.Popen(there, env=elsewhere, **quiet))
        ray.init(address=f"{net}.1:{port}", _node_ip_address=f"{net}.1", log_to_driver=False)
        started.callback(ray.shutdown)
        _until(lambda: len(alive_nodes()) == 2, "the other machine")
        yield machine


def _answers(host: str, port: int) -> None:
    def connected() -> bool:
        with socket.socket() as trial:
            return trial.connect_ex((host, port)) == 0

    _until(connected, "the head node")
    # Its port answers before it takes nodes.
    time.sleep(2.0)


def _recovered(system: Any) -> int:
    return sum(notice["what"] == "recovered" for notice in system.notices)


def run(far: Machine, messages: int, folder: Path) -> int:
    """Runs the ring over both machines, loses a process of the far one, then all of it, and judges."""
    with cutline.start(folder, name="apart", interval=1.0, quiet=True) as system:
        names = [f"ring{k}" for k in range(SIZE)]
        ring = [system.spawn(name, Spread, k, messages, 8, 0.001) for k, name in enumerate(names)]
        for k, one in enumerate(ring):
            connect(one, ring[(k + 1) % SIZE])
        places = {name: node_of(system, name) for name in names}
        away = sorted(name for name, node in places.items() if node != own_node())
        endpoint = read_endpoint(folder, "apart")
        assert endpoint is not None
        for token in range(8):
            ring[token % SIZE].take.options(key=f"token {token}").tell(token)
        _until(lambda: system.status()["handlers"] > messages // 10, "some messages")
        system.checkpoint()
        os.kill(again(system.status)["participants"][away[0]]["pid"], signal.SIGKILL)
        _until(lambda: _recovered(system) == 1, "the recovery of a process of the other machine")
        _until(lambda: system.status()["handlers"] > messages // 3, "more messages")
        far.switch_off()
        _until(lambda: _recovered(system) >= 2, "the recovery from the loss of the other machine")
        reports: list[Any] = []
        while sum(len(applied) for applied, _faults in reports) < messages:
            reports = [ask_until_kept(one)[0] for one in ring]
        faults = judge(reports, messages)
        stayed = {node_of(system, name) for name in names} == {own_node()}
    good = not faults and 0 < len(away) < SIZE and stayed and far_end(endpoint.address).startswith("tls:")
    doc = {
        "outcome": "ok" if good else "wrong",
        "messages": messages,
        "applied": sum(len(applied) for applied, _faults in reports),
        "faults": faults[:5],
        "on_the_other_machine": away,
        "coordinator": far_end(endpoint.address),
    }
    print(json.dumps(doc))
    return 0 if good else 1


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.two_machines")
    parser.add_argument("--messages", type=int, default=4000)
    chosen = parser.parse_args()
    logging.getLogger("ray").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "tmp"
        there.mkdir()
        with two_machines(there) as far:
            return run(far, chosen.messages, Path(folder) / "store")


if __name__ == "__main__":
    sys.exit(main())
