"""Looking after a store from outside: collecting beside whoever runs, and what each cut costs.

A collector needs the lease of the system. If somebody living has it, the collector works under his: each
transaction compares the token, so it stops as soon as another owner comes, and two collectors with one lease
are safe beside each other (see `collect`). Else it takes the lease and gives it back; a program that starts
meanwhile waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cutline.errors import CheckpointNotFound, Corrupt, StorageError, StoreInUse

from .blobs import encode_name, record_key
from .catalog import CheckpointRow, Lease
from .collect import Plan, Swept, plan
from .owners import MAKING, Owner, is_dead
from .retention import Policy
from .store import Store

__all__ = ("Cost", "costs", "gc", "lease_beside", "planned")

# Seconds that a lease lasts which is taken for a moment.
_MOMENT = 60.0


@contextlib.contextmanager
def lease_beside(
    store: Store, system: str, now: float, what: str, dead: Callable[[Owner], bool] = is_dead
) -> Iterator[Lease]:
    """The lease of a system: that of its living owner, or one taken for the moment.

    One that seems to have run out is not taken over: by which clock, cannot be told from outside.

    Raises:
        StoreInUse: something is being imported or edited. What is written of it is in no lineage yet, and
            would pass for what one has left that died.
    """
    held = store.catalog.held_lease(system)
    if held is not None and not dead(held.owner):
        if held.owner.what in MAKING:
            raise StoreInUse(
                f"{held.owner} is writing a cut into system {system!r} of {store.url}: wait until that has "
                "ended. Nothing was changed",
                system=system,
                owner=held.owner.to_doc(),
            )
        yield held
        return
    # No driver: who starts the system meanwhile takes it for an owner on its way out, and waits.
    owner = dataclasses.replace(Owner.here(what), driver_pid=0)
    lease = store.catalog.acquire_lease(system, owner, _MOMENT, now)
    try:
        yield lease
    finally:
        store.catalog.release_lease(lease)


def planned(store: Store, system: str, policy: Policy, now: float) -> Plan:
    """What `gc` would do. Cuts behind which it would give up others are read first, every byte: the newest
    whole cut of a lineage must not go because newer ones only look whole."""
    first = plan(store.blobs, store.catalog, system, policy, now=now, broken=store.broken)
    for lineage in {row.lineage for row in first.given_up}:
        with contextlib.suppress(Corrupt, CheckpointNotFound):
            store.newest_whole(system, lineage, deep=True)
    return plan(store.blobs, store.catalog, system, policy, now=now, broken=store.broken)


def gc(store: Store, system: str, policy: Policy, now: float) -> tuple[Plan, Swept]:
    """Gives up what the policy does not keep and removes what nobody needs; (what was planned, what was
    done). Safe beside a running system, forks and other collectors.

    Raises Fenced if another owner came in the middle: run it again.
    """
    expected = planned(store, system, policy, now)
    with lease_beside(store, system, now, "cutline gc") as lease:
        return expected, store.sweep(lease, now, policy=policy)


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of a cut. ``alone``: what no other cut needs, so what would be free without it. ``shared``:
    what others need too. ``missing``: how many of its blobs are not there."""

    row: CheckpointRow
    alone: int
    shared: int
    missing: int


def costs(store: Store, system: str) -> tuple[list[Cost], int]:
    """What each committed cut costs; and the bytes of blobs that no cut lists."""
    rows = store.catalog.checkpoints(system, damage=[])
    needed = {row.place: [*row.blobs, record_key(row.manifest_key or "")] for row in rows}
    users = Counter(key for keys in needed.values() for key in keys)
    sizes = {}
    for key in store.blobs.list(f"{encode_name(system)}/"):
        # A collector may remove it meanwhile.
        with contextlib.suppress(StorageError):
            sizes[key] = store.blobs.size(key)
    found = []
    for row in rows:
        keys = needed[row.place]
        alone = sum(sizes.get(key, 0) for key in keys if users[key] == 1)
        shared = sum(sizes.get(key, 0) for key in keys if users[key] > 1)
        found.append(Cost(row, alone, shared, sum(key not in sizes for key in row.blobs)))
    return found, sum(size for key, size in sizes.items() if key not in users)
