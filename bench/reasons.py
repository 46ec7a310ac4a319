"""What is said of an error in a document that is read elsewhere."""

from __future__ import annotations

import re

__all__ = ("reason_of", "without_paths")


def without_paths(text: str) -> str:
    """A text without the machine's paths."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", ".../", text)


def reason_of(error: BaseException) -> str:
    """Its kind, and the first line of what it says."""
    first = (str(error).splitlines() or [""])[0]
    return without_paths(f"{type(error).__name__}: {first}")
