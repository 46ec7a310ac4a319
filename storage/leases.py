"""The table of leases: one row per system, its token growing for ever.

A lease is taken over at once if its owner is known to be dead, else when it runs out. Taking it over does
not stop a paused owner; the token does, at its next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cutline.errors import Fenced, StoreInUse

from .authentic import Seals
from .catalog import Lease
from .codec import canonical, decode
from .owners import NOBODY, Owner
from .rows import Connection, upsert

__all__ = ("LeaseTable",)

_REST = ("token", "owner", "expires", "released", "seal")
_PUT = upsert("leases", ("system",), _REST)
_FIRST = f"INSERT INTO leases (system, {', '.join(_REST)}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


class _Held(NamedTuple):
    token: int
    owner: Owner
    expires: float
    released: bool


class LeaseTable:
    """Statements inside the transactions of others.

    ``lock``: what a statement that reads a lease ends with, so that others who would write it wait.
    """

    def __init__(self, dead: Callable[[Owner], bool], seals: Seals, lock: str = "") -> None:
        self._dead = dead
        self._seals = seals
        self._lock = lock

    def acquire(self, connection: Connection, system: str, owner: Owner, ttl: float, now: float) -> Lease:
        lease = Lease(system, 1, owner)
        held = self._row(connection, system, self._lock)
        if held is None:
            # Somebody else may be doing the same: the row is there then, and his.
            if connection.execute(_FIRST, self._values(lease, now + ttl, released=False)).rowcount:
                return lease
            held = self._row(connection, system, self._lock)
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

    def release(self, connection: Connection, lease: Lease) -> None:
        held = self._row(connection, lease.system, self._lock)
        if held is not None and held.token == lease.token:
            self.put(connection, lease, 0.0, released=True)

    def holder(self, connection: Connection, system: str) -> Owner | None:
        held = self._row(connection, system)
        return None if held is None or held.released else held.owner

    def held(self, connection: Connection, system: str) -> Lease | None:
        """The lease as it stands, unless it was released."""
        held = self._row(connection, system)
        return None if held is None or held.released else Lease(system, held.token, held.owner)

    def living(self, connection: Connection, seals: Seals, now: float) -> Iterator[tuple[str, Owner]]:
        """Systems whose owner may be at work, as far as rows can be read; MACs are those of ``seals``."""
        for *values, found_seal in connection.execute("SELECT * FROM leases").fetchall():
            system, _, owner, expires, released = values
            seals.check(found_seal, f"the lease of system {system!r}", "leases", *values, system=system)
            holder = Owner.from_doc(decode(owner))
            if not released and now < expires and not self._dead(holder):
                yield system, holder

    def fence(self, connection: Connection, lease: Lease) -> None:
        """Raises Fenced unless the lease is the newest and was not given up."""
        held = self._row(connection, lease.system, self._lock)
        if held is not None and held.token == lease.token and not held.released:
            return
        holder = f"by {held.owner}" if held is not None and not held.released else "by nobody"
        raise Fenced(
            f"system {lease.system!r} is no longer ours: lease {lease.token} was given up or taken over; it"
            f" is held {holder}. Nothing was written; stop this coordinator",
            system=lease.system,
            token=lease.token,
        )

    def queue(self, connection: Connection, system: str) -> None:
        """Waits until whoever else is at work on that system is through, whoever holds the lease."""
        if self._row(connection, system, self._lock) is None:
            # Nothing to wait at: so there is one now, given up. Of two who do this at once one waits here.
            nobody = Lease(system, 0, NOBODY)
            connection.execute(_FIRST, self._values(nobody, 0.0, released=True))
            self._row(connection, system, self._lock)

    def put(self, connection: Connection, lease: Lease, expires: float, *, released: bool = False) -> None:
        connection.execute(_PUT, self._values(lease, expires, released=released))

    def _row(self, connection: Connection, system: str, lock: str = "") -> _Held | None:
        found = connection.execute(f"SELECT * FROM leases WHERE system = ?{lock}", (system,)).fetchone()
        if found is None:
            return None
        *values, found_seal = found
        what = f"the lease of system {system!r}"
        self._seals.check(found_seal, what, "leases", *values, system=system)
        _, token, owner, expires, released = values
        return _Held(token, Owner.from_doc(decode(owner)), expires, bool(released))

    def _values(self, lease: Lease, expires: float, *, released: bool) -> tuple[Any, ...]:
        owner = canonical(lease.owner.to_doc())
        values = (lease.system, lease.token, owner, float(expires), int(released))
        return (*values, self._seals.seal("leases", *values))
