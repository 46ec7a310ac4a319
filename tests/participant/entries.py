"""What tests start with `Zygote.start`: entries run in processes of their own, told where to write."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import sys
import time

__all__ = ("boom", "grpc_pair", "leave", "report", "sleep")


def report(spec: bytes) -> None:
    """Writes what kind of process this is to the file that the spec names."""
    import numpy

    names = ("SIGTERM", "SIGCHLD")
    facts = {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "parent": os.getppid(),
        "argv": sys.argv,
        "path": sys.path,
        "cwd": os.getcwd(),
        "colour": os.environ.get("COLOUR"),
        "secret": os.environ.get("CUTLINE_TEST_GONE"),
        "hash": hash("cutline"),
        "draws": [random.random(), float(numpy.random.random())],
        "main": sorted(name for name in vars(sys.modules["__main__"]) if not name.startswith("__")),
        "signals": {name: signal.getsignal(getattr(signal, name)) == signal.SIG_DFL for name in names},
        "descriptors": sorted(int(name) for name in os.listdir("/dev/fd")),
        "input": sys.stdin.read(),
    }
    with open(spec.decode() + ".part", "w") as out:
        json.dump(facts, out)
    os.replace(spec.decode() + ".part", spec.decode())


def leave(spec: bytes) -> None:
    sys.exit(int(spec))


def boom(spec: bytes) -> None:
    raise ValueError(spec.decode())


def sleep(spec: bytes) -> None:
    """Tells its pid in a file and waits to be ended."""
    with open(spec.decode(), "w") as out:
        out.write(str(os.getpid()))
    time.sleep(600)


def grpc_pair(spec: bytes) -> None:
    """Serves and dials gRPC in a forked process; any trouble is a status other than 0."""
    from cutline.participant.transport import Event, LinkUp, PacketIn
    from cutline.participant.transport_grpc import GrpcTransport

    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    transport = GrpcTransport("secret", events.put, "unix:", "child")
    transport.connect(transport.start(), b"", "self")
    ups = [events.get(timeout=20), events.get(timeout=20)]
    assert all(isinstance(up, LinkUp) for up in ups)
    for up in ups:
        assert isinstance(up, LinkUp)
        up.link.send(spec)
        packet = events.get(timeout=20)
        assert isinstance(packet, PacketIn) and packet.payload == spec
    transport.close()
