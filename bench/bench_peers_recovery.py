"""SIGKILL to all participants, until all handle messages again, by state size, against a plain restart.

Four participants in Ray actors share a state of 1 MB, 100 MB or 1 GB that does not compress. All four are
killed in one go; the time runs until each has answered from a new process, with its state. The peer is what
Ray's documentation shows: actors with `max_restarts`, which load their state from a file in `__init__`; here
a pickle that was written before. Ours goes back to one consistent cut, with the messages in flight; the plain
actors each have a file, and nothing that fits them together. States are compared after each round.

Each side begins after some seconds of rest, as in `recovery_vs_floor`: Ray's pool of idle workers and our
spare host are there again.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.row import Missing, Row, interleave

__all__ = ("GROUP", "SIZES", "measure")

GROUP = "recovery"
# (the row's name, bytes of all four together)
SIZES = (("recovery_all_1mb", 1 << 20), ("recovery_all_100mb", 100 << 20), ("recovery_all_1gb", 1 << 30))
_ACTORS = 4
_PATIENCE = 120.0


class _Reloading:
    """A plain actor that loads what it holds from a pickle, whenever it is started."""

    def __init__(self, path: str) -> None:
        from xxhash import xxh3_64_intdigest

        with open(path, "rb") as file:
            self.held = pickle.load(file)
        self.digested = xxh3_64_intdigest

    def pid(self) -> int:
        return os.getpid()

    def digest(self) -> int:
        return int(self.digested(self.held.data))


class _Plain:
    """Four of them."""

    def __init__(self, folder: str, size: int) -> None:
        import numpy as np
        import ray

        self.get: Callable[..., Any] = ray.get
        self.end: Callable[..., Any] = ray.kill
        made: Any = ray.remote(_Reloading).options(max_restarts=-1, max_task_retries=-1)
        self.actors: list[Any] = []
        for number in range(_ACTORS):
            path = Path(folder) / f"actor-{number}"
            with open(path, "wb") as file:
                held = np.random.default_rng(number).integers(0, 256, size // _ACTORS, np.uint8)
                pickle.dump(held, file, 5)
            self.actors.append(made.remote(str(path)))
        self.digests = self._all("digest")

    def _all(self, method: str) -> list[Any]:
        asked = [getattr(actor, method).remote() for actor in self.actors]
        found: list[Any] = self.get(asked, timeout=_PATIENCE)
        return found

    def recovery(self) -> float:
        """Seconds from the kill until all have answered after it."""
        before = self._all("pid")
        began = time.monotonic()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        while set(self._all("pid")) & set(before):
            if time.monotonic() - began > _PATIENCE:
                raise TimeoutError("not all plain actors answer from a new process")
        taken = time.monotonic() - began
        if self._all("digest") != self.digests:
            raise AssertionError("the plain actors hold something else than they had saved")
        return taken

    def close(self) -> None:
        for actor in self.actors:
            self.end(actor)


def _row(name: str, size: int, rounds: int, rest: float) -> Row:
    from bench.bench_recovery_vs_floor import Crew, rested

    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        plain = _Plain(folder, size)
        try:
            crew = Crew(f"{folder}/store", size // _ACTORS, "ray", spares=1)
            try:
                ours, baseline = interleave(
                    rounds,
                    lambda: rested(rest, crew.recovery_of_all),
                    lambda: rested(rest, plain.recovery),
                )
            finally:
                crew.system.stop(checkpoint=False)
        finally:
            plain.close()
    return Row(
        name=name,
        unit="s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_most=1.2,
        against="Ray restarts plain actors, which load a pickle",
        group=GROUP,
        note=f"{_ACTORS} of {_ACTORS} killed, {size / (1 << 20):,.0f} MiB in all; compared after each round",
    )


def measure(
    *, rounds: int = 5, rest: float = 2.0, sizes: tuple[tuple[str, int], ...] = SIZES
) -> list[Row | Missing]:
    """The rows; see the module's head."""
    try:
        from bench.ray_peers import local_ray
    except ImportError as error:
        return [Missing(name, str(error)) for name, _size in sizes]
    with local_ray():
        return [_row(name, size, rounds, rest) for name, size in sizes]
