"""Which files of steps go: those that nobody can need who goes back to a cut that recovery would choose.

Recovery goes to the newest whole cut. Cuts with a label stay for good, and what was stepped since the
oldest of them would grow without end, so they count only where there are no others.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cutline.participant.step_files import FOLDER, forget
from cutline.storage.disk import meaning

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("NOBODYS", "forget_steps")

# In the place of a checkpoint: after all that there will be.
NOBODYS = sys.maxsize


def forget_steps(coordinator: Coordinator, home: Path) -> None:
    """Removes what is not needed any more, of all lineages of the system.

    Raises:
        StorageError: something cannot be removed.
    """
    if not (home / FOLDER).is_dir():
        return
    system, own = coordinator.settings.system, coordinator.lineage
    rows = coordinator.catalog.checkpoints(system, damage=[])
    for line in coordinator.catalog.lineages(system):
        cuts = [row for row in rows if row.lineage == line.lineage]
        plain = [row for row in cuts if row.label is None] or cuts[-1:]
        if not plain and line.lineage == own:
            continue
        oldest = min((row.checkpoint for row in plain), default=NOBODYS)
        try:
            forget(home, line.lineage, oldest, coordinator.epoch if line.lineage == own else NOBODYS)
        except OSError as error:
            raise meaning(error, str(home / FOLDER), writing=True) from error
