"""The checked-in list of mutants that no test kills, each with its reason.

An entry is two lines, the mutant's place and, indented, why nothing can (or need) tell it from the original::

    channel.py Outgoing.flush: a >= b -> a > b
        why nobody can tell

Empty lines and lines that begin with ``#`` are for the reader.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ("read_reasons",)


def read_reasons(path: Path) -> dict[str, str]:
    """place -> reason.

    Raises:
        ValueError: an entry without a reason, a reason without a place, or a place that comes twice.
    """
    found: dict[str, str] = {}
    place = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if line[0].isspace():
            if not place:
                raise ValueError(f"{path.name}:{number}: a reason that belongs to no mutant")
            found[place] = f"{found[place]} {text}".strip()
            continue
        if place and not found[place]:
            raise ValueError(f"{path.name}:{number}: no reason for {place}")
        if text in found:
            raise ValueError(f"{path.name}:{number}: this mutant is listed twice: {text}")
        place = text
        found[place] = ""
    if place and not found[place]:
        raise ValueError(f"{path.name}: no reason for {place}")
    return found
