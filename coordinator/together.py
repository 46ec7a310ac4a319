"""Losses that belong together: one recovery for all of them, in one new epoch.

The ends of processes that die at once are told one after the other. A recovery for each would have whoever
was started for the first one read its image again for the second, in a newer epoch, and so on. So a recovery
begins when all ends that have come are taken in, and those that are about to come: a process that is killed
closes its link before anybody can tell its end, so whose link is down is waited for, shortly. A link that
broke by itself holds up a recovery by no more than that; one loss alone is not held up at all.

Nothing is begun or committed meanwhile, and no confirmation counts: as far as anybody can see, the recovery
has begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.participant.driver import DRIVER

if TYPE_CHECKING:
    from .recover import Recoverer

__all__ = ("MOST", "Together")

# Seconds from the first loss that a recovery waits for those whose links are down.
MOST = 0.2


class Together:
    """See the module's head."""

    def __init__(self, recoverer: Recoverer) -> None:
        self.recoverer = recoverer
        self.until = 0.0

    def lost(self, reason: str) -> None:
        """A participant was lost: everybody is to be brought back, as soon as no other loss is expected."""
        recoverer = self.recoverer
        c = recoverer.c
        now = c.now()
        if recoverer.again_at is None:
            self.until = now + MOST
            if not c.recovery.restoring:
                recoverer.began = now
        recoverer.again_at = max(now, self.until) if self._expects_another() else now
        recoverer.again_for = reason
        c.give_up_all(reason)

    def _expects_another(self) -> bool:
        """Whether somebody who was there has no link, and nobody has told why."""
        return any(
            seat.link is None and seat.launch and seat.phase in ("running", "restoring", "restored")
            for seat in self.recoverer.c.roster
            if seat.member.name != DRIVER
        )
