"""Memory that survives a rollback in place: what still holds what the cut holds is not read again.

Theory of operation. Whoever rolls back and lives has most of the cut's large memory before it: little has
changed since. `Capturer.standing` finds the arrays that own memory, with the marks that they had at the cut.
Then the old state goes. What nobody refers to any more but this (`alone`; destructors have run) can be
written by nobody, so what was written since the cut is found out and read from the image, and the array
itself becomes the restored one's. What somebody still refers to, such as a thread or a global variable of the
user's, is left to them, and read whole.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import getweakrefcount

import numpy as np

from cutline.storage.image import Held

from .memory import Bytes, taken_over
from .tracking import Mark, RegionTracker

__all__ = ("Standing",)


class Standing:
    """Owners of memory by region number, and the marks of their content at the cut.

    `marks` has all regions of the cut, whether their memory stands or not.
    """

    def __init__(
        self, owners: dict[int, np.ndarray[Any, Any]], marks: Mapping[int, Mark], tracker: RegionTracker
    ) -> None:
        self.marks = marks
        self.tracker = tracker
        self._owners = owners

    def alone(self) -> Held | None:
        """After the old state has gone: offers what nobody else refers to. None if there is nothing."""
        if not all(self._is_alone(number) for number in self._owners):
            gc.collect()
        self._owners = {number: self._owners[number] for number in self._owners if self._is_alone(number)}
        return self._held if self._owners else None

    def _is_alone(self, number: int) -> bool:
        return not getweakrefcount(self._owners[number]) and _references(self._owners, number) == _ALONE

    def _held(self, number: int, size: int) -> tuple[Bytes, Sequence[tuple[int, int]]] | None:
        owner = self._owners.pop(number, None)
        before = self.marks.get(number)
        if owner is None or before is None or before.size != size:
            return None
        memory = taken_over(owner, np.dtype(np.uint8), (size,))
        if memory is None:
            return None
        runs = self.tracker.since(memory, before)
        if runs is None:
            return None
        starts, stops = runs
        return memory, list(zip(starts.tolist(), stops.tolist(), strict=True))


def _references(owners: Mapping[int, Any], number: int) -> int:
    return sys.getrefcount(owners[number])


# What this interpreter counts for an object that the mapping alone refers to.
_ALONE = _references({0: np.empty(1)}, 0)
