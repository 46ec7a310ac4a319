"""When a participant captures: the local side of the marker protocol.

A checkpoint id is, for a participant::

    unknown -> due -> captured -> (durable) -> decided
          \\______________________________________/

Whoever learns of id m by any way captures, at the same message boundary, every undecided id <= m that
it has not captured, in order (RULES 3). Ids at or below `floor` are decided for ever; above it `fates`
remembers single ones, so that a late marker, mark or initiate of a decided id does nothing.

A newborn treats every id that was undecided at its birth as captured, with nothing received and
nothing sent: it is not in their rosters, and must make its receivers capture first (RULES 9).

The base of a delta is the newest id that is *known* to be committed and was captured here; a lost
`committed` costs bytes, never truth (RULES 14).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .messages import Mark, Open

__all__ = ("LocalSnapshot",)


class LocalSnapshot:
    """Known ids, their fates, and what is due."""

    __slots__ = ("floor", "newest", "committed", "base", "fates", "full", "captured", "born_into")

    def __init__(self, floor: int, committed: int, base: int | None, born_into: Sequence[Open] = ()) -> None:
        self.floor = floor
        self.newest = max([floor, *(n for n, _ in born_into)])
        self.committed = committed
        self.base = base
        self.fates: dict[int, bool] = {}
        self.full: dict[int, bool] = {n: full for n, full in born_into}
        self.born_into = frozenset(n for n, _ in born_into)
        self.captured: dict[int, bool] = {n: True for n, _ in born_into}

    @classmethod
    def newborn(cls, newest: int, undecided: Sequence[Open]) -> LocalSnapshot:
        """The view of a participant that starts while `undecided` are under way; other ids are history."""
        floor = min([newest + 1, *(n for n, _ in undecided)]) - 1
        view = cls(floor, 0, None, undecided)
        listed = view.born_into
        view.fates = {n: False for n in range(floor + 1, newest + 1) if n not in listed}
        view.newest = max(newest, view.newest)
        return view

    def is_decided(self, checkpoint: int) -> bool:
        """Whether the fate of `checkpoint` is known here."""
        return checkpoint <= self.floor or checkpoint in self.fates

    def learn(self, opens: Iterable[tuple[int, bool]]) -> None:
        """Takes undecided ids from wherever they come."""
        for checkpoint, full in opens:
            if not self.is_decided(checkpoint):
                self.full.setdefault(checkpoint, full)
                self.newest = max(self.newest, checkpoint)

    def due(self) -> list[Open]:
        """Undecided ids not yet captured here, ascending."""
        return [Open(n, self.full[n]) for n in sorted(self.full) if n not in self.captured]

    def open_captures(self) -> list[tuple[int, bool]]:
        """Captured and undecided: what new channels start with."""
        return [(n, self.full[n]) for n in sorted(self.captured)]

    def settled(self, checkpoint: int, committed: bool) -> bool:
        """Takes a fate; true if this id was captured here and its fate is news."""
        if committed:
            self.committed = max(self.committed, checkpoint)
        if self.is_decided(checkpoint):
            return False
        self.fates[checkpoint] = committed
        self.newest = max(self.newest, checkpoint)
        self.full.pop(checkpoint, None)
        was_captured = self.captured.pop(checkpoint, False) and checkpoint not in self.born_into
        if committed and was_captured:
            self.base = checkpoint if self.base is None else max(self.base, checkpoint)
        return was_captured

    def missing(self, undecided: Sequence[Open], newest: int) -> list[int]:
        """Ids known here as undecided that the coordinator's list no longer has: decided, fate unheard."""
        listed = {n for n, _ in undecided}
        return [n for n in sorted(self.full) if n <= newest and n not in listed]

    def raise_floor(self, floor: int) -> None:
        """All ids up to `floor` are decided and dealt with."""
        if floor > self.floor:
            self.floor = floor
            self.fates = {n: fate for n, fate in self.fates.items() if n > floor}

    def opens_of(self, marks: Sequence[Mark]) -> list[tuple[int, bool]]:
        """The ids that marks speak of."""
        return [(mark.checkpoint, mark.full) for mark in marks]
