"""Names of the parts of a long piece: the first part has the piece's own name.

To an image each part is a piece. Who shows pieces to people puts the parts together by their names.
"""

from __future__ import annotations

__all__ = ("part_name", "piece_of")

_PART = "part:"


def part_name(piece: str, index: int) -> str:
    """The name of part `index`, from 0 on, of a piece."""
    return f"{_PART}{index}:{piece}" if index else piece


def piece_of(name: str) -> str:
    """The piece whose part has that name."""
    return name.split(":", 2)[2] if name.startswith(_PART) and name.count(":") > 1 else name
