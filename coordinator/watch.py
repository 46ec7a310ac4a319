"""Who does not come up, and who has fallen silent: ended, so that the end of its process is the loss.

All seats are looked at, so this is done now and then, and not with each packet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.participant.driver import DRIVER

from .settings import TICK

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Watch",)


class Watch:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.looked_at = coordinator.now()

    def tick(self) -> None:
        """Looks at all seats, if it is time to."""
        c = self.c
        now = c.now()
        if now - self.looked_at < TICK:
            return
        self.looked_at = now
        for seat in c.roster:
            late = seat.phase == "starting" and now - seat.launched_at > c.settings.spawn_timeout
            silent = seat.beat and now - float(seat.beat["at"]) > c.settings.lost_after
            if (late or silent) and seat.member.name != DRIVER:
                if late:
                    reason = c.launcher.why_waiting(seat) or "it was not heard of"
                    seat.overdue = f"after {c.settings.spawn_timeout:g} s {reason}"
                c.launcher.end(seat)
