"""When a participant takes no message because too much of what it sent is not released yet.

A send never blocks, so the outbox is bounded at the other end: over its limit the participant stops taking
messages. On a cycle everybody may be over the limit at once; so when nothing was released for STALL_AFTER
seconds, one run of messages is taken all the same (RULES 19).
"""

from __future__ import annotations

from cutline.barrier import Endpoint

__all__ = ("OutboxLimit", "OUTBOX_BYTES", "STALL_AFTER")

OUTBOX_BYTES = 256 * 1024 * 1024
STALL_AFTER = 1.0


class OutboxLimit:
    """The limit of one participant. `stalled` is true while it holds messages up."""

    def __init__(self, limit: int = OUTBOX_BYTES, patience: float = STALL_AFTER) -> None:
        self.limit = limit
        self.patience = patience
        self._since: tuple[int, float] | None = None

    @property
    def stalled(self) -> bool:
        """Whether messages are held up."""
        return self._since is not None

    def holds_up(self, endpoint: Endpoint, now: float) -> bool:
        """Whether no message may be taken at `now` (seconds of one clock)."""
        if endpoint.outbox_bytes <= self.limit:
            self._since = None
            return False
        released = sum(sender.released for sender in endpoint.outgoing.values())
        if self._since is None or self._since[0] != released:
            self._since = released, now
        if now - self._since[1] < self.patience:
            return True
        self._since = None
        return False
