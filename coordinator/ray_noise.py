"""Ray prints ten lines for every worker that dies, whatever logging was asked for. Ours are told otherwise.

Only lines about processes of a system of ours are dropped: those losses are reported by name. Everything
else that Ray says is printed as before. The place where Ray prints is private to it, so the filter is
installed only if it is there, and a Ray without it is merely noisier.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ("OWN_PIDS", "quiet_own_deaths", "is_own_death")

OWN_PIDS: set[int] = set()
_DEATH = re.compile(r"A worker died or was killed while executing a task.*Worker PID: (\d+)", re.DOTALL)


def is_own_death(batch: dict[str, Any]) -> bool:
    """Whether a batch of Ray's log lines is the notice of one of our processes' death."""
    if batch.get("pid") != "raylet":
        return False
    found = _DEATH.search("\n".join(map(str, batch.get("lines", ()))))
    return found is not None and int(found.group(1)) in OWN_PIDS


def quiet_own_deaths() -> None:
    """Installs the filter, once."""
    from ray._private import worker

    show = getattr(worker, "print_worker_logs", None)
    if show is None or getattr(show, "cutline", False):
        return

    def filtered(batch: dict[str, Any], *rest: Any, **options: Any) -> None:
        if not is_own_death(batch):
            show(batch, *rest, **options)

    filtered.cutline = True  # type: ignore[attr-defined]
    worker.print_worker_logs = filtered  # type: ignore[assignment]
