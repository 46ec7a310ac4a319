"""How a program leaves a system that goes on without it: what it does on the driver's side.

Everything it has said is taken first, then its participant comes to rest and is captured at rest
(`cutline.participant.leaving`), and the coordinator parks it (`cutline.coordinator.parting`). What comes in
between (a recovery, a checkpoint that aborts) starts it anew; what keeps it from leaving is an error, after
which the program is the driver as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cutline.errors import CheckpointAborted, CutlineError
from cutline.participant.leaving import LeavingDriver

from .driver_port import DriverPort

__all__ = ("depart",)

_LOOK = 0.01
_TRIES = 10
# Seconds for the word that the driver stays: a coordinator that does not take it is gone.
_STAY = 30.0


def depart(port: DriverPort, runner: LeavingDriver, request: Callable[..., Any], timeout: float) -> int:
    """Leaves; returns the checkpoint that the driver left with.

    Raises:
        TimeoutError: somebody has not taken what was sent, or no checkpoint was committed in time.
        RolledBack: the system went back behind something that this session has seen.
        CheckpointAborted: the checkpoints that it tried to leave with did not commit.
    """
    deadline = time.monotonic() + timeout
    asked = False
    try:
        for tries in range(1, _TRIES + 1):
            _come_to_rest(port, runner, deadline, timeout)
            asked = True
            try:
                doc = request("park", max(0.0, deadline - time.monotonic()))
            except CheckpointAborted:
                if tries == _TRIES:
                    raise
                continue
            if doc["parked"]:
                return int(doc["checkpoint"])
        raise CheckpointAborted("recoveries came between: the system did not come to rest; detach again")
    except BaseException:
        if asked and runner.fault is None:
            # It may have been parked by now, and is not gone.
            _stay(request)
        runner.post(runner.wake)
        raise


def _come_to_rest(port: DriverPort, runner: LeavingDriver, deadline: float, timeout: float) -> None:
    while True:
        late = port.gates.targets()
        reason = (
            port.on_runner(runner.try_rest) if not late else f"arguments for {', '.join(late)} are not there"
        )
        if not reason:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the program cannot leave yet: after {timeout:g} s {reason}. Nothing has changed; wait for "
                "it, or call detach() again"
            )
        time.sleep(_LOOK)


def _stay(request: Callable[..., Any]) -> None:
    try:
        request("stay", _STAY)
    except (CutlineError, TimeoutError):
        # What was undone meanwhile is no news here: the first error is told.
        return
