"""What of the driver's log nobody needs: what all cuts have behind them that a recovery may go to.

A recovery goes to the newest whole cut of its lineage, and takes what the log holds behind that. So records
count that are behind the oldest cut that is kept; of those with a label, which stay for good, only such as
are among the newest `keep` count, or the log would grow for as long as the oldest stays. A recovery to an
older one, because all that are newer are damaged, is refused by the driver, who names the records that are
not there. A fork of any cut takes nothing from the log, and has one of its own.

The driver, whose log it is, is told so and removes; it minds the cuts that are not decided yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cutline.errors import Corrupt, RefusedOption
from cutline.storage import CheckpointRow

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("InputRetention", "behind_all", "input_options")

# Seconds: rows are not read for this after each of many checkpoints a second.
_PAUSE = 1.0


def behind_all(cuts: Sequence[CheckpointRow], keep: int) -> int:
    """The position in the log that all of these committed cuts of one lineage, in order, have behind them."""
    counted = [*(row for row in cuts if row.label is None), *cuts[-max(1, keep) :]]
    return min(map(_behind, counted), default=0)


def _behind(row: CheckpointRow) -> int:
    """Older versions did not note it; what was made of another lineage's cut has that one's."""
    foreign = row.summary.keys() & {"edited", "imported", "forked"}
    return 0 if foreign else int(row.summary.get("input", 0))


class InputRetention:
    """Of one coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self._told_at = -math.inf

    def tell(self) -> None:
        """Says to the driver what it may forget.

        Raises:
            StorageError: the catalog cannot be read.
        """
        c = self.c
        if c.now() - self._told_at < _PAUSE:
            return
        self._told_at = c.now()
        damage: list[Corrupt] = []
        rows = c.catalog.checkpoints(c.settings.system, lineage=c.lineage, damage=damage)
        # One that is damaged may be put back.
        behind = behind_all(rows, c.settings.keep) if not damage else 0
        if behind:
            c.notice("input_behind", lineage=c.lineage, behind=behind)


def input_options(remember_keys: float, waiting_inputs: int) -> dict[str, float | int]:
    """The settings of that name.

    Raises:
        RefusedOption: one that cannot be meant.
    """
    if not remember_keys > 0 or waiting_inputs < 1:
        raise RefusedOption(
            f"remember_keys={remember_keys!r} is a number of seconds, and waiting_inputs={waiting_inputs!r} a"
            " number of calls; both are more than 0"
        )
    return {"remember_keys": remember_keys, "waiting_inputs": waiting_inputs}
