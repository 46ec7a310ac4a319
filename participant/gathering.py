"""The containers that one pickling of a state meets: each gets a number, by which streams name it."""

from __future__ import annotations

from typing import Any

from .container import Container, Refused

__all__ = ("Gathering",)


class Gathering:
    """See the module's head.

    A container that a capture of `owner` gave a number keeps it; others get numbers from `first` on. What is
    met is kept alive, so that no other object gets its identity.
    """

    def __init__(self, owner: object = None, first: int = 0) -> None:
        self.met: dict[int, Container] = {}
        self.first = first
        # Whether streams name containers only, without what is to be checked of them.
        self.names_only = False
        self._owner = owner
        self._numbers: dict[int, int] = {}
        # Those that a stream has had, and where in them that was which is to be checked.
        self._written: dict[int, Any] = {}
        self._walked = 0

    def number(self, shown: Container) -> int:
        """The number of a container."""
        found = self._numbers.get(id(shown))
        if found is None:
            journal = shown._journal
            if journal is not None and journal.owner is self._owner:
                found = journal.number
            else:
                found = self.first
                self.first += 1
            self._numbers[id(shown)] = found
            self.met[found] = shown
        return found

    def reduce(self, shown: Container) -> tuple[Any, ...]:
        """How a stream has it; the first time with what is to be checked."""
        # Not above: rebuild has the types of containers in its own signatures.
        from .rebuild import mark

        number = self._named(shown) if self.names_only else self.number(shown)
        named = mark("_container"), (shown.kind, number)
        if self.names_only:
            return named
        state = shown._checked_state()
        self._written[number] = shown._checked_places()
        return named if state is None else (*named, state, None, None, mark("_fill_container"))

    def _named(self, shown: Container) -> int:
        """The same of what may have left the state since: then it is not met."""
        found = self._numbers.get(id(shown))
        if found is None:
            journal = shown._journal
            if journal is not None and journal.owner is self._owner:
                return journal.number
            found, self.first = self.first, self.first + 1
        return found

    def check(self) -> None:
        """When changes have been written too. Raises Refused: something else is to be checked now than was,
        and what a restore filled in would not be in its place.
        """
        for number, places in self._written.items():
            if places != self.met[number]._checked_places():
                raise Refused(
                    f"a {self.met[number].kind} that is changed while it is captured: by the __getstate__ "
                    "or __reduce__ of an object in the state, which may only look at it"
                )

    def unwritten(self) -> list[Container]:
        """Those of which something is to be checked and that no stream has had yet."""
        order = list(self.met.values())
        while self._walked < len(order):
            for inner in order[self._walked]._nested():
                if id(inner) not in self._numbers:
                    self.number(inner)
                    order.append(inner)
            self._walked += 1
        return [
            container
            for number, container in self.met.items()
            if number not in self._written and container._checked_count()
        ]
