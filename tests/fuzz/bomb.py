"""Bytes that tell when somebody unpickles them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

__all__ = ("EXPLODED", "bombs")

EXPLODED: list[str] = []


def explode(how: str) -> None:
    """Called by whoever unpickles a bomb."""
    EXPLODED.append(how)


class _Bomb:
    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[Any, ...]]:
        return explode, (self.how,)


def bombs() -> list[bytes]:
    """In the protocols that something here reads."""
    return [pickle.dumps(_Bomb(f"protocol {protocol}"), protocol=protocol) for protocol in (0, 2, 5)]
