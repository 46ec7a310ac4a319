"""What a rollback undoes, counted from what each process has recorded of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cutline.participant.flight import FlightRecord, read_flight
from cutline.storage import CheckpointRow

from .roster import Seat

__all__ = ("undone",)


def undone(
    row: CheckpointRow, gone: Sequence[tuple[str, FlightRecord]], seats: Iterable[Seat]
) -> tuple[int, int]:
    """Messages and handlers behind the cut: of those that are gone, and of those that stand still."""
    handled = row.summary.get("handled", {})
    handlers = row.summary.get("handlers", {})
    records = list(gone)
    for seat in seats:
        record = read_flight(Path(seat.flight)) if seat.flight else None
        if record is not None:
            records.append((seat.member.name, record))
    # One that died before it had taken the cut's state shows less than the cut.
    messages = sum(max(0, record.handled - handled.get(name, 0)) for name, record in records)
    reruns = sum(max(0, record.handlers - handlers.get(name, 0)) for name, record in records)
    return messages, reruns
