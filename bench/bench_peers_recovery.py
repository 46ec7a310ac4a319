"""SIGKILL to all participants, until all handle messages again, by state size, against a plain restart.

Four participants in Ray actors share a state of 1 MB, 100 MB or 1 GB that does not compress. All four are
killed in one go; the time runs until each has answered from a new process, with its state. The peer is what
Ray's documentation shows: actors with `max_restarts`, which load their state from a file in `__init__`; here
a pickle that was written before. Ours goes back to one consistent cut, with the messages in flight; the plain
actors each have a file, and nothing that fits them together. States are compared after each round.

The system is started as any program starts one: how many hosts stand by is the default (docs/ray.md). Each
side begins when those are there, after some seconds of rest, as in `recovery_vs_floor`: Ray's pool of idle
workers is there again as well, and neither side pays for the other's. What a loss of all takes where nobody
stands by is in the note of the first row.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.reasons import first_line
from bench.row import NOT_IN_QUICK, Missing, Row, interleave

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


def _row(name: str, size: int, rounds: int, rest: float, bare: int) -> Row:
    """One row. ``bare``: how many rounds without spares there are for the note."""
    from bench.bench_recovery_vs_floor import Crew, rested

    standing: list[int] = []

    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        plain = _Plain(folder, size)
        try:
            crew = Crew(f"{folder}/store", size // _ACTORS, "ray", spares=None)

            def quiet(side: Callable[[], float]) -> float:
                standing.append(crew.await_spares(_ACTORS))
                return rested(rest, side)

            try:
                ours, baseline = interleave(
                    rounds, lambda: quiet(crew.recovery_of_all), lambda: quiet(plain.recovery)
                )
            finally:
                crew.system.stop(checkpoint=False)
        finally:
            plain.close()
        without = _without_spares(f"{folder}/bare", size, bare, rest)
    return Row(
        name=name,
        unit="s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_most=1.2,
        against="Ray restarts plain actors, which load a pickle",
        group=GROUP,
        note=f"{_ACTORS} of {_ACTORS} killed, {size / (1 << 20):,.0f} MiB in all; compared after each round; "
        f"{min(standing)} hosts stood by{without}",
    )


def _without_spares(folder: str, size: int, rounds: int, rest: float) -> str:
    from bench.bench_recovery_vs_floor import Crew, rested

    if not rounds:
        return ""
    crew = Crew(folder, size // _ACTORS, "ray", spares=0)
    try:
        return f"; {median(rested(rest, crew.recovery_of_all) for _ in range(rounds)):.2f} s where none does"
    finally:
        crew.system.stop(checkpoint=False)


def measure(
    *, rounds: int = 5, rest: float = 2.0, sizes: tuple[tuple[str, int], ...] = SIZES, bare: int = 3
) -> list[Row | Missing]:
    """The rows; see the module's head. Those of `SIZES` that are not among ``sizes`` are named as missing."""
    try:
        from bench.ray_peers import local_ray
    except ImportError as error:
        return [Missing(name, first_line(error)) for name, _size in sizes]
    with local_ray():
        rows = [
            _row(name, size, rounds, rest, 0 if place else bare) for place, (name, size) in enumerate(sizes)
        ]
    measured = {name for name, _size in sizes}
    return [*rows, *(Missing(name, NOT_IN_QUICK) for name, _size in SIZES if name not in measured)]
