"""The two ends of an exactly-once channel.

Positions of a channel, all absolute and never falling within an epoch::

    sender      released <= received <= transmitted <= sent        (sent: the last number given out)
    receiver    processed <= received,   released <= received

* ``received`` stops retransmission; ``released`` lets the sender forget. A receiver releases what it
  has received, because its own image will hold it, with one exception: from its capture of checkpoint
  n until it knows the sender's mark for n, or n is decided, it does not release beyond what it had
  received at that capture. Otherwise a message sent before the sender's capture and received after
  the receiver's would be in neither image (RULES 2).
* The receiver's share of cut n is what it had received and not processed, as far as it lies at or
  below the sender's mark; the sender's share is what was not released, up to its mark.
* A frame never spans a capture: a capture first cuts what is pending.
* The reorder buffer is never part of a cut: what lies in it is unreleased, hence the sender's.

Flow: the receiver grants numbers up to ``limit``; the sender transmits only frames that end within it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, takewhile

from .messages import Frame, InPart, Mark, Member, OutPart, Positions, chain

__all__ = ("Outgoing", "Incoming", "ChannelBroken", "FRAME_BYTES", "FRAME_MESSAGES", "WINDOW")

FRAME_BYTES = 128 * 1024
FRAME_MESSAGES = 4096
WINDOW = 65_536
EARLY_FRAMES = 64
TRANSMIT_BYTES = 8 * 1024 * 1024


class ChannelBroken(AssertionError):
    """The two ends contradict each other: a bug, or foreign bytes. The automaton is dead afterwards."""


class Outgoing:
    """The sender's end: numbers messages, cuts frames, keeps them until released."""

    __slots__ = (
        "peer", "sent", "released", "received", "transmitted", "limit", "digest", "released_digest",
        "frames", "pending", "pending_bytes", "frame_bytes", "marks", "linked", "window", "budget",
    )  # fmt: skip

    def __init__(self, peer: Member, marks: Sequence[tuple[int, bool]] = (), window: int = WINDOW) -> None:
        self.peer = peer
        self.sent = 0
        self.released = 0
        self.received = 0
        self.transmitted = 0
        self.window = window
        self.limit = window
        self.digest = 0
        self.released_digest = 0
        self.frames: deque[Frame] = deque()
        self.pending: list[bytes] = []
        self.pending_bytes = 0
        self.frame_bytes = 0
        # A channel that opens after a capture had sent nothing at it.
        self.marks: dict[int, Mark] = {n: Mark(n, 0, full) for n, full in marks}
        self.linked = False
        self.budget = TRANSMIT_BYTES

    @classmethod
    def restored(cls, peer: Member, part: OutPart, window: int = WINDOW) -> Outgoing:
        """The sender's end as a cut holds it. Its receiver tells by its first ack what it already has."""
        end = cls(peer, window=window)
        end.released = end.received = end.transmitted = part.released
        end.released_digest = end.digest = part.digest
        end.sent = part.released
        for frame in part.frames:
            if frame.first != end.sent + 1:
                raise ChannelBroken(f"to {peer.name}: frame {frame.first} follows {end.sent}")
            end.sent, end.digest = frame.last, frame.digest
            end.frame_bytes += len(frame.body)
            end.frames.append(frame)
        if end.sent != part.last:
            raise ChannelBroken(f"to {peer.name}: the image ends at {end.sent}, its mark is {part.last}")
        # How much of what it has the receiver has handled, its first ack tells: it may be a whole window
        # behind, and would get one more at each recovery. Who has had nothing sends no ack.
        end.limit = part.released or window
        return end

    def push(self, messages: Sequence[bytes]) -> None:
        """Takes messages in order; they get their numbers when a frame is cut."""
        self.pending.extend(messages)
        self.pending_bytes += sum(map(len, messages))

    @property
    def backlog_bytes(self) -> int:
        """Bytes the sender still has to keep."""
        return self.pending_bytes + self.frame_bytes

    def cut(self) -> None:
        """Turns all that is pending into frames."""
        pending = self.pending
        if not pending:
            return
        # A receiver does not report the last quarter of a window that it has free: no frame may need it.
        start, most = 0, min(FRAME_MESSAGES, self.window - self.window // 4)
        ends = list(accumulate(map(len, pending)))
        while start < len(pending):
            # The message that reaches FRAME_BYTES is the frame's last one.
            full = (ends[start - 1] if start else 0) + FRAME_BYTES
            stop = min(bisect_left(ends, full, start) + 1, start + most, len(pending))
            body = b"".join(pending[start:stop])
            last = self.sent + stop - start
            digest = chain(self.digest, last, body)
            self.frames.append(Frame(self.sent + 1, last, body, digest))
            self.frame_bytes += len(body)
            self.sent, self.digest = last, digest
            start = stop
        self.pending = []
        self.pending_bytes = 0

    def flush(self) -> None:
        """Cuts what is pending, unless frames already wait for the link or the limit: then it can grow."""
        if self.transmitted >= self.sent or self.pending_bytes >= FRAME_BYTES:
            self.cut()

    def transmit(self) -> list[Frame]:
        """The frames that may travel now: linked, within the granted limit, not yet on this link.

        The shell lowers `budget` (bytes) while its connection has a backlog.
        """
        if not self.linked or self.transmitted >= self.sent:
            return []
        # From the newest backwards: those that have travelled may be many, kept until they are released.
        waiting = list(takewhile(lambda frame: frame.last > self.transmitted, reversed(self.frames)))
        ready: list[Frame] = []
        size = 0
        for frame in reversed(waiting):
            size += len(frame.body)
            if frame.last > self.limit or self.budget <= 0 or (ready and size > self.budget):
                break
            ready.append(frame)
            self.transmitted = frame.last
        return ready

    def acked(self, positions: Positions) -> None:
        """Takes an ack. Older or repeated ones change nothing."""
        if positions.received > self.sent:
            raise ChannelBroken(
                f"{self.peer.name} has received {positions.received} of a channel that sent {self.sent}"
            )
        self.limit = max(self.limit, positions.limit)
        self.received = max(self.received, positions.received)
        self.transmitted = max(self.transmitted, self.received)
        frames = self.frames
        while frames and frames[0].last <= positions.released:
            frame = frames.popleft()
            self.frame_bytes -= len(frame.body)
            self.released, self.released_digest = frame.last, frame.digest

    def link_opened(self) -> None:
        """A new connection: everything not known as received travels again."""
        self.linked = True
        self.transmitted = self.received

    def link_lost(self) -> None:
        """No connection: frames wait."""
        self.linked = False

    def captured(self, checkpoint: int, full: bool) -> OutPart:
        """Fixes the mark of `checkpoint` and returns the sender's share of the cut."""
        self.cut()
        self.marks[checkpoint] = Mark(checkpoint, self.sent, full)
        return OutPart(self.sent, self.released, self.released_digest, tuple(self.frames))

    def decided(self, checkpoint: int) -> None:
        """The mark of a decided checkpoint travels no longer."""
        self.marks.pop(checkpoint, None)

    def after(self, last: int) -> list[bytes]:
        """The bodies of what a peer that left after handling the messages up to `last` has not taken."""
        if last < self.released or last > self.sent:
            raise ChannelBroken(
                f"{self.peer.name} left after message {last} of a channel that sent {self.sent} and was "
                f"released up to {self.released}"
            )
        kept = [frame for frame in self.frames if frame.last > last]
        if kept and kept[0].first <= last:
            raise ChannelBroken(f"{self.peer.name} left inside frame {kept[0].first}..{kept[0].last}: {last}")
        return [*[frame.body for frame in kept], *self.pending]


class Incoming:
    """The receiver's end: drops doubles, restores order, holds the mailbox of one channel."""

    __slots__ = (
        "peer", "received", "digest", "processed", "frames", "early", "marks", "held",
        "taken_last", "taken_digest", "acked", "window", "queued_bytes",
    )  # fmt: skip

    def __init__(self, peer: Member, captured: Sequence[int] = (), window: int = WINDOW) -> None:
        self.peer = peer
        self.received = 0
        self.digest = 0
        self.processed = 0
        self.frames: deque[Frame] = deque()
        self.early: dict[int, Frame] = {}
        self.marks: dict[int, int] = {}
        # A channel that opens after a capture had received nothing at it.
        self.held: dict[int, int] = {n: 0 for n in captured}
        self.taken_last = 0
        self.taken_digest = 0
        self.acked = Positions(-1, -1, -1)
        self.window = window
        self.queued_bytes = 0

    @classmethod
    def restored(cls, peer: Member, part: InPart, window: int = WINDOW) -> Incoming:
        """The receiver's end as a cut holds it."""
        end = cls(peer, window=window)
        end.processed = part.processed
        end.received = part.upto
        end.digest = part.digest
        end.frames.extend(part.frames)
        end.queued_bytes = sum(len(frame.body) for frame in part.frames)
        end.taken_last = part.frames[0].first - 1 if part.frames else part.upto
        # While restored frames are left nobody reads it: no mark of the new epoch lies below the cut's end.
        end.taken_digest = part.digest
        return end

    def arrived(self, frame: Frame) -> bool:
        """Takes a frame; true if the channel got longer. Doubles are dropped, early ones wait."""
        if frame.last <= self.received:
            return False
        if frame.first > self.received + 1:
            if len(self.early) < EARLY_FRAMES:
                self.early[frame.first] = frame
            return False
        self._append(frame)
        while self.early:
            following = self.early.pop(self.received + 1, None)
            if following is None:
                break
            self._append(following)
        return True

    def _append(self, frame: Frame) -> None:
        if frame.first != self.received + 1 or frame.last < frame.first:
            raise ChannelBroken(
                f"from {self.peer.name}: frame {frame.first}..{frame.last} after {self.received}"
            )
        digest = chain(self.digest, frame.last, frame.body)
        if digest != frame.digest:
            raise ChannelBroken(f"from {self.peer.name}: digests differ after message {frame.last}")
        self.received, self.digest = frame.last, digest
        self.frames.append(frame)
        self.queued_bytes += len(frame.body)

    def consumed(self) -> None:
        """The oldest frame was processed to its end."""
        frame = self.frames.popleft()
        self.queued_bytes -= len(frame.body)
        self.processed = self.taken_last = frame.last
        self.taken_digest = frame.digest

    def learn(self, marks: Sequence[Mark]) -> None:
        """Takes the sender's marks of undecided checkpoints; a known mark ends the withholding."""
        for mark in marks:
            known = self.marks.setdefault(mark.checkpoint, mark.last)
            if known != mark.last:
                raise ChannelBroken(
                    f"{self.peer.name} names two positions, {known} and {mark.last}, "
                    f"for checkpoint {mark.checkpoint}"
                )
            self.held.pop(mark.checkpoint, None)

    @property
    def released(self) -> int:
        """What the sender may forget."""
        return min(self.received, *self.held.values()) if self.held else self.received

    def captured(self, checkpoint: int) -> InPart:
        """The receiver's share of the cut: received, not processed, at or below the sender's mark."""
        mark = self.marks.get(checkpoint)
        if mark is None:
            self.held[checkpoint] = self.received
            upto, digest = self.received, self.digest
            frames = tuple(self.frames)
        else:
            if self.processed > mark:
                raise ChannelBroken(
                    f"message {self.processed} from {self.peer.name} was handled before the capture of "
                    f"checkpoint {checkpoint}, whose mark is {mark}"
                )
            upto, digest = self.taken_last, self.taken_digest
            frames = tuple(frame for frame in self.frames if frame.last <= mark)
            if frames:
                upto, digest = frames[-1].last, frames[-1].digest
        return InPart(self.processed, upto, digest, frames)

    def decided(self, checkpoint: int) -> None:
        """Nothing is withheld for a decided checkpoint."""
        self.held.pop(checkpoint, None)
        self.marks.pop(checkpoint, None)

    def positions(self, room: bool) -> Positions:
        """The ack to send. Without `room` the limit stays, but one message can always come."""
        limit = self.processed + self.window
        if not room:
            limit = max(
                self.acked.limit, self.received + (0 if self.frames else min(FRAME_MESSAGES, self.window))
            )
        return Positions(self.received, self.released, max(limit, self.acked.limit))
