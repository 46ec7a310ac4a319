"""The baseline of channel_vs_transport: batches of calls over the same transport, and nothing else.

Two processes, a receiver and a sender, run by `StreamPair`. Calls are made, encoded and dispatched as
participants do it (a `Handle` and a `Desk` at both ends), batches are as large as frames; but there are no
numbers, digests, acks, credit, captures, counters or flight recorder. ``bare`` leaves handles and desks out
as well: a loop that decodes and calls, the least that a program with one kind of message could do.

Each process takes one JSON document a line on standard input and answers with one a line.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench.sender_receiver import CHUNK, Receiver, send_chunk
from cutline.barrier import Member
from cutline.barrier.channel import FRAME_BYTES, FRAME_MESSAGES
from cutline.participant.classes import name_of
from cutline.participant.desk import Desk, HandlerRaised
from cutline.participant.handle import Handle
from cutline.participant.messages import TELL, encode_tell, read_frame
from cutline.participant.method_table import MethodTable
from cutline.participant.transport import Link, LinkUp, PacketIn
from cutline.participant.transport_stream import StreamTransport

__all__ = ("StreamPair",)

_TOKEN = "bench"


class _Stub:
    """What stands for the receiver at a bare sender: ``stub.take.tell(...)`` collects an encoded call."""

    def __init__(self, out: list[bytes]) -> None:
        self.out = out
        self.take = self

    def tell(self, payload: bytes) -> None:
        self.out.append(encode_tell("take", (payload,)))


def _desk(name: str, instance: object) -> Desk:
    return Desk(Member(name, 1), instance, class_name="", methods_of=MethodTable().methods_of)


def _dispatch(desk: Desk, sender: Member, body: bytes) -> None:
    """A batch's calls, one after the other, as `cutline.participant.handling` makes them."""
    methods, after = desk.sync_methods, desk.after
    for message in read_frame(body):
        kind, _number, method, packed = message
        if kind == TELL and type(packed) is list and method in methods:
            desk.in_handler = method
            try:
                methods[method](*packed)
            except Exception as error:
                raise HandlerRaised(method, error) from error
            if after:
                desk.drain()
        else:
            desk.handle(sender, message)


def _dispatch_bare(receiver: Receiver, body: bytes) -> None:
    methods: dict[str, Callable[..., Any]] = {"take": receiver.take}
    for _kind, _number, method, packed in read_frame(body):
        methods[method](*packed)


def _send_batches(link: Link, out: list[bytes]) -> None:
    start = 0
    while start < len(out):
        stop, size = start, 0
        while stop < len(out) and stop - start < FRAME_MESSAGES and size < FRAME_BYTES:
            size += len(out[stop])
            stop += 1
        link.send(b"".join(out[start:stop]))
        start = stop
    out.clear()


def _say(**doc: Any) -> None:
    print(json.dumps(doc), flush=True)


def _receive() -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    transport = StreamTransport(_TOKEN, events.put, "unix:", "receiver")
    _say(address=transport.start())
    sender = Member("sender", 1)
    for line in sys.stdin:
        order = json.loads(line)
        receiver = Receiver()
        receiver.expect(order["messages"])
        desk = _desk("receiver", receiver)
        _say(ready=True)
        while not receiver.ended:
            event = events.get()
            if not isinstance(event, PacketIn):
                continue
            if order["bare"]:
                _dispatch_bare(receiver, event.payload)
            else:
                _dispatch(desk, sender, event.payload)
        _say(count=receiver.count, bytes=receiver.bytes, ended=receiver.ended)
    transport.close()


def _send(address: str) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    transport = StreamTransport(_TOKEN, events.put, None, "sender")
    transport.start()
    transport.connect(address, b"", "receiver")
    event = events.get(timeout=30)
    assert isinstance(event, LinkUp), event
    out: list[bytes] = []
    stub = _Stub(out)
    desk = _desk("sender", None)
    handle = Handle("receiver", name_of(Receiver), desk)
    _say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        left, payload = order["messages"], bytes(order["size"])
        began = Receiver.clock()
        while left > 0:
            if order["bare"]:
                send_chunk(stub, payload, min(CHUNK, left))
            else:
                send_chunk(handle, payload, min(CHUNK, left))
                out += [message for _target, message in desk.out]
                desk.out.clear()
            _send_batches(event.link, out)
            left -= CHUNK
        _say(began=began)
    transport.close()


class StreamPair:
    """Both processes of the baseline, and one measurement after the other."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        try:
            self._receiver = self._start("receive")
            address = self._hear(self._receiver)["address"]
            self._sender = self._start("send", address)
            self._hear(self._sender)
        except BaseException:
            self.close()
            raise

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.stream_peer", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process

    @staticmethod
    def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the baseline's process {process.args!r} ended")
        doc: dict[str, Any] = json.loads(line)
        return doc

    def _order(self, process: subprocess.Popen[str], **doc: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(doc) + "\n")
        process.stdin.flush()

    def rate(self, messages: int, size: int, *, bare: bool = False) -> float:
        """Messages a second, from the sender's first call to the receiver's last."""
        self._order(self._receiver, messages=messages, bare=bare)
        self._hear(self._receiver)
        self._order(self._sender, messages=messages, size=size, bare=bare)
        began = self._hear(self._sender)["began"]
        report = self._hear(self._receiver)
        if (report["count"], report["bytes"]) != (messages, messages * size):
            raise AssertionError(f"the baseline lost or doubled messages: {report}")
        return messages / float(report["ended"] - began)

    def close(self) -> None:
        for process in reversed(self._processes):
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            process.wait(timeout=30)


if __name__ == "__main__":
    _receive() if sys.argv[1] == "receive" else _send(sys.argv[2])
