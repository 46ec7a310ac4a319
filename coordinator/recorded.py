"""Effects of a fork that gets what became of them in the lineage that it came from; nothing is called.

A request is the same as one of the origin's if it is of the same participant, function and arguments. Where
its number is the same too, that one is meant; else one that the origin asked for behind the point of the
fork, because there messages may have come in another order. Each of the origin's outcomes is given out once,
like the call that it stands for; the row that says so stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgpack

from cutline.errors import EffectsBlocked
from cutline.participant.effect_request import EffectRequest
from cutline.participant.messages import pack_error
from cutline.storage.effects import NO_PROCESS, ORIGIN, Claim, EffectRow, final_of
from cutline.storage.finding import ancestry
from cutline.storage.fork_apart import recorded

if TYPE_CHECKING:
    from .roster import Seat
    from .runner import Coordinator

__all__ = ("Recorded", "match", "refusal")


def match(
    claim: Claim, outcomes: Iterable[EffectRow], own: Iterable[EffectRow], point: int
) -> EffectRow | None:
    """The origin's outcome that answers a claim. ``own``: rows of the fork, which forked off at ``point``."""
    about = claim.participant, claim.digest
    same = [row for row in outcomes if (row.participant, row.digest) == about]
    if claim.key.startswith("u:"):
        # Requests under one key are one.
        return next((row for row in same if row.key == claim.key), None)
    # What has a higher number was asked for in a history that a recovery has undone.
    used = {
        row.executor["origin"]
        for row in own
        if row.by == ORIGIN and row.participant == claim.participant and row.number < claim.number
    }
    free = [row for row in same if row.key not in used]
    exact = next((row for row in free if row.number == claim.number), None)
    if exact is not None:
        return exact
    behind = [row for row in free if row.since > point or not row.since]
    return min(behind, key=lambda row: (row.number < claim.number, row.number), default=None)


def refusal(claim: Claim) -> bytes:
    """The answer to what the origin has not done, packed."""
    error = EffectsBlocked(
        f"effect {claim.function} of participant {claim.participant!r} is blocked: this lineage is a fork "
        "that gets its origin's outcomes, and its origin has not done this, or has forgotten it. `cutline "
        "effects --allow` lets effects run from now on",
        participant=claim.participant,
        function=claim.function,
    )
    packed: bytes = msgpack.packb(pack_error(error, participant=claim.participant))
    return packed


class Recorded:
    """What a coordinator knows of the origin's effects."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self._outcomes: list[EffectRow] | None = None

    def _known(self) -> list[EffectRow]:
        # Once: nobody runs the lineages of a fork's ancestry while it runs.
        if self._outcomes is None:
            c = self.c
            origin = c.origin
            self._outcomes = [] if origin is None else recorded(c.catalog, c.settings.system, *origin)
        return self._outcomes

    def taken_over(self, claims: Sequence[Claim]) -> set[str]:
        """Writes what the origin has of these; the keys of those that it has nothing of.

        Raises StorageError, Fenced: nothing was written.
        """
        c = self.c
        own = c.catalog.effects(c.lineage)
        fresh: list[EffectRow] = []
        blocked: set[str] = set()
        point = self._point()
        for claim in claims:
            if final_of([row for row in (*own, *fresh) if row.key == claim.key]) is not None:
                continue
            row = match(claim, self._known(), (*own, *fresh), point)
            if row is None:
                blocked.add(claim.key)
            else:
                fresh.append(self._row(claim, row))
        if fresh:
            c.catalog.put_effects(c.lease, fresh)
        return blocked

    def answers(self, asked: Iterable[tuple[Seat, EffectRequest]]) -> Iterator[EffectRow]:
        """What people have answered in the origin, as rows of this lineage; others are asked here."""
        own = self.c.catalog.effects(self.c.lineage)
        point = self._point()
        for seat, request in asked:
            claim = Claim(
                request.key,
                seat.member.name,
                seat.member.birth,
                request.number,
                request.function,
                request.digest,
                False,
                request.since,
                request.since,
                "",
                NO_PROCESS,
                self.c.epoch,
            )
            row = match(claim, self._known(), own, point)
            if row is not None:
                own.append(self._row(claim, row))
                yield own[-1]

    def _point(self) -> int:
        """Where this lineage has left those that it comes from."""
        lines = ancestry(self.c.catalog.lineages(self.c.settings.system), self.c.lineage)
        return min((limit for _, limit in lines if limit is not None), default=0)

    def _row(self, claim: Claim, row: EffectRow) -> EffectRow:
        now = self.c.wall()
        return dataclasses.replace(
            row,
            lineage=self.c.lineage,
            key=claim.key,
            attempt=1,
            birth=claim.birth,
            number=claim.number,
            repeatable=claim.repeatable,
            checkpoint=claim.checkpoint,
            since=claim.since,
            launch=claim.launch,
            executor={**claim.executor, "origin": row.key},
            epoch=claim.epoch,
            token=self.c.lease.token,
            claimed_at=now,
            decided_at=now,
            deadline=None,
            by=ORIGIN,
            done=None,
        )
