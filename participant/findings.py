"""What is wrong with an image in this program, all of it, and what a restore would do about the rest.

A restore ends with the first fault; `cutline check` wants them all. Both run the same code: whoever meets a
fault calls `Findings.meet`, which raises it, unless there is a list to write it to.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from cutline.errors import CannotRestore, ClassMissing, ClassNotAllowed

__all__ = ("Absent", "Findings", "Migration", "Problem")


class Problem(NamedTuple):
    """One fault. `what`: class, version, migrate, member, field, attribute, method, call, load."""

    what: str
    path: str
    name: str
    text: str


class Migration(NamedTuple):
    """A class whose objects are migrated."""

    name: str
    found: int
    wanted: int


class Findings:
    """`lenient`: faults are noted, and whoever met one goes on as well as it can."""

    def __init__(self, lenient: bool = False) -> None:
        self.lenient = lenient
        self.problems: list[Problem] = []
        self.migrations: Counter[Migration] = Counter()
        # Numbers of suspended calls that cannot be run again, for reasons that were noted.
        self.stuck: set[int] = set()

    def meet(self, error: CannotRestore) -> None:
        """A fault. Raises it, unless all are wanted."""
        if not self.lenient:
            raise error
        facts = error.facts
        what = facts.get("what") or (
            "class" if isinstance(error, (ClassMissing, ClassNotAllowed)) else "load"
        )
        name = facts.get("class_name", "")
        problem = Problem(what, facts.get("path", ""), name, str(error))
        if problem not in self.problems:
            self.problems.append(problem)


class Absent:
    """Stands for a class, and for its objects, that are not to be had, so that the rest can be looked at."""

    def __new__(cls, *arguments: Any, **named: Any) -> Absent:
        return object.__new__(cls)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Has none."""

    def __call__(self, *arguments: Any, **named: Any) -> Absent:
        return self

    append = extend = add = update = __setitem__ = __call__
