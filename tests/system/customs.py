"""A participant that looks at what arrives: every value of the zoo, and of the larger animals."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import cutline
from tests.participant.animals import CATALOGUE

__all__ = ("TRAVELLERS", "Customs", "made")

zoo: Any = importlib.import_module("tests.inputs.state_zoo")
SEED = 11


def _animal(make: Callable[[random.Random], Any]) -> tuple[Callable[[], Any], Callable[[Any, Any], Any]]:
    return lambda: make(random.Random(SEED)), zoo.same


# By name: how to make the value, and how to compare another with it.
TRAVELLERS: dict[str, Any] = {
    **zoo.zoo(),
    **zoo.refusals(),
    **{f"large {name}": _animal(make) for name, make in CATALOGUE.items()},
}


def made(name: str) -> Any:
    """The value, a new one each time."""
    return TRAVELLERS[name][0]()


class Customs:
    """Says what differs between what came and what should have come."""

    def look(self, name: str, came: Any) -> str:
        """ "" where nothing does."""
        make, check = TRAVELLERS[name]
        try:
            check(make(), came)
        except AssertionError as error:
            return str(error) or "it differs"
        return ""

    def give(self, name: str) -> Any:
        """The value, as an answer."""
        return made(name)

    def look_and_return(self, name: str, came: Any) -> tuple[str, Any]:
        """The value as it came, as an answer."""
        return self.look(name, came), came

    async def pass_on(self, other: cutline.Handle, name: str) -> tuple[str, Any]:
        """The value to another participant and back, and that answer as its own."""
        return await other.look_and_return.remote(name, made(name))  # type: ignore[no-any-return]
