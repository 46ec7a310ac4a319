"""What an exception says, or a value is, in one line; also one whose text cannot be had.

They are of the user's own classes. An exception whose ``__str__`` raises, or calls ``sys.exit``, is still an
answer, or a reason to halt; it must not break whoever tells of it.
"""

from __future__ import annotations

__all__ = ("said", "shown", "text_of")

_RAISED = (Exception, SystemExit)


def text_of(error: BaseException) -> str:
    """Its text."""
    try:
        return str(error)
    except _RAISED as fault:
        return f"(its __str__ raised {type(fault).__name__})"


def said(error: BaseException) -> str:
    """``Kind: text``."""
    return f"{type(error).__name__}: {text_of(error)}"


def shown(value: object) -> str:
    """The beginning of its ``repr``."""
    try:
        return f"{value!r:.80}"
    except _RAISED as fault:
        return f"a {type(value).__name__} that cannot be shown ({type(fault).__name__})"
