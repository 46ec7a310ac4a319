"""When a participant takes no message because too much of what it sent is not released yet.

A send never blocks, so the outbox is bounded at the other end: over its limit the participant stops taking
messages, and its sources (timers, input) rest. On a cycle everybody may be over the limit at once, each
waiting for the others. So when nothing was released for STALL_AFTER seconds, messages are taken all the same,
one at a time, and what does not fit into memory goes to disk (`spill`), until something is released. At the
limit of the disk the system halts with `Overloaded` (RULES 19).
"""

from __future__ import annotations

from cutline.barrier import Endpoint

from .spill import Spill, in_memory

__all__ = ("OutboxLimit", "OUTBOX_BYTES", "STALL_AFTER")

OUTBOX_BYTES = 256 * 1024 * 1024
STALL_AFTER = 1.0


class OutboxLimit:
    """The limit of one participant. `stalled` is true while it holds messages up."""

    def __init__(
        self, limit: int = OUTBOX_BYTES, patience: float = STALL_AFTER, spill: Spill | None = None
    ) -> None:
        self.limit = limit
        self.patience = patience
        self.spill = spill
        # Whether messages are taken one at a time, though the outbox is over its limit.
        self.overflowing = False
        # Who has not released what this participant keeps, while it is over its limit; those that most is
        # kept for first. Replaced, never changed: another thread tells the coordinator.
        self.waits: list[str] = []
        self._since: tuple[int, float] | None = None

    @property
    def stalled(self) -> bool:
        """Whether messages are held up."""
        return self._since is not None and not self.overflowing

    def is_over(self, endpoint: Endpoint) -> bool:
        """Whether more is kept than the limit."""
        return endpoint.outbox_bytes > self.limit

    def holds_up(self, endpoint: Endpoint, now: float) -> bool:
        """Whether no message may be taken at `now` (seconds of one clock).

        Raises:
            Overloaded: one would have to be taken, and there is no room for what it sends.
        """
        if not self.is_over(endpoint):
            self._since, self.overflowing, self.waits = None, False, []
            return False
        released = sum(sender.released for sender in endpoint.outgoing.values())
        if self._since is None or self._since[0] != released:
            self._since, self.overflowing = (released, now), False
            self.waits = _waits(endpoint)
        if now - self._since[1] < self.patience:
            return True
        self.overflowing = True
        if self.spill is not None and in_memory(endpoint) > self.limit:
            self.spill.move(endpoint)
        return False


def _waits(endpoint: Endpoint) -> list[str]:
    kept = {peer.name: end.backlog_bytes for peer, end in endpoint.outgoing.items() if end.backlog_bytes}
    return sorted(kept, key=lambda name: (-kept[name], name))
