"""The coordinator's two-phase commit, one automaton for all undecided checkpoints::

    Collecting --all prepared, cut proves itself--> Writing --manifest durable--> Deciding(True) --row--> gone
        |                                             |
        +--timeout, loss, complaint, bad cut----------+------------------------> Deciding(False) --row--> gone

Nothing is announced before the catalog row says so (`RowDecided`). A fate is asked for once; the
catalog's compare-and-set decides. Ids are independent: n+1 may commit before n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .cut import Claims, check
from .messages import Member, Open

__all__ = (
    "GlobalCommit",
    "Begun",
    "Prepared",
    "Complained",
    "GiveUp",
    "ManifestDurable",
    "ManifestFailed",
    "RowDecided",
    "WriteManifest",
    "Decide",
    "Announce",
    "Prepare",
)


class Begun(NamedTuple):
    """The row `begun` is durable; `roster` takes part."""

    checkpoint: int
    full: bool
    roster: tuple[Member, ...]
    deadline: float


class Prepared(NamedTuple):
    """A participant's image is durable; `report` is its reference and figures, for the manifest."""

    member: Member
    checkpoint: int
    claims: Claims
    report: Mapping[str, Any]


class Complained(NamedTuple):
    """A participant cannot prepare."""

    member: Member
    checkpoint: int
    reason: str


class GiveUp(NamedTuple):
    """Abort if undecided: a loss, a stop, a deadline."""

    checkpoint: int
    reason: str


class ManifestDurable(NamedTuple):
    """The manifest is durable."""

    checkpoint: int


class ManifestFailed(NamedTuple):
    """The manifest could not be written."""

    checkpoint: int
    reason: str


class RowDecided(NamedTuple):
    """The catalog row says the fate."""

    checkpoint: int
    committed: bool
    reason: str


class Prepare(NamedTuple):
    """Send initiate to all: there is a new undecided id."""

    checkpoint: int


class WriteManifest(NamedTuple):
    """Write the manifest of a cut that proved itself."""

    checkpoint: int
    claims: Mapping[Member, Claims]
    reports: Mapping[Member, Mapping[str, Any]]


class Decide(NamedTuple):
    """Compare-and-set the row: begun -> committed, or begun -> aborted."""

    checkpoint: int
    commit: bool
    reason: str


class Announce(NamedTuple):
    """Tell the roster; the row says so."""

    checkpoint: int
    committed: bool
    reason: str
    roster: tuple[Member, ...]


Event = Begun | Prepared | Complained | GiveUp | ManifestDurable | ManifestFailed | RowDecided
Action = Prepare | WriteManifest | Decide | Announce


@dataclass(slots=True)
class _Collecting:
    roster: tuple[Member, ...]
    full: bool
    deadline: float
    claims: dict[Member, Claims] = field(default_factory=dict)
    reports: dict[Member, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class _Writing:
    roster: tuple[Member, ...]
    full: bool


@dataclass(slots=True)
class _Deciding:
    roster: tuple[Member, ...]
    full: bool


class GlobalCommit:
    """All undecided checkpoints of the coordinator."""

    def __init__(self, prove: Callable[[Mapping[Member, Claims]], list[str]] = check) -> None:
        self.prove = prove
        self._open: dict[int, _Collecting | _Writing | _Deciding] = {}

    def handle(self, event: Event) -> list[Action]:
        """One event in, its actions out."""
        if isinstance(event, Begun):
            assert event.checkpoint not in self._open, f"checkpoint {event.checkpoint} was begun before"
            self._open[event.checkpoint] = _Collecting(event.roster, event.full, event.deadline)
            return [Prepare(event.checkpoint)]
        state = self._open.get(event.checkpoint)
        if state is None:
            return []
        if isinstance(event, Prepared):
            return self._prepared(event, state)
        if isinstance(event, ManifestDurable):
            if not isinstance(state, _Writing):
                return []
            self._open[event.checkpoint] = _Deciding(state.roster, state.full)
            return [Decide(event.checkpoint, True, "")]
        if isinstance(event, RowDecided):
            del self._open[event.checkpoint]
            return [Announce(event.checkpoint, event.committed, event.reason, state.roster)]
        if isinstance(event, Complained):
            if event.member not in state.roster:
                return []
            return self._give_up(event.checkpoint, f"{event.member.name}: {event.reason}", state)
        return self._give_up(event.checkpoint, event.reason, state)

    def _prepared(self, event: Prepared, state: _Collecting | _Writing | _Deciding) -> list[Action]:
        if not isinstance(state, _Collecting) or event.member not in state.roster:
            return []
        state.claims.setdefault(event.member, event.claims)
        state.reports.setdefault(event.member, event.report)
        if len(state.reports) < len(state.roster):
            return []
        violations = self.prove(state.claims)
        if violations:
            return self._give_up(
                event.checkpoint, "the cut does not prove itself: " + "; ".join(violations), state
            )
        self._open[event.checkpoint] = _Writing(state.roster, state.full)
        return [WriteManifest(event.checkpoint, state.claims, state.reports)]

    def _give_up(
        self, checkpoint: int, reason: str, state: _Collecting | _Writing | _Deciding
    ) -> list[Action]:
        if isinstance(state, _Deciding):
            return []
        self._open[checkpoint] = _Deciding(state.roster, state.full)
        return [Decide(checkpoint, False, reason)]

    @property
    def undecided(self) -> list[Open]:
        """The undecided ids, ascending, as `initiate` names them."""
        return [Open(n, self._open[n].full) for n in sorted(self._open)]

    def waiting_for(self, checkpoint: int) -> list[Member]:
        """Who has not prepared yet."""
        state = self._open.get(checkpoint)
        if not isinstance(state, _Collecting):
            return []
        return [member for member in state.roster if member not in state.reports]

    def overdue(self, now: float) -> list[int]:
        """Ids still collecting past their deadline."""
        return [
            n
            for n, state in sorted(self._open.items())
            if isinstance(state, _Collecting) and now >= state.deadline
        ]

    @property
    def deadline(self) -> float | None:
        """When to look at `overdue` next."""
        times = [state.deadline for state in self._open.values() if isinstance(state, _Collecting)]
        return min(times) if times else None
