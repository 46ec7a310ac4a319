"""How another program talks to a running system: over the endpoint file, with the run's token."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

from cutline.barrier.wire import PROTOCOL
from cutline.errors import ConnectionRefused, NotRunning, WrongToken
from cutline.participant.control import pack_control, unpack_control
from cutline.participant.endpoint_file import authentic_endpoint
from cutline.participant.messages import unpack_error
from cutline.participant.transport import WRONG_TOKEN, Link, LinkDown, LinkRefused, LinkUp, PacketIn
from cutline.participant.transport_grpc import GrpcTransport
from cutline.storage import locate, open_store, store_home
from cutline.storage.owners import host_name

__all__ = ("Client", "connected")


class Client:
    """One connection to a coordinator; requests one after the other.

    Args:
        folder: the storage folder.
        system: the system's name.
        token: instead of the one in the endpoint file.

    Raises:
        NotRunning: no live system behind the folder.
        WrongToken: the token is not this run's.
    """

    def __init__(self, folder: Path, system: str, *, token: str | None = None, timeout: float = 10.0) -> None:
        endpoint = authentic_endpoint(folder, system)
        if endpoint is None:
            raise NotRunning(
                f"no system {system!r} is running in {folder}; start it, or name another with --name"
            )
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._number = 0
        self._transport = GrpcTransport(token or endpoint.token, self._events.put, None, "client")
        self._transport.start()
        self._transport.connect(endpoint.address, pack_control("client", protocol=PROTOCOL), "coordinator")
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise NotRunning(f"system {system!r} in {folder} does not answer at {endpoint.address}") from None
        if isinstance(event, LinkRefused):
            self.close()
            if event.reason == WRONG_TOKEN:
                raise WrongToken(f"the token is not the one of the running system {system!r} in {folder}")
            raise NotRunning(
                f"system {system!r} in {folder} is not running any more (process "
                f"{endpoint.pid}, {event.reason})"
            )
        assert isinstance(event, LinkUp)
        self._link: Link = event.link

    def request(self, what: str, timeout: float = 120.0, **fields: Any) -> Any:
        """Asks for something and waits for the reply.

        Raises:
            TimeoutError: no reply in `timeout` seconds.
            CutlineError: whatever the coordinator answered.
        """
        self._number += 1
        self._link.send_control(
            pack_control("request", epoch=0, member=["client", 0], number=self._number, what=what, **fields)
        )
        deadline = time.monotonic() + timeout
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"the coordinator did not answer {what!r} in {timeout:.0f} s") from None
            if isinstance(event, LinkDown):
                raise ConnectionRefused(f"the connection broke while waiting for {what!r}: {event.reason}")
            if isinstance(event, PacketIn):
                doc = unpack_control(event.payload)
                if doc["kind"] == "stop":
                    raise ConnectionRefused(f"the coordinator hung up: {doc['reason']}")
                if doc["kind"] == "reply" and doc["number"] == self._number:
                    if doc["ok"]:
                        return doc["value"]
                    raise unpack_error(doc["value"], participant="client", live={})

    def close(self) -> None:
        """Hangs up."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def connected(storage: str, system: str) -> Client:
    """A connection to the system that runs in the store at a URL.

    Raises:
        NotRunning: none runs there, or on another machine; the message names it.
    """
    try:
        return Client(store_home(storage), system)
    except NotRunning as error:
        if locate(storage).catalog is None:
            raise
        # Where it is reached is known to its machine alone; which one that is, the catalog knows.
        with open_store(storage, create=False) as store:
            holder = store.catalog.lease_holder(system)
        if holder is None:
            raise NotRunning(
                f"no system {system!r} is running in {locate(storage)}", system=system
            ) from error
        elsewhere = holder.host != host_name()
        raise NotRunning(
            f"system {system!r} in {locate(storage)} was last run by {holder}:"
            f" {'ask it on that machine' if elsewhere else 'it does not answer'}",
            system=system,
            owner=holder.to_doc(),
        ) from error
