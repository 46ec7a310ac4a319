"""Loops of the driver: a position in the cut, a body that is run again, an end that no recovery undoes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cutline.errors import CheckpointAborted, RolledBack
from cutline.participant.driver import DriverRunner
from cutline.participant.submission import Place, Submission

from .driver_port import DriverPort

__all__ = ("run_loop", "sealed")

SEALS = 5


def sealed(checkpoint: Callable[[], int]) -> int:
    """Takes a checkpoint; one that a loss aborts is asked for again, since the system goes on after it.

    Raises:
        CheckpointAborted: several in a row did not commit.
        RolledBack: the system went back behind something that the session has seen.
    """
    for _ in range(SEALS - 1):
        try:
            return checkpoint()
        except CheckpointAborted:
            continue
    return checkpoint()


def run_loop(
    port: DriverPort, checkpoint: Callable[[], int], name: str, times: int, body: Callable[[int], Any]
) -> None:
    """See `cutline.coordinator.system.System.loop`."""
    runner = port.runner
    # What was undone before the loop is the caller's business, what is undone in it is ours.
    port.check()
    while True:
        step, known, generation = port.on_runner(lambda: runner.loop_position(name), check=False)
        try:
            if step >= times:
                sealed(checkpoint)
                if runner.generation == generation:
                    return
                continue
            with port.inside(name, step, known, generation):
                body(step)
            _advance(port, runner, name, step, generation)
        except RolledBack:
            if runner.generation == generation:
                # Not of this loop's time: something older that the body still holds.
                raise
        except CheckpointAborted:
            if step < times or runner.generation == generation:
                raise


def _advance(port: DriverPort, runner: DriverRunner, name: str, step: int, generation: int) -> None:
    taken: Future[None] = Future()
    place = Place(name, step, -1, 0)
    runner.post(Submission("advance", port.number(), "", "", None, None, False, place, generation, taken))
    taken.result()
