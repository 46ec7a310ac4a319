"""The table of leases: one row per system, its token growing for ever.

A lease is taken over at once if its owner is known to be dead, else when it runs out. Taking it over does
not stop a paused owner; the token does, at its next transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from cutline.errors import Fenced, StoreInUse

from .catalog import Lease
from .codec import canonical, decode
from .database import seal
from .owners import Owner
from .rows import damaged

__all__ = ("LeaseTable",)


class _Held(NamedTuple):
    token: int
    owner: Owner
    expires: float
    released: bool


class LeaseTable:
    """Statements inside the transactions of others."""

    def __init__(self, dead: Callable[[Owner], bool]) -> None:
        self._dead = dead

    def acquire(
        self, connection: sqlite3.Connection, system: str, owner: Owner, ttl: float, now: float
    ) -> Lease:
        held = self._row(connection, system)
        if held is not None and not held.released and now < held.expires and not self._dead(held.owner):
            raise StoreInUse(
                f"system {system!r} is run by {held.owner}, started for process {held.owner.driver_pid}: stop"
                f" it first, or wait {held.expires - now:.0f} s for its lease to run out",
                system=system,
                owner=held.owner.to_doc(),
            )
        lease = Lease(system, held.token + 1 if held else 1, owner)
        self.put(connection, lease, now + ttl)
        return lease

    def release(self, connection: sqlite3.Connection, lease: Lease) -> None:
        held = self._row(connection, lease.system)
        if held is not None and held.token == lease.token:
            self.put(connection, lease, 0.0, released=True)

    def holder(self, connection: sqlite3.Connection, system: str) -> Owner | None:
        held = self._row(connection, system)
        return None if held is None or held.released else held.owner

    def fence(self, connection: sqlite3.Connection, lease: Lease) -> None:
        """Raises Fenced unless the lease is the newest and was not given up."""
        held = self._row(connection, lease.system)
        if held is not None and held.token == lease.token and not held.released:
            return
        holder = f"by {held.owner}" if held is not None and not held.released else "by nobody"
        raise Fenced(
            f"system {lease.system!r} is no longer ours: lease {lease.token} was given up or taken over; it"
            f" is held {holder}. Nothing was written; stop this coordinator",
            system=lease.system,
            token=lease.token,
        )

    def put(
        self, connection: sqlite3.Connection, lease: Lease, expires: float, *, released: bool = False
    ) -> None:
        owner = canonical(lease.owner.to_doc())
        values = (lease.system, lease.token, owner, float(expires), int(released))
        connection.execute(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?)", (*values, seal(*values))
        )

    def _row(self, connection: sqlite3.Connection, system: str) -> _Held | None:
        found = connection.execute("SELECT * FROM leases WHERE system = ?", (system,)).fetchone()
        if found is None:
            return None
        *values, found_seal = found
        if seal(*values) != found_seal:
            raise damaged(f"the lease of system {system!r}", system=system)
        _, token, owner, expires, released = values
        return _Held(token, Owner.from_doc(decode(owner)), expires, bool(released))
