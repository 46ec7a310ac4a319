"""Which checkpoint a word means (pure).

"newest" is the highest committed id of the newest lineage; a fork without a cut of its own stands where it
forked off. A number is looked for there first, then along the ancestors up to each fork, then elsewhere,
newest lineage first: forks count on from their origin, so one number may occur twice. Eight or more digits of
a manifest's hash mean the checkpoint that has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cutline.errors import CheckpointNotFound

from .catalog import CheckpointRow, LineageRow, Place

__all__ = ("ancestry", "found_or_refused")

_SHOWN = 12
_HASH = re.compile("[0-9a-f]{8,64}")


def ancestry(lines: Sequence[LineageRow], lineage: str) -> Iterator[tuple[str, int | None]]:
    """The lineage and its ancestors as (lineage, highest id that counts; None: all)."""
    known = {line.lineage: line for line in lines}
    limit: int | None = None
    while lineage in known:
        yield lineage, limit
        origin = known.pop(lineage).origin
        if origin is None:
            return
        # Forked off above the point where that line itself was left: the lower one counts.
        lineage, limit = origin


def found_or_refused(
    system: str,
    point: str,
    lineage: str | None,
    lines: Sequence[LineageRow],
    rows: Sequence[CheckpointRow],
) -> CheckpointRow:
    """Of the committed ``rows``, the one that ``point`` means. Raises CheckpointNotFound."""
    place = point.rpartition("/")
    if place[0] and lineage is None:
        lineage, point = place[0], place[2]
    by_place = {row.place: row for row in rows}
    for candidate in _candidates(point, lineage, lines, rows):
        if candidate in by_place:
            return by_place[candidate]
    raise CheckpointNotFound(
        f"no checkpoint {point!r} in {f'lineage {lineage} of ' if lineage else ''}system {system!r};"
        f" there is {_what_there_is(rows)}",
        system=system,
        point=point,
        lineage=lineage,
    )


def _candidates(
    point: str, lineage: str | None, lines: Sequence[LineageRow], rows: Sequence[CheckpointRow]
) -> Iterator[Place]:
    if not lines:
        return
    line_up = list(ancestry(lines, lineage or lines[-1].lineage))
    near = [
        row
        for name, limit in line_up
        for row in reversed(rows)
        if row.lineage == name and (limit is None or row.checkpoint <= limit)
    ]
    if point == "newest":
        yield from (row.place for row in near[:1])
        return
    far = [] if lineage is not None else list(reversed(rows))
    number = int(point) if point.isascii() and point.isdecimal() and len(point) < 20 else None
    for row in (*near, *far):
        if row.checkpoint == number or row.label == point:
            yield row.place
    if _HASH.fullmatch(point):
        yield from (
            row.place for row in (*near, *far) if (row.manifest_digest or b"").hex().startswith(point)
        )


def _what_there_is(rows: Sequence[CheckpointRow]) -> str:
    if not rows:
        return "none yet"
    shown = [f"{row.lineage}/{row.checkpoint}{f' {row.label!r}' if row.label else ''}" for row in rows]
    more = f"{len(shown) - _SHOWN} older ones, " if len(shown) > _SHOWN else ""
    return more + ", ".join(shown[-_SHOWN:])
