"""What a capturer remembers of each of its captures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .parts import digest_of
from .shelf import Log
from .tracking import Mark

__all__ = ("Table",)


@dataclass
class Table:
    """What is remembered of one capture: hashes of its pieces, marks of its regions, and where they lay.

    `pieces` has the parts by their names, `wholes` the pieces as they were before they were cut, without the
    header, `cuts` the number of the parts of those that have several, and the size that the next ones are to
    have, `quick` the quick hashes of those parts, `logs` the segments of containers by number.
    """

    pieces: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    wholes: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    cuts: dict[str, tuple[int, int]] = field(default_factory=dict)
    quick: dict[str, list[bytes]] = field(default_factory=dict)
    regions: dict[int, Mark] = field(default_factory=dict)
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    logs: dict[int, Log] = field(default_factory=dict)

    def whole(self, names: Sequence[str]) -> tuple[bytes, int]:
        """Digest and length of a piece that consists of these parts."""
        parts = [self.pieces[name] for name in names]
        if len(parts) == 1:
            return parts[0]
        return digest_of([digest for digest, _ in parts]), sum(length for _, length in parts)
