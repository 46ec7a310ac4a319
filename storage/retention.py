"""Which checkpoints may go (pure).

Kept are, in each lineage: what its `Policy` keeps; every labelled one; the head; the newest that is not known
to be broken. Early checkpoints, taken because an effect waited for one, are not counted by the policy: the
newest `EARLY_KEPT` stay. Further: the parent of every undecided checkpoint, and where a lineage forked off as
long as it has no whole cut of its own.

Packs that a kept delta builds on are kept because the kept cut lists them, whatever happens to the rows of
the cuts they were written for. Time plays a part only where a policy speaks of it, and can only keep more:
whatever a clock says, the newest ``keep`` stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cutline.errors import RefusedOption

from .catalog import CheckpointRow, LineageRow, Place

# Nobody goes below what an effect has left from by himself, so older ones would be of little use.
EARLY_KEPT = 2

__all__ = ("EARLY_KEPT", "Policy", "expendable", "stays")


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept of each lineage, labelled ones apart; each rule adds to the others.

    ``keep``: the newest so many, whatever their age. ``keep_for``: all that are at most so many seconds old.
    ``thin``: pairs (every, up to): of each period that began at most so long ago the oldest one. Periods are
    counted from 1970, so that the same ones stay as time goes on. A checkpoint that was decided later than
    now, by a clock that was set back since, counts as new.
    """

    keep: int = 10
    keep_for: float = 0.0
    thin: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        sound = self.keep_for >= 0 and all(every > 0 and upto > 0 for every, upto in self.thin)
        if not sound:
            raise RefusedOption(f"ages and periods of retention are positive: {self}")

    def keeps(self, cuts: Sequence[CheckpointRow], now: float) -> Iterator[CheckpointRow]:
        """Of one lineage's cuts, in order."""
        yield from cuts[-max(1, self.keep) :]
        ages = [max(0.0, now - (row.decided_at or 0.0)) for row in cuts]
        if self.keep_for:
            yield from (row for row, age in zip(cuts, ages, strict=True) if age <= self.keep_for)
        for every, upto in self.thin:
            seen: set[int] = set()
            for row in cuts:
                # By the age of the period, not of the cut: else the oldest went first, and one that another
                # rule has kept until then would be the oldest.
                period = int((row.decided_at or 0.0) // every)
                if period not in seen and now - period * every <= upto:
                    yield row
                seen.add(period)


def stays(
    lines: Sequence[LineageRow], rows: Sequence[CheckpointRow], *, broken: Collection[Place] = ()
) -> dict[Place, list[str]]:
    """Committed checkpoints that no rule may give up, and why. ``rows``: all of a system, in order."""
    reasons: dict[Place, list[str]] = {}
    committed = _committed(lines, rows)
    for row in rows:
        if row.fate == "begun" and row.parent is not None:
            reasons.setdefault(row.parent, []).append(
                f"checkpoint {row.checkpoint} under way may build on it"
            )
    for line in lines:
        cuts = committed[line.lineage]
        whole = [row for row in cuts if row.place not in broken]
        for row in cuts:
            if row.label is not None:
                reasons.setdefault(row.place, []).append(f"it has the label {row.label!r}")
        for row in cuts[-1:]:
            reasons.setdefault(row.place, []).append("it is the newest of its lineage")
        for row in whole[-1:]:
            reasons.setdefault(row.place, []).append("it is the newest whole one of its lineage")
        if not whole and line.origin is not None:
            reasons.setdefault(line.origin, []).append(f"lineage {line.lineage} forked off there")
    return reasons


def expendable(
    lines: Sequence[LineageRow],
    rows: Sequence[CheckpointRow],
    policy: Policy,
    *,
    now: float,
    broken: Collection[Place] = (),
) -> set[Place]:
    """Committed checkpoints that may go: without a label, not kept by the policy, and not in `stays`."""
    old: set[Place] = set()
    for cuts in _committed(lines, rows).values():
        unlabelled = [row for row in cuts if row.label is None]
        old.update(row.place for row in unlabelled)
        early = [row for row in unlabelled if row.summary.get("early")]
        usual = [row for row in unlabelled if not row.summary.get("early")]
        old.difference_update(row.place for row in early[-EARLY_KEPT:])
        old.difference_update(row.place for row in policy.keeps(usual, now))
    return old - stays(lines, rows, broken=broken).keys()


def _committed(lines: Sequence[LineageRow], rows: Sequence[CheckpointRow]) -> dict[str, list[CheckpointRow]]:
    committed: dict[str, list[CheckpointRow]] = {line.lineage: [] for line in lines}
    for row in rows:
        if row.fate == "committed" and not row.condemned:
            committed[row.lineage].append(row)
    return committed
