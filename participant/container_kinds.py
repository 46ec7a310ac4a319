"""The kinds of containers that captures know, by their names in images."""

from __future__ import annotations

from .container import Container
from .log import Log
from .map import Map

__all__ = ("KINDS",)

KINDS: dict[str, type[Container]] = {kind.kind: kind for kind in (Map, Log)}
