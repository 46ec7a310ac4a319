"""What an exception says, in one line; also one whose text cannot be had.

Exceptions are the user's own classes. One whose ``__str__`` or ``__repr__`` raises is still an answer, or a
reason to halt; it must not break whoever tells of it.
"""

from __future__ import annotations

__all__ = ("said", "text_of")


def text_of(error: BaseException) -> str:
    """Its text."""
    try:
        return str(error)
    except Exception as fault:
        return f"(its __str__ raised {type(fault).__name__})"


def said(error: BaseException) -> str:
    """``Kind: text``."""
    return f"{type(error).__name__}: {text_of(error)}"
