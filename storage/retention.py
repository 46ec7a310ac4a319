"""Which checkpoints may go (pure).

Kept are, in each lineage: the newest ``keep`` without a label; every labelled one; the head; the newest
that is not known to be broken. Further: the parent of every undecided checkpoint, and where a lineage
forked off as long as it has no whole cut of its own.

Packs that a kept delta builds on are kept because the kept cut lists them, whatever happens to the rows of
the cuts they were written for. Time plays no part.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .catalog import CheckpointRow, LineageRow, Place

__all__ = ("expendable", "stays")


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
    *,
    keep: int,
    broken: Collection[Place] = (),
) -> set[Place]:
    """Committed checkpoints that may go: older than the newest ``keep`` unlabelled, and not in `stays`."""
    old = set()
    for cuts in _committed(lines, rows).values():
        unlabelled = [row.place for row in cuts if row.label is None]
        old.update(unlabelled[: -max(1, keep)])
    return old - stays(lines, rows, broken=broken).keys()


def _committed(lines: Sequence[LineageRow], rows: Sequence[CheckpointRow]) -> dict[str, list[CheckpointRow]]:
    committed: dict[str, list[CheckpointRow]] = {line.lineage: [] for line in lines}
    for row in rows:
        if row.fate == "committed" and not row.condemned:
            committed[row.lineage].append(row)
    return committed
