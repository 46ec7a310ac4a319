"""The persister process: it writes the images of all participants of one system on one machine.

The first participant there that has an image worth it starts this process (`persist_client`) and hands it a
listening socket, in a folder that only this user can look into, and a locked file, so that there is one such
process at a time. A thread for each participant writes its images one after the other; hashing, compressing,
writing and syncing let the others run, and images that are done at about the same time share the sync of
their folder (`cutline.storage.shared_sync`). It ends soon after its last participant has gone.

A participant that dies in the middle of an image leaves nothing: the image is given up. What it had captured
stays mapped here until then.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cutline.errors import CutlineError, StorageError
from cutline.storage import BlobStore, open_blobs
from cutline.storage.layers import tables_of

from .persist import write
from .persist_wire import HungUp, receive, send, unpacked
from .scratch import COMMON, hold, leave_common
from .shared_memory import mapped

__all__ = ("LINGER", "Server", "main")

# Seconds that it stays when the last participant has gone, and that it waits for the first one.
LINGER = 1.0
FIRST = 15.0
# Seconds between two signs of life to those whose images are being written.
BEAT = 1.0
_LOOK = 0.1
_GOES_FIRST = 5
# Rows of tables that are sent back, so that the participant can build on an image without reading it.
_ROWS = 1000
_HUNG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
_log = logging.getLogger("cutline")


class _GivenUp(StorageError):
    """Nobody waits for this image any more."""


class _Abandonable:
    """A store in which an image is given up when nobody waits for it; else `blobs`."""

    def __init__(self, blobs: BlobStore, gone: threading.Event) -> None:
        self._blobs = blobs
        self._gone = gone
        self.far = blobs.far

    def create(self, key: str, parts: Iterable[bytes | bytearray | memoryview]) -> int:
        return self._blobs.create(key, self._while_waited_for(parts))

    def _while_waited_for(
        self, parts: Iterable[bytes | bytearray | memoryview]
    ) -> Iterator[bytes | bytearray | memoryview]:
        for part in parts:
            if self._gone.is_set():
                raise _GivenUp("its participant is gone")
            yield part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


class _Client(threading.Thread):
    """One participant: its socket, its buffers as they are mapped here."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        super().__init__(name="cutline-client", daemon=True)
        self.connection = connection
        self.gone = threading.Event()
        self.busy = False
        self._server = server
        self._maps: dict[int, memoryview] = {}
        self._sending = threading.Lock()

    def run(self) -> None:
        descriptors: list[int] = []
        try:
            greeting = receive(self.connection) or {}
            try:
                blobs: Any = _Abandonable(self._server.blobs(greeting["store"]), self.gone)
            except CutlineError as error:
                self._send({"refused": str(error)})
                return
            self._send({"pid": os.getpid()})
            while True:
                doc = receive(self.connection, descriptors)
                if doc is None:
                    continue
                self._learn(doc, descriptors)
                if "job" in doc:
                    self._send(self._written(blobs, doc))
        except HungUp as error:
            _log.debug("a participant has gone: %s", error)
        except (OSError, LookupError, TypeError, ValueError) as error:
            # The participant writes its images itself.
            _log.warning("the persister process cannot make out what a participant says: %r", error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            self._maps.clear()
            self._server.left(self)
            self.connection.close()

    def _learn(self, doc: dict[str, Any], descriptors: list[int]) -> None:
        for number, size in doc["new"]:
            self._maps[number] = mapped(descriptors.pop(0), size)
        for number in doc["gone"]:
            self._maps.pop(number, None)

    def _written(self, blobs: Any, doc: dict[str, Any]) -> dict[str, Any]:
        self.busy = True
        try:
            job = unpacked(doc["job"], self._maps.__getitem__, doc["spool"])
            outcome = write(blobs, job, doc["job"]["most"] or 0)
        finally:
            self.busy = False
        ref, tables = outcome.ref, None
        if ref is not None:
            found = tables_of(blobs, ref)
            if found.rows <= _ROWS:
                pieces = [[name, *what] for name, what in found.pieces.items()]
                tables = [pieces, list(found.regions.items()), [list(link) for link in found.links]]
        return {
            "ref": ref.to_doc() if ref is not None else None,
            "reason": outcome.reason,
            "damaged": outcome.damaged,
            "tables": tables,
        }

    def _send(self, doc: dict[str, Any]) -> None:
        with self._sending:
            send(self.connection, doc)

    def beat(self) -> None:
        """Says that its image is being written."""
        if self.busy and self._sending.acquire(blocking=False):
            try:
                # As good as never in two parts: nothing else is under way.
                with contextlib.suppress(OSError):
                    self.connection.send(bytes(8), socket.MSG_DONTWAIT)
            finally:
                self._sending.release()

    def look(self) -> None:
        """Notices that the participant has gone while its image is being written."""
        if not self.busy:
            return
        poll = select.poll()
        try:
            poll.register(self.connection, _HUNG_UP)
        except ValueError:
            # Its thread has just closed it.
            return
        if poll.poll(0):
            self.gone.set()


class Server:
    """Serves participants until none is left. `listener`: where they call; `path`: its name."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener = listener
        self._path = path
        self._lock = threading.Lock()
        self._clients: set[_Client] = set()
        self._stores: dict[str, BlobStore] = {}

    def blobs(self, url: str) -> BlobStore:
        """The store at `url`, opened once: what it knows of its folders serves everybody."""
        with self._lock:
            if url not in self._stores:
                self._stores[url] = open_blobs(url)
            return self._stores[url]

    def left(self, client: _Client) -> None:
        """A participant has gone."""
        with self._lock:
            self._clients.discard(client)

    def serve(self) -> None:
        """Returns when nobody has needed it for a while, or nobody can find it any more."""
        idle_since, first, beaten = time.monotonic(), True, time.monotonic()
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            called = poll.poll(_LOOK * 1000)
            now = time.monotonic()
            if called:
                self._accept()
                first = False
            with self._lock:
                clients = list(self._clients)
            for client in clients:
                client.look()
                if now - beaten >= BEAT:
                    client.beat()
            if now - beaten >= BEAT:
                beaten = now
            if clients or called:
                idle_since = now
            elif now - idle_since > (FIRST if first else LINGER) or not os.path.exists(self._path):
                return

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # It hung up at once, or there are too many open files: then it would call again and again.
            time.sleep(_LOOK)
            return
        client = _Client(self, connection)
        with self._lock:
            self._clients.add(client)
        try:
            client.start()
        except RuntimeError as error:
            # No more threads. The participant writes its images itself, and the others have theirs written.
            _log.warning("the persister process turns a participant away: %s", error)
            self.left(client)
            connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """The process. The lock's descriptor is only held: it is free when this process has ended."""
    parser = argparse.ArgumentParser(prog="cutline-persister", description=__doc__)
    parser.add_argument("lock", type=int)
    parser.add_argument("listener", type=int)
    parser.add_argument("path")
    told = parser.parse_args(arguments)
    with contextlib.suppress(OSError):
        os.nice(_GOES_FIRST)
    os.set_inheritable(told.lock, False)
    os.set_inheritable(told.listener, False)
    folder = os.path.dirname(told.path)
    with socket.socket(fileno=told.listener) as listener:
        with contextlib.suppress(BlockingIOError):
            # Nobody is to remove it as that of a process that was killed.
            hold(folder)
        listener.setblocking(False)
        Server(listener, told.path).serve()
        # Whoever comes now finds nobody, and can start another one once the lock is free.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(told.path)
    if os.path.basename(folder).startswith(COMMON):
        leave_common(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
