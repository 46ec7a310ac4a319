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

__all__ = ("expendable",)


def expendable(
    lines: Sequence[LineageRow],
    rows: Sequence[CheckpointRow],
    *,
    keep: int,
    broken: Collection[Place] = (),
) -> set[Place]:
    """Places of committed checkpoints that may go. ``rows``: all of a system, in order, of any fate."""
    committed: dict[str, list[CheckpointRow]] = {line.lineage: [] for line in lines}
    kept: set[Place] = set()
    for row in rows:
        if row.fate == "committed" and not row.condemned:
            committed[row.lineage].append(row)
        elif row.fate == "begun" and row.parent is not None:
            kept.add(row.parent)
    for line in lines:
        cuts = committed[line.lineage]
        whole = [row.place for row in cuts if row.place not in broken]
        kept.update(row.place for row in cuts if row.label is not None)
        kept.update([row.place for row in cuts if row.label is None][-max(1, keep) :])
        kept.update(row.place for row in cuts[-1:])
        kept.update(whole[-1:])
        if not whole and line.origin is not None:
            kept.add(line.origin)
    return {row.place for cuts in committed.values() for row in cuts} - kept
