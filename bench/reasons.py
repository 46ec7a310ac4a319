"""What is said of an error in a document that is read elsewhere."""

from __future__ import annotations

import re

__all__ = ("first_line", "reason_of", "without_paths")


def without_paths(text: str) -> str:
    """A text without the machine's paths."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", ".../", text)


def first_line(error: BaseException) -> str:
    """Of what it says."""
    return without_paths((str(error).splitlines() or [""])[0])


def reason_of(error: BaseException) -> str:
    """Its kind, and the first line of what it says."""
    return f"{type(error).__name__}: {first_line(error)}"
