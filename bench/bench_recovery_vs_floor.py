"""From the SIGKILL of one of four participants until all handle messages again, against what it must take.

The participants are Ray actors with 256 MiB of array each, which does not compress. After the kill the driver
asks the lost one until a new process answers, then the other three: they have gone back to the checkpoint as
well. What their arrays hold is checked after each round.

The floor is what a program without any checkpointer would wait for: Ray's own restart of an actor that holds
nothing, and the reading of the lost one's bytes from its files. Both sides read what the page cache has.

Ray keeps idle workers for its restarts, and Cutline a spare host. Each side begins on a machine at rest, when
both have been filled up again, and neither pays for what the other one left to be done. What a recovery takes
without a spare, as a second loss within seconds does, is in the note.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import ray
from xxhash import xxh3_64_intdigest

import cutline
from bench.ray_peers import Echo, local_ray, restart_seconds, spare_hosts
from bench.row import Row, interleave
from cutline.errors import RolledBack

__all__ = ("Ballast", "Crew", "measure", "rested")

_PATIENCE = 120.0
# Seconds that a spare takes to be there again, and Ray's pool of workers.
_REST = 5.0


class Ballast:
    """Holds bytes that do not compress."""

    def __init__(self, seed: int, size: int) -> None:
        self.held = np.random.default_rng(seed).integers(0, 256, size, np.uint8)

    def pid(self) -> int:
        """Which process this is."""
        return os.getpid()

    def digest(self) -> int:
        """What the bytes are."""
        return int(xxh3_64_intdigest(self.held.data))


class Crew:
    """Four of them in a system, and one recovery after the other."""

    def __init__(self, folder: str, size: int, runtime: str, spares: int | None) -> None:
        self.victim = 0
        self.system = cutline.start(
            folder, name="crew", interval=None, fresh=True, quiet=True, runtime=runtime, spares=spares
        )
        self.crew: list[Any] = [self.system.spawn(f"b{n}", Ballast, n, size) for n in range(4)]
        self.digests = [self._ask(each.digest) for each in self.crew]
        self.system.checkpoint()

    @staticmethod
    def _ask(method: Any) -> Any:
        """The answer of a read; asked again if a recovery comes between."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return method.options(durable=False).remote().result(timeout=_PATIENCE)
            except RolledBack:
                if time.monotonic() > deadline:
                    raise

    def await_spares(self, wanted: int) -> int:
        """Waits until so many hosts stand by; how many do, if there is no memory for so many."""
        hosting = {self._ask(each.pid) for each in self.crew}
        deadline = time.monotonic() + _PATIENCE / 2
        while len(standing := spare_hosts() - hosting) < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        return len(standing)

    def recovery(self) -> float:
        """Seconds from the kill until all four have answered after it."""
        self.victim = (self.victim + 1) % len(self.crew)
        lost = self.crew[self.victim]
        before = self._ask(lost.pid)
        began = time.monotonic()
        os.kill(before, signal.SIGKILL)
        while self._ask(lost.pid) == before:
            if time.monotonic() - began > _PATIENCE:
                raise TimeoutError(f"no other process than {before} answers for {lost!r}")
        for each in self.crew:
            self._ask(each.pid)
        taken = time.monotonic() - began
        self._check(f"the loss of {lost!r}")
        return taken

    def recovery_of_all(self) -> float:
        """Seconds from the kill of all four until all have answered after it."""
        before = [self._ask(each.pid) for each in self.crew]
        began = time.monotonic()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        for each in self.crew:
            while self._ask(each.pid) in before:
                if time.monotonic() - began > _PATIENCE:
                    raise TimeoutError(f"no new process answers for {each!r}")
        taken = time.monotonic() - began
        self._check("the loss of all")
        return taken

    def _check(self, after: str) -> None:
        if [self._ask(each.digest) for each in self.crew] != self.digests:
            raise AssertionError(f"after {after} the arrays hold something else")

    def reading(self) -> float:
        """Seconds to read the files of the lost one's image into fresh memory."""
        store = self.system.store
        images = store.read_manifest(store.catalog.find("crew", "newest")).images
        began = time.monotonic()
        for key in images[f"b{self.victim}"].ref.chain:
            room = np.empty(store.blobs.size(key), np.uint8)
            if store.blobs.read_into(key, 0, room.data) != room.size:
                raise AssertionError(f"{key} is shorter than it was")
        return time.monotonic() - began


def measure(*, rounds: int = 8, size: int = 256 << 20, rest: float = _REST) -> Row:
    """The row; see the module's head."""
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, local_ray():
        plain: Any = ray.remote(Echo)
        actor = plain.options(max_restarts=-1, max_task_retries=-1).remote()
        crew = Crew(folder, size, "ray", spares=1)
        try:
            ours, baseline = interleave(
                rounds,
                lambda: rested(rest, crew.recovery),
                lambda: rested(rest, lambda: restart_seconds(actor)) + crew.reading(),
            )
        finally:
            crew.system.stop(checkpoint=False)
            ray.kill(actor)
        without = _without_spares(folder, rounds // 2, size, rest)
    return Row(
        name="recovery_vs_floor",
        unit="s",
        samples_ours=ours,
        samples_baseline=baseline,
        at_most=1.2,
        note=f"1 of 4 killed, {size >> 20} MiB each, on Ray; the floor: Ray's restart of an empty actor, and "
        f"the reading of the lost one's files; contents checked after each round{without}",
    )


def _without_spares(folder: str, rounds: int, size: int, rest: float) -> str:
    if not rounds:
        return ""
    bare = Crew(folder, size, "ray", spares=0)
    try:
        return f"; {median([rested(rest, bare.recovery) for _ in range(rounds)]):.2f} s without a spare host"
    finally:
        bare.system.stop(checkpoint=False)


def rested(seconds: float, side: Callable[[], float]) -> float:
    """What a side gives after some seconds in which nothing happens."""
    time.sleep(seconds)
    return side()
