"""The coordinator's two-phase commit, one automaton for all undecided checkpoints::

    Collecting --all prepared, cut proves itself--> Writing --manifest durable--> Deciding(True) --row--> gone
        |                                             |
        +--timeout, loss, complaint, bad cut----------+------------------------> Deciding(False) --row--> gone

Nothing is announced before the catalog row says so (`RowDecided`). A fate is asked for once; the
catalog's compare-and-set decides. Ids are independent: n+1 may commit before n.

Who leaves (`Leaves`) is in no roster begun from then on; its process may end (`Bury`) when every checkpoint
with it in the roster is decided. Its last claims stand for it until a cut commits in which nobody speaks of
it (`Forget`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .cut import Claims, Departed, check, named
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
    "Leaves",
    "WentBack",
    "Bury",
    "Forget",
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


class Leaves(NamedTuple):
    """A participant has departed, and its departure is durable; it is in no roster from now on."""

    member: Member
    end: Departed


class WentBack(NamedTuple):
    """Everybody goes back to a cut, and these had left by then."""

    departed: Mapping[Member, Departed]


class Bury(NamedTuple):
    """Every checkpoint with this one in its roster is decided: its process may end, its name is free."""

    member: Member


class Forget(NamedTuple):
    """A cut has committed in which nobody speaks of this one that has left."""

    member: Member


class Prepare(NamedTuple):
    """Send initiate to all: there is a new undecided id."""

    checkpoint: int


class WriteManifest(NamedTuple):
    """Write the manifest of a cut that proved itself."""

    checkpoint: int
    claims: Mapping[Member, Claims]
    reports: Mapping[Member, Mapping[str, Any]]
    # Who had left when it was begun, as far as the cut still speaks of them.
    departed: Mapping[Member, Departed]


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


Event = (
    Begun | Prepared | Complained | GiveUp | ManifestDurable | ManifestFailed | RowDecided | Leaves | WentBack
)
Action = Prepare | WriteManifest | Decide | Announce | Bury | Forget
Prove = Callable[[Mapping[Member, Claims], Mapping[Member, Departed]], list[str]]


# Who takes part, in order: asked for each that prepares.
_Roster = Mapping[Member, None]


@dataclass(slots=True)
class _Collecting:
    roster: _Roster
    full: bool
    deadline: float
    claims: dict[Member, Claims] = field(default_factory=dict)
    reports: dict[Member, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class _Writing:
    roster: _Roster
    full: bool
    # Who had left when the cut was begun, and is not spoken of in it.
    unnamed: tuple[Member, ...]


@dataclass(slots=True)
class _Deciding:
    roster: _Roster
    full: bool
    unnamed: tuple[Member, ...] = ()


class GlobalCommit:
    """All undecided checkpoints of the coordinator."""

    def __init__(self, prove: Prove = check) -> None:
        self.prove = prove
        self._open: dict[int, _Collecting | _Writing | _Deciding] = {}
        self.departed: dict[Member, Departed] = {}
        self._unburied: dict[Member, None] = {}

    def handle(self, event: Event) -> list[Action]:
        """One event in, its actions out."""
        if isinstance(event, Begun):
            assert event.checkpoint not in self._open, f"checkpoint {event.checkpoint} was begun before"
            roster = dict.fromkeys(event.roster)
            self._open[event.checkpoint] = _Collecting(roster, event.full, event.deadline)
            return [Prepare(event.checkpoint)]
        if isinstance(event, Leaves):
            self.departed[event.member] = event.end
            self._unburied[event.member] = None
            return self._bury()
        if isinstance(event, WentBack):
            self.departed = dict(event.departed)
            self._unburied.clear()
            return []
        state = self._open.get(event.checkpoint)
        if state is None:
            return []
        if isinstance(event, Prepared):
            return self._prepared(event, state)
        if isinstance(event, ManifestDurable):
            if not isinstance(state, _Writing):
                return []
            self._open[event.checkpoint] = _Deciding(state.roster, state.full, state.unnamed)
            return [Decide(event.checkpoint, True, "")]
        if isinstance(event, RowDecided):
            # A cut with a smaller id was captured before, and may speak of them still.
            settled = event.committed and event.checkpoint == min(self._open)
            del self._open[event.checkpoint]
            said = Announce(event.checkpoint, event.committed, event.reason, tuple(state.roster))
            unnamed = state.unnamed if settled and isinstance(state, _Deciding) else ()
            return [said, *self._bury(), *self._forget(unnamed)]
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
        departed = {m: end for m, end in self.departed.items() if m not in state.roster}
        spoken_of = named(state.claims, departed)
        violations = self.prove(state.claims, spoken_of)
        if violations:
            return self._give_up(
                event.checkpoint, "the cut does not prove itself: " + "; ".join(violations), state
            )
        unnamed = tuple(member for member in departed if member not in spoken_of)
        self._open[event.checkpoint] = _Writing(state.roster, state.full, unnamed)
        return [WriteManifest(event.checkpoint, state.claims, state.reports, spoken_of)]

    def _bury(self) -> list[Action]:
        rosters = [state.roster for state in self._open.values()]
        done = [member for member in self._unburied if not any(member in roster for roster in rosters)]
        for member in done:
            del self._unburied[member]
        return [Bury(member) for member in done]

    def _forget(self, unnamed: tuple[Member, ...]) -> list[Action]:
        gone = [member for member in unnamed if member in self.departed]
        for member in gone:
            del self.departed[member]
        return [Forget(member) for member in gone]

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
