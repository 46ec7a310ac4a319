"""A question and its answer, one at a time: ``remote`` and ``get`` from the driver, against a plain Ray call.

Both sides ask an actor with nothing to do on one local Ray. Ours is a question that is not logged
(``durable=False``), because plain Ray logs nothing either; the note says what one takes that is synced to the
log before it leaves, which is what Cutline does unless told otherwise.
"""

from __future__ import annotations

import tempfile
from typing import Any

import ray

import cutline
from bench.ray_peers import Echo, local_ray, typical
from bench.row import Row, interleave

__all__ = ("measure",)


def measure(*, rounds: int = 9, questions: int = 500) -> Row:
    """The row; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, local_ray():
        plain: Any = ray.remote(Echo)
        actor = plain.remote()
        system = cutline.start(folder, name="latency", interval=None, fresh=True, quiet=True, runtime="ray")
        try:
            echo: Any = system.spawn("echo", Echo)
            unlogged = echo.nothing.options(durable=False)
            ours, baseline = interleave(
                rounds,
                lambda: 1e6 * typical(questions, lambda: cutline.get(unlogged.remote())),
                lambda: 1e6 * typical(questions, lambda: ray.get(actor.nothing.remote())),
            )
            logged = 1e6 * typical(questions, lambda: cutline.get(echo.nothing.remote()))
        finally:
            system.stop()
            ray.kill(actor)
    return Row(
        name="latency_vs_ray",
        unit="us",
        samples_ours=ours,
        samples_baseline=baseline,
        at_most=0.4,
        note=f"median of {questions} questions a round, one at a time, not logged; one that is synced to the "
        f"log before it leaves: {logged:.0f} us",
    )
